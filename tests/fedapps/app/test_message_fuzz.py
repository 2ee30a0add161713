"""Messages to nodes and replies to the server, of every method, with records that were changed by malice.

A node works, or answers with an error of ours that says what is wrong. The server goes on without the reply, or ends
the run with an error of ours; what it keeps is finite.
"""

import atexit
import itertools
import shutil
import tempfile
from contextlib import suppress
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damaged_files import bounded
from drawn_houses import run_keys, saved, speaking, task_with, write_world
from fedapps.clients.settings import LocalTraining, RoundSettings
from fedapps.sim.inprocess import InProcessGrid
from fedapps.strategies import wire
from fedapps.strategies.records import RunEndedError
from fedapps.tasks.base import Task
from fedapps.tasks.text.task import TextTask
from fedapps.tasks.vln.task import VlnTask
from flwr.app import Message, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from method_worlds import METHODS, MORE, Rounds, registered, run_method, world_of
from spoiled_messages import ours, spoil, typed_errors

from fedapps.app.client_app import app as client_app
from fedapps.app.disclosure import NodeFailedError
from fedapps.base.options import key_of

pytestmark = pytest.mark.usefixtures("flower_identity")
TEXTS: dict[str, Any] = {
    "text.source": "simulated", "text.world-examples": 12, "text.embedding-width": 4, "text.hidden": 3,
    "text.max-length": 6, "text.vocabulary-size": 50, "text.global-examples": 4, "text.dropout": 0.0,
}  # fmt: skip
ALL = [*METHODS, "centralized", "fedvocab", "fedrecon", "fedvln"]
#: Methods and keys of runs whose messages have more records than those of the method alone.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    **{method: (method, {}) for method in ALL},
    "compressed to bf16": ("fedbn", {"compression": "bf16"}),
    "compressed to int8": ("fedbn", {"compression": "int8"}),
    "compressed to top-k": ("feddyn", {"compression": "top-k"}),
    "local privacy": ("fedbn", {"dp": "local"}),
    "central privacy": ("fedbn", {"dp": "central-client", "dp-noise": 0.1}),
    "timings": ("fedavg", {"timings": True}),
    "median": ("fedavg", {"aggregation": "median", "num_nodes": 3}),
    "trimmed mean": ("fedavg", {"aggregation": "trimmed-mean", "num_nodes": 3}),
    "held-out nodes": ("fedper", {"held-out-nodes": "node-2,", "num_nodes": 3}),
    "buffered": ("fedavg", {"mode": "async", "num_nodes": 3}),
}
FUZZ = settings(max_examples=3, suppress_health_check=list(HealthCheck))
#: What messages and replies may name beside their own records.
NAMES = sorted(
    {value for value in vars(wire).values() if isinstance(value, str) and value.isascii() and len(value) < 40}
    | {key_of(field.name) for kind in (RoundSettings, LocalTraining) for field in fields(kind)}
    | {"head.weight", "body.0.weight", "test.loss", "loss", "group.parity", "ifca.model.0", "ifca.model.2", "w", ""}
)


def run(name: str, folder: Path | None = None, **more: Any) -> Rounds:
    method, keys = RUNS[name]
    if task_of(method) is TextTask:
        keys = keys | TEXTS
    elif task_of(method) is VlnTask:
        keys = keys | house_keys()
    return run_method(method, task_of(method), folder=folder, **(MORE.get(method, {}) | keys | more))


def task_of(method: str) -> type[Task]:
    return {"fedvocab": TextTask, "fedrecon": TextTask, "fedvln": VlnTask}.get(method) or world_of(method)


@cache
def house_keys() -> dict[str, Any]:
    folder = write_world(scratch() / "houses", seen=("houseA",), unseen=("houseB",))
    torch.manual_seed(1)
    agent = saved(task_with().build_model(), folder / "agent.safetensors")
    keys = run_keys(folder, stage="pre-exploration", agent_file=agent, **speaking(folder))
    return {key: value for key, value in keys.items() if key not in ("task", "name", "rounds")} | {"num-nodes": 2}


@cache
def scratch() -> Path:
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def recorded(name: str) -> tuple[Rounds, dict[Path, bytes]]:
    """A run, and what its nodes kept."""
    rounds = run(name, scratch() / name)
    states = {path: path.read_bytes() for path in rounds.folder.path.joinpath("nodes").rglob("*") if path.is_file()}
    return rounds, states


def restore(rounds: Rounds, states: dict[Path, bytes]) -> None:
    """Put the private states of the nodes back."""
    folder = rounds.folder.path / "nodes"
    shutil.rmtree(folder, ignore_errors=True)
    for path, content in states.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@pytest.mark.parametrize("name", RUNS)
@FUZZ
@given(data=st.data())
def test_a_node_works_or_says_what_is_wrong_with_a_message(name, data):
    rounds, states = recorded(name)
    kind, node, sent, _ = rounds.messages[data.draw(st.integers(0, len(rounds.messages) - 1))]
    content = sent.copy()
    spoil(content, data.draw, NAMES)
    restore(rounds, states)
    method, _ = RUNS[name]
    with typed_errors(), registered(task_of(method)), bounded():
        nodes = [{"max-steps": 60, "max-seconds": 5}] * rounds.config["num-nodes"]
        grid = InProcessGrid(client_app, nodes, rounds.config)
        with suppress(NodeFailedError):
            grid.client_app(Message(content, node + 2, kind), grid.context(node + 2))


@pytest.mark.parametrize("name", RUNS)
@FUZZ
@given(data=st.data())
def test_the_server_goes_on_or_says_why_it_ends(name, data):
    rounds, _ = recorded(name)
    chosen = data.draw(st.sets(st.integers(0, len(rounds.messages) - 1), min_size=1, max_size=3))
    count = itertools.count()

    spoiled_kinds = set()

    def spoil_some(kind: str, node: int, content: RecordDict) -> None:
        if next(count) in chosen:
            spoiled_kinds.add(kind)
            spoil(content, data.draw, NAMES)

    with bounded():
        try:
            found = run(name, spoil=spoil_some)
        except RunEndedError as error:
            assert str(error)  # noqa: PT017 - it may also go on
            return
        except ValueError as error:  # before the first round: a node that the run config names is not there
            if not ours(error) or spoiled_kinds != {wire.PROFILE_QUERY}:
                raise
            return
    for arrays in (*found.arrays, *found.server):
        assert all(np.isfinite(array).all() for array in arrays.values())
