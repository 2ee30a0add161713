"""vendored: A copy of strategies/ inside the app."""
