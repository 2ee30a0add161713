"""Toy nodes whose stages have parameters of their own (APD, FedWeIT), and a look at what they keep."""

from dataclasses import replace

import numpy as np
import torch
from toy_nodes import SEED, staged
from toy_nodes import initial as initial_of
from toys import ToyTask

from clients.decomposed_client import DecomposedClient, Knowledge
from clients.named_arrays import get_arrays
from clients.round_settings import RoundSettings
from clients.state import ContextState, DiskState

WEIGHTS = ["encoder.weight", "head.weight"]
ORDERS = RoundSettings(epochs=2, learning_rate=0.05, batch_size=4, decomposition="apd")
PENALTIES = {"l1_adaptive": 1e-3, "l1_mask": 1e-3, "drift": 0.1}


def initial(names=WEIGHTS):
    return initial_of(names)


def node(state, *, data=None, task=None, **more):
    state = state if isinstance(state, ContextState) else DiskState(state)
    return DecomposedClient(
        task or ToyTask(), data or staged(1), state, ORDERS, seed=SEED, device=torch.device("cpu"), **more
    )  # fmt: skip


def at(server_round, stage, **changes):
    return replace(ORDERS, server_round=server_round, stage=stage, **changes)


def fedweit(server_round, stage, **changes):
    return at(server_round, stage, decomposition="fedweit", **changes)


def knowledge(stage, lenders=2, value=1.0):
    models = tuple({name: np.full_like(a, value + i) for name, a in initial().items()} for i in range(lenders))
    return Knowledge(stage, tuple(f"toy-{i}" for i in range(lenders)), models)


def kept(client, server_round):
    """The parts after a round, by name."""
    arrays = client.private.load(server_round + 1)
    return {n.removeprefix("memory.parts."): a for n, a in arrays.items() if n.startswith("memory.parts.")}


def model_at(client, received, orders, stage):
    """The plain model that is evaluated on a stage, as arrays."""
    model = client._model(received, client._kept(orders.server_round + 1, orders))
    return get_arrays(client._for_stage(model, stage, orders), [*WEIGHTS, "head.bias"])
