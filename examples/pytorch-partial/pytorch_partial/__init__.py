"""pytorch-partial: Private heads for the app of the PyTorch template."""
