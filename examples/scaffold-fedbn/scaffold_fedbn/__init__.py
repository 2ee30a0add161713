"""SCAFFOLD and FedBN, methods of federated learning for fedapps."""
