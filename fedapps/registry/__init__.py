"""What can be named in a run config: tasks and methods, of this package and of others."""
