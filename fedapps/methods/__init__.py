"""Methods of federated learning, one module each. A module here is found by its name; nothing else lists it."""
