"""Runs started on an engine of this machine."""
