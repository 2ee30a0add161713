"""A SuperLink and its SuperNodes on this machine, for one run: ``python -m fedapps fleet``."""
