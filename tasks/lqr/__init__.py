"""Learn the shared dynamics and the personal gains of linear-quadratic robots (APFL, Section IV-A)."""
