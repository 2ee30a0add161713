"""Classify images on nodes with few of the classes: the standard task of papers on federated learning."""
