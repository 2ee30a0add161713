"""Deployment: a SuperLink with SuperNodes on this machine, certificates, node keys and the check of a node."""
