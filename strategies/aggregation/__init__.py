"""Combining what the nodes of a round send: their arrays and their metrics."""
