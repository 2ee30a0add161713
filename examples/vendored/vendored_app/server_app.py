"""vendored: A Flower / NumPy app."""

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from vendored_app.strategies import BaseStrategy, Momentum

# Create ServerApp
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Main entry point for the ServerApp."""
    strategy = BaseStrategy(min_nodes=2, server_optimizer=Momentum(momentum=0.5))
    strategy.start(
        grid=grid, initial_arrays=ArrayRecord([np.zeros(3)]), num_rounds=context.run_config["num-server-rounds"]
    )
