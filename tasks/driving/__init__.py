"""Driver forecasting for robots that change lanes among people (APFL, Sections IV-B and IV-C)."""
