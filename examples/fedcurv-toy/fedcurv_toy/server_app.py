"""fedcurv-toy: A Flower / NumPy app."""

import numpy as np
from fedapps.strategies import FisherExchange
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedcurv_toy.task import TRUTH

# Create ServerApp
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Main entry point for the ServerApp."""
    strategy = FisherExchange(others_now=context.run_config["others-now"], profiles=True, min_nodes=2)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord({"theta": Array(np.zeros_like(TRUTH))}),
        num_rounds=context.run_config["num-server-rounds"],
    )
