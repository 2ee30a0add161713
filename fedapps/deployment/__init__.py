"""Fleets: SuperLink, SuperNodes, certificates, keys, checks of a node."""
