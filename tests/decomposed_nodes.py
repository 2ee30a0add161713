"""Toy nodes with a decomposed model (APD, FedWeIT), and a look at what they keep."""

import numpy as np
from fedapps.clients.arrays import get_arrays
from toy_nodes import initial as initial_of
from toy_nodes import node as node_of
from toy_nodes import staged

from fedapps.methods.apd import Decomposition
from fedapps.methods.fedweit import FedWeitPart, Knowledge

WEIGHTS = ["encoder.weight", "head.weight"]
PENALTIES = {"l1": 1e-3, "l1_mask": 1e-3, "drift": 0.1}


def initial(names=WEIGHTS):
    return initial_of(names)


def decomposition(kind="apd", *, l1=0.0, drift=0.0, l1_mask=0.0, mask_share=0.7, **options):
    """The local part of APD or FedWeIT."""
    if kind == "apd":
        return Decomposition(l1, drift, l1_mask, **options)
    return FedWeitPart(l1, drift, l1_mask, mask_share, **options)


def node(state, kind="apd", *others, data=None, task=None, **options):
    """A node with a decomposition, after the other local parts."""
    return node_of(state, *others, decomposition(kind, **options), data=data or staged(1), task=task)


def knowledge(stage, lenders=2, value=1.0):
    models = tuple({name: np.full_like(a, value + i) for name, a in initial().items()} for i in range(lenders))
    return Knowledge(stage, tuple(f"toy-{i}" for i in range(lenders)), models)


def kept(client, server_round):
    """The parts of the model after a round, by name."""
    arrays = client.private.load(server_round + 1)
    return {n.removeprefix("memory.parts."): a for n, a in arrays.items() if n.startswith("memory.parts.")}


def model_at(client, received, settings, stage):
    """The plain model that is evaluated on a stage, as arrays."""
    model = client._model(client._round(received, settings, before=settings.server_round + 1))
    return get_arrays(client.parts.stage_model(model, stage), [*WEIGHTS, "head.bias"])
