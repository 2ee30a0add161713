"""Gradient inversion audit: what words a server can read from what a node shares (``fedapps audit``)."""
