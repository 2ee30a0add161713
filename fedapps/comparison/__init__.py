"""Comparisons of methods over seeds, beside the numbers of the papers."""
