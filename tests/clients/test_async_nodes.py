"""Nodes under BufferedAsync: private parameters go on through every training, also of the same version."""

import pytest
from fedapps.strategies.algorithms.buffered_async import BufferedAsync
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.closing import Closing
from scripted_grid import ScriptedGrid, script
from toy_nodes import SETTINGS, initial, node, nodes_app
from toys import ToyTask, record_of

pytestmark = pytest.mark.usefixtures("flower_identity")
SHARED = ["encoder.weight"]


@pytest.mark.parametrize(
    "strategy",
    [
        BufferedAsync(shared=SHARED, buffer=2),
        BufferedAsync(shared=SHARED, buffer=2, repeat=False),
        BaseStrategy(shared=SHARED, closing=Closing(deadline=1.5, late="fold")),
    ],
)
def test_private_parameters_go_on_through_every_training(tmp_path, strategy):
    def client_of(partition, message, context):
        data = ToyTask().data(partition)
        settings = SETTINGS.with_config(message.content["config"])
        return node(tmp_path / str(partition), data=data), settings

    grid = ScriptedGrid(nodes_app(client_of), 3, script([1.0], [1.2], [5.0]))
    strategy.start(grid, record_of(initial()), num_rounds=6, evaluate_every=6)
    passes = SETTINGS.training.epochs * 2  # batches of 4 of 6 examples
    for partition in range(3):
        trained = sum(key == partition for _, key, _ in grid.sent)
        begun = trained - sum(flight.node_id == partition + 2 for flight in strategy.mailbox.flights)
        state = node(tmp_path / str(partition)).private
        kept = state.load(before=99)
        assert kept is not None
        assert int(kept["passes"]) == begun * passes, partition
