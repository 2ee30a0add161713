"""Tuning: the settings of each method that are best on validation data."""
