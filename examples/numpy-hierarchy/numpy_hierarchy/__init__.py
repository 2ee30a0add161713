"""numpy-hierarchy: Server optimizers and a model per city, with NumPy clients."""
