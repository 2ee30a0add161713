"""Nodes in cities and continents, for tests of hierarchical averaging."""

import numpy as np

START = {"w": np.array([0.0], np.float32)}
MIXED = {
    "w": np.array([0.3, -1.7], np.float32),
    "private": np.array([[2.0]], np.float32),
    "half": np.array([0.1, 0.7], np.float16),
    "steps": np.array(3, np.int64),
}
CITIES = ["rome", "rome", "oslo", "lima"]
CONTINENTS = {"rome": "europe", "oslo": "europe", "lima": "america"}


def city(partition):
    return {"group.city": CITIES[partition % 4]}


def place(partition):
    return {**city(partition), "group.continent": CONTINENTS[CITIES[partition % 4]]}


def add(partition, arrays, config):
    """Node k moves everything by k + 1; all have one example."""
    return {n: a + a.dtype.type(partition + 1) for n, a in arrays.items()}, {"num-examples": 1}


def drift(partition, arrays, config):
    """A step that depends on the node, the round and where it begins."""
    step = np.float32(0.1 * (partition + 1) / config["server-round"])
    moved = {n: np.asarray(a + (step * np.cos(a) if a.dtype.kind == "f" else 1), a.dtype) for n, a in arrays.items()}
    return moved, {"num-examples": 1 + partition, "loss": float(partition)}


def evaluate(partition, arrays, config):
    return {}, {"num-examples": 1, "received": float(arrays["w"][0])}


def received(seen, kind):
    """{round: what nodes 0, 1, ... got} for messages of a kind."""
    got = {}
    for message in seen:
        if message.metadata.message_type == kind:
            value = float(message.content["arrays"]["w"].numpy()[0])
            got.setdefault(message.content["config"]["server-round"], []).append(value)
    return got
