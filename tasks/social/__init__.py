"""Predict how much a robot disturbs people, for one rater after another (Elastic Transfer, SocNav1)."""
