"""The rounds of a run: their loop, messages to nodes, records and snapshots."""
