"""Gaussian blobs, L2 Init, a tracker and a report section for fedapps."""
