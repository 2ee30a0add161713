"""pytorch-partial: A Flower / PyTorch app."""

import torch
from fedapps.strategies import PartialAggregation
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from pytorch_partial.task import Net

# Create ServerApp
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Main entry point for the ServerApp."""
    # Read run config
    fraction_evaluate: float = context.run_config["fraction-evaluate"]
    num_rounds: int = context.run_config["num-server-rounds"]
    lr: float = context.run_config["learning-rate"]

    # Load global model
    torch.manual_seed(0)
    global_model = Net()
    arrays = ArrayRecord(global_model.state_dict())

    # Initialize the strategy: FedAvg of the body; every node keeps its head
    strategy = PartialAggregation(shared=["body.*"], fraction_evaluate=fraction_evaluate, min_nodes=2)

    # Start strategy, run for `num_rounds`
    strategy.start(grid=grid, initial_arrays=arrays, train_config=ConfigRecord({"lr": lr}), num_rounds=num_rounds)
