"""The Flower apps: ServerApp and ClientApp."""
