"""Methods of federated learning, a module for each or for a family that shares a base class.

A method here is found by its name; nothing else lists it.
"""
