"""Trained models: load, predict, evaluate, adapt, export, and hand them to a robot."""
