"""Local parts: the local algorithms that a node composes, one module each."""
