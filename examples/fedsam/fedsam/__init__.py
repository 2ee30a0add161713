"""FedSAM, a method of federated learning for fedapps."""
