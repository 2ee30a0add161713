"""Simulated rooms, people and raters in the style of SocNav1 (Manso et al., Data 5(1):7, 2020)."""
