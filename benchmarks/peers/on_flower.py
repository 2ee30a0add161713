"""FedAvg of Flower with the client of its PyTorch template, on Flower's own simulation with Ray."""

from dataclasses import replace

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from job import Job, network

# Only the driver evaluates; what a worker of Ray unpickles does not carry the test images.
job = Job.read()
nodes, job = job.nodes, replace(job, nodes=[])
client_app, server_app = ClientApp(), ServerApp()
epochs, batch, rate = job.epochs, job.batch, job.rate


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train the shared model on the images of one node."""
    images, labels = nodes[int(context.node_config["partition-id"])]
    model, criterion = network(), torch.nn.CrossEntropyLoss()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(epochs):
        for batch_of in torch.randperm(len(images)).split(batch):
            optimizer.zero_grad()
            loss = criterion(model(images[batch_of]), labels[batch_of])
            loss.backward()
            optimizer.step()
    metrics = MetricRecord({"train_loss": loss.item(), "num-examples": len(images)})
    return Message(
        content=RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message
    )


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and evaluate the last model."""
    share, model = job.drawn / len(nodes), network()
    strategy = FedAvg(fraction_train=share, fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=len(nodes))
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=job.rounds)
    model.load_state_dict(result.arrays.to_torch_state_dict())
    job.finish(model)


run_simulation(server_app, client_app, num_supernodes=len(nodes))
