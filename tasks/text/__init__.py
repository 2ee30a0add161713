"""Text classification on nodes that keep their vocabularies to themselves."""
