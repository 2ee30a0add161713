"""Simulated cities with camera cars, in the folders of Mapillary Street-Level Sequences (FedVPR, Section 4)."""
