"""The run config: keys, validation, recipes."""
