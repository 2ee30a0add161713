"""Batch normalisation of networks whose state is averaged."""

import torch
from fedapps.clients.base import FederatedClient
from fedapps.clients.settings import LocalTraining, RoundSettings
from fedapps.clients.state import DiskState
from fedapps.tasks.base import NodeData
from fedapps.tasks.images.options import Options
from fedapps.tasks.images.task import ImagesTask
from fedapps.tasks.vision import BatchNorm
from torch import nn


def test_a_single_value_per_channel_is_normalised_by_running_statistics():
    layer = BatchNorm.of(nn.BatchNorm2d(1))
    layer.running_mean.fill_(2.0)
    layer.running_var.fill_(4.0 - layer.eps)
    variance = layer.running_var.clone()
    out = layer(torch.full((1, 1, 1, 1), 6.0))
    assert out.item() == 2.0  # (6 - 2) / sqrt(4)
    assert (layer.running_mean.item(), layer.running_var.item()) == (2.0, variance.item())
    plain = nn.BatchNorm2d(1)
    two = torch.tensor([1.0, 3.0]).view(2, 1, 1, 1)
    torch.testing.assert_close(BatchNorm.of(nn.BatchNorm2d(1))(two), plain(two), rtol=0, atol=0)


def test_a_node_with_one_example_in_its_last_batch_trains(tmp_path):
    options = Options(dataset="own", labels="a,b", height=4, channels=1, model="resnet8", norm="batch")
    task = ImagesTask(options)
    images = torch.arange(48, dtype=torch.uint8).view(3, 1, 4, 4)
    data = NodeData(
        "n", {"train": {"image": images, "label": torch.tensor([0, 1, 0])}}, {}, {"statistics": options.statistics}
    )
    client = FederatedClient(task, data, DiskState.of(tmp_path, "r", "m", "n"), seed=0, device=torch.device("cpu"))
    for count, batch_size in ((3, 2), (1, 2), (3, 1)):
        client.data = NodeData("n", {"train": {k: v[:count] for k, v in data.splits["train"].items()}}, {}, data.extra)
        settings = RoundSettings(run="r", training=LocalTraining(epochs=1, batch_size=batch_size))
        assert client.train_round(client.initial_shared(["*"]), settings).num_examples == count
