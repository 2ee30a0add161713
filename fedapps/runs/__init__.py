"""What a run leaves on disk: folders, records, checkpoints, tables."""
