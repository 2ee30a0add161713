"""pytorch-partial: a network with a shared body and a private head, on generated data."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 4


class Net(nn.Module):
    """Two shared layers, and a private head with 132 parameters."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x):
        return self.head(self.body(x))


def load_data(partition_id: int, batch_size: int):
    """Generate the training and test data of a node; nothing is downloaded.

    Each example is drawn around one of eight centres, two per class. All nodes have the same centres, but each node
    permutes the class labels (an extreme case of label shift): nodes can learn together to distinguish the centres, but
    each must learn its labels alone.
    """
    centres = np.random.default_rng(0).normal(size=(2 * CLASSES, 16))
    rng = np.random.default_rng([1, partition_id])
    names = rng.permutation(CLASSES)
    centre = rng.integers(len(centres), size=400)
    x = torch.tensor(centres[centre] + rng.normal(scale=0.8, size=(400, 16)), dtype=torch.float32)
    y = torch.tensor(names[centre % CLASSES])
    trainset, testset = TensorDataset(x[:80], y[:80]), TensorDataset(x[80:], y[80:])
    return DataLoader(trainset, batch_size=batch_size, shuffle=True), DataLoader(testset, batch_size=batch_size)


def train(net, trainloader, epochs, lr):
    """Train the model on the training set."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    running_loss = 0.0
    for _ in range(epochs):
        for x, y in trainloader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / (epochs * len(trainloader))


def test(net, testloader):
    """Validate the model on the test set."""
    net.eval()
    correct, loss = 0, 0.0
    with torch.no_grad():
        for x, y in testloader:
            outputs = net(x)
            loss += nn.functional.cross_entropy(outputs, y, reduction="sum").item()
            correct += (outputs.argmax(dim=1) == y).sum().item()
    return loss / len(testloader.dataset), correct / len(testloader.dataset)
