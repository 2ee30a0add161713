"""Forecast a human driver with a CVAE and plan lane changes around the forecast (APFL, Sections IV-B and IV-C)."""
