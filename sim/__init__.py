"""Simulated worlds, and engines that run a federation on one machine."""
