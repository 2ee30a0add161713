"""Measurements of this library beside Flower's own parts; not in the wheel."""
