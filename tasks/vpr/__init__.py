"""Recognise the place of an image with triplets that each node mines in its own images (FedVPR)."""
