"""pytorch-partial: A Flower / PyTorch app."""

import torch
from fedapps.clients.guard import keep_private
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from pytorch_partial.task import Net, load_data
from pytorch_partial.task import test as test_fn
from pytorch_partial.task import train as train_fn

# Flower ClientApp. Only the mod is new: the head stays on the node, whatever the server asks for
app = ClientApp(mods=[keep_private(Net, private=["head.*"])])


@app.train()
def train(msg: Message, context: Context):
    """Train the model on local data."""
    torch.manual_seed(context.node_config["partition-id"])  # the order of the batches

    # Load the model and initialize it with the received weights
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())

    # Load the data
    trainloader, _ = load_data(context.node_config["partition-id"], context.run_config["batch-size"])

    # Call the training function
    train_loss = train_fn(model, trainloader, context.run_config["local-epochs"], msg.content["config"]["lr"])

    # Construct and return reply Message
    metrics = {"train_loss": train_loss, "num-examples": len(trainloader.dataset)}
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    """Evaluate the model on local data."""
    # Load the model and initialize it with the received weights
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())

    # Load the data
    _, testloader = load_data(context.node_config["partition-id"], context.run_config["batch-size"])

    # Call the evaluation function
    eval_loss, eval_acc = test_fn(model, testloader)

    # Construct and return reply Message
    metrics = {"eval_loss": eval_loss, "eval_acc": eval_acc, "num-examples": len(testloader.dataset)}
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
