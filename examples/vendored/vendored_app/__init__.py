"""vendored: An app that contains a copy of strategies/."""
