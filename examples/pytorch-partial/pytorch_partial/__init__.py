"""pytorch-partial: Private heads in the app of the PyTorch template."""
