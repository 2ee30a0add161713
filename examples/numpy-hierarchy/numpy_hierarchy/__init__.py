"""numpy-hierarchy: Server optimizers and one model per city, with NumPy clients."""
