"""Classify texts with vocabularies and embeddings that stay on the nodes (FedVocab)."""
