"""numpy-hierarchy: A Flower / NumPy app."""

import numpy as np
from fedapps.strategies import Adam, BaseStrategy, HierarchicalFedAvg, Momentum, Yogi
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from numpy_hierarchy.task import FEATURES

STRATEGIES = {
    "fedavg": lambda: BaseStrategy(profiles=True, min_nodes=2),
    "momentum": lambda: BaseStrategy(
        profiles=True, min_nodes=2, server_optimizer=Momentum(learning_rate=0.5, momentum=0.5)
    ),
    "adam": lambda: BaseStrategy(profiles=True, min_nodes=2, server_optimizer=Adam(learning_rate=0.2, beta1=0.5)),
    "yogi": lambda: BaseStrategy(profiles=True, min_nodes=2, server_optimizer=Yogi(learning_rate=0.2, beta1=0.5)),
    # One model per city; every 15 rounds, all cities continue from the average of their models
    "hierarchical": lambda: HierarchicalFedAvg(min_nodes=2, groups=["city"], intervals=[15]),
}

# Create ServerApp
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Main entry point for the ServerApp."""
    strategy = STRATEGIES[context.run_config["strategy"]]()
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord([np.zeros(FEATURES)]),
        num_rounds=context.run_config["num-server-rounds"],
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
    )
