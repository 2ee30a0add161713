"""What a strategy does while its nodes take their time: so many at work, and newcomers asked meanwhile."""

import numpy as np
import pytest
from fedapps.sim.inprocess import InProcessGrid
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.nodes import registry as node_registry
from toys import arithmetic_app, arrays_of, record_of, same_bits

pytestmark = pytest.mark.usefixtures("flower_identity")

START = {"w": np.ones(3, np.float32)}


class SlowGrid(InProcessGrid):
    """Every reply is there at the third look; a ``latecomer``, the last node, joins when the others train."""

    def __init__(self, nodes, latecomer=False):
        super().__init__(arithmetic_app(doubled), [{}] * nodes, {}, errors="reply")
        self.latecomer, self.out, self.looks, self.log = latecomer, set(), {}, []

    def get_node_ids(self):
        nodes = list(super().get_node_ids())
        waits = self.latecomer and all(kind != "train" for _, kind, _ in self.log)
        return nodes[:-1] if waits else nodes

    def push_messages(self, messages):
        sent = list(messages)
        ids = list(super().push_messages(sent))
        self.out |= set(ids)
        self.log += [("out", message.metadata.message_type, len(self.out)) for message in sent]
        return ids

    def pull_messages(self, message_ids):
        (wanted,) = message_ids
        self.looks[wanted] = self.looks.get(wanted, 0) + 1
        if wanted not in self.out or self.looks[wanted] < 3:
            return []
        self.out.remove(wanted)
        replies = list(super().pull_messages([wanted]))
        self.log += [("reply", reply.metadata.message_type, len(self.out)) for reply in replies]
        return replies


def doubled(partition, arrays, config):
    return {"w": arrays["w"] * 2 + partition}, {"num-examples": partition + 1}


def run(grid, **options):
    result = BaseStrategy(poll=1e-4, **options).start(grid, record_of(START), num_rounds=2)
    return arrays_of(result.arrays)


def test_profiles_training_and_evaluation_keep_to_the_number_and_to_the_bits():
    free, bound = SlowGrid(5), SlowGrid(5)
    assert same_bits(run(free), run(bound, in_flight=2))
    for kind in ("query.profile", "train", "evaluate"):
        assert max(out for what, told, out in free.log if (what, told) == ("out", kind)) == 5
        assert max(out for what, told, out in bound.log if (what, told) == ("out", kind)) == 2


def test_who_joins_in_a_round_is_asked_before_it_is_over(monkeypatch):
    monkeypatch.setattr(node_registry, "POLL_SECONDS", 0.0)
    grid = SlowGrid(3, latecomer=True)
    run(grid)
    asked = [index for index, (what, kind, _) in enumerate(grid.log) if (what, kind) == ("out", "query.profile")]
    trained = [index for index, (what, kind, _) in enumerate(grid.log) if (what, kind) == ("reply", "train")]
    assert len(asked) == 3
    assert asked[2] < trained[0]
    assert len(trained) == 2 + 3, "and takes part in the next round"


def test_who_joins_in_a_round_is_asked_when_there_is_room(monkeypatch):
    monkeypatch.setattr(node_registry, "POLL_SECONDS", 0.0)
    grid = SlowGrid(4, latecomer=True)
    run(grid, in_flight=2)
    out = [(kind, number) for what, kind, number in grid.log if what == "out"]
    assert max(number for _, number in out) == 2, "profile queries count as the others do"
    kinds = [kind for kind, _ in out]
    assert kinds.index("query.profile", 3) > kinds.index("train") + 1
    assert kinds.count("train") == 3 + 4, "and takes part in the next round"


@pytest.mark.parametrize(("name", "least"), [("in_flight", 1), ("min_nodes", 1), ("min_replies", 0)])
def test_numbers_that_are_too_small_are_refused(name, least):
    with pytest.raises(ValueError, match=f"{name} = {least - 1}: must be at least {least}"):
        BaseStrategy(**{name: least - 1})
