"""What every method has to stand: a resumed run, a refused reply, an absent node; and what it must not send."""

import numpy as np
import pytest
from fedapps.clients.arrays import matches
from flwr.app import ArrayRecord
from method_worlds import METHODS, MORE, run_method, world_of
from run_outputs import outputs_of
from toys import same_bits, same_rounds

from fedapps.registry.expressions import read_expression
from fedapps.registry.methods import build_method, method_class

#: One TRAIN reply is refused, and one node is absent, in different rounds.
FAULTS = {"refused": {(2, 0)}, "absent": {(3, 1)}}


def run_here(method, folder, **more):
    """Four rounds of two nodes with the faults."""
    task = world_of(method)
    keys = {"rounds": 4, "evaluate_every": 2, **FAULTS, **MORE.get(method, {})}
    return run_method(method, task, folder=folder, **(keys | more))


@pytest.mark.parametrize("method", METHODS)
def test_a_method(method, tmp_path):
    whole = run_here(method, tmp_path / "whole")
    survives(method, whole)
    keeps_to_itself(method, whole)
    sends_what_it_says(method, whole)
    repeats(whole, run_here(method, tmp_path / "cut", cut=3))


def repeats(whole, resumed):
    """The bits of snapshots and private states, and all metrics, are those of the run that was not cut."""
    assert same_rounds(resumed.arrays[-2:], whole.arrays[-2:])
    assert same_rounds(resumed.server[-2:], whole.server[-2:])
    assert resumed.kept.keys() == whole.kept.keys()
    assert all(same_bits(resumed.kept[node], kept) for node, kept in whole.kept.items())
    assert outputs_of(resumed.folder)[2:] == outputs_of(whole.folder)[2:]


def survives(method, run):
    """All rounds are there, with finite numbers; the refused reply and the absent node are counted."""
    assert len(run.arrays) == 4
    assert all(np.isfinite(array).all() for arrays in [*run.arrays, *run.server] for array in arrays.values())
    refused = {row["node"] for line in run.folder.lines("metrics.jsonl") for row in line["refused"]}
    assert refused
    assert refused <= {"node-0", "node-1"}


def keeps_to_itself(method, run):
    """No record of a reply has a private parameter, the node's memory or a value of either."""
    task = world_of(method)()
    private = build_method(read_expression(method), {}).private(task).patterns
    for kind, node, _, reply in run.messages:
        records = {name: record for name, record in reply.items() if isinstance(record, ArrayRecord)}
        names = {name for record in records.values() for name in record}
        assert not [name for name in names if matches(name, private)], (kind, node)
        assert not [name for name in names if name.startswith(("memory.", "personal."))], (kind, node)
        assert kind != "evaluate" or not names


def sends_what_it_says(method, run):
    """The records of the largest TRAIN message and reply are at most ``message_sizes`` times the shared arrays."""
    described = method_class(method)()
    trained = [found for found in run.messages if found[0] == "train"]
    shared = max(values(message["arrays"]) for _, _, message, _ in trained)
    down, up = (max(total(found[place]) for found in trained) for place in (2, 3))
    if described.good_for and shared:
        for size, allowed in zip((down, up), described.message_sizes, strict=True):
            assert size <= 1.05 * allowed * shared


def total(content):
    """The numbers in all arrays of a message."""
    return sum(values(record) for record in content.values() if isinstance(record, ArrayRecord))


def values(record):
    return sum(int(np.prod(array.shape)) for array in record.values())
