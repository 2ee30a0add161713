"""Learning problems: one package for each task, with the task in its module ``task``."""
