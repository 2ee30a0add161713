"""secure-sum: FedAvg of a Flower app with secure aggregation."""
