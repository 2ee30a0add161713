"""Trackers: one module for each service that records runs, such as TensorBoard. No other module knows their names."""
