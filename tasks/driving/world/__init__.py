"""Two cars that swap lanes, a driver with a style, and a gray car (APFL, Sections IV-B and IV-C)."""
