"""Runs on an engine of this machine: in this process or in Ray."""
