"""secure-sum: A Flower / NumPy app."""

import numpy as np
from fedapps.strategies import BaseStrategy, SecureAggregation
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

# Create ServerApp
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Main entry point for the ServerApp."""
    # Initialize the strategy: FedAvg of the sum
    secure = SecureAggregation(clip=5.0, metrics={"train_loss": 100.0})
    strategy = BaseStrategy(weighting="uniform", secure_aggregation=secure)

    # Start strategy, run for `num_rounds`
    result = strategy.start(
        grid=grid, initial_arrays=ArrayRecord([np.zeros(3)]), num_rounds=context.run_config["num-server-rounds"]
    )
    (weights,) = result.arrays.to_numpy_ndarrays()
    loss = result.train_metrics_clientapp[context.run_config["num-server-rounds"]]["train_loss"]
    print(f"weights: {weights.round(3)}; train_loss: {loss:.4f}")
