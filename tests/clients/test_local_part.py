"""Local parts of another package: they read, remember, reply and answer, beside the parts of this one."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from fedapps.clients.local_part import LocalPart
from fedapps.clients.named_arrays import Arrays, get_arrays
from fedapps.clients.node_memory import memory_of
from fedapps.clients.parts.decomposition import Decomposition
from fedapps.clients.parts.earlier_stages import Ewc, FreshStages
from fedapps.clients.parts.proximal import Proximal
from fedapps.clients.parts.reconstruction import Reconstruction
from fedapps.clients.penalties import QuadraticPrior
from flwr.app import ArrayRecord, RecordDict
from toy_nodes import NAMES, at, initial, node, staged
from toys import ToyTask, arrays_of, record_of, same_bits

ENCODER = NAMES[:1]


@dataclass(frozen=True)
class Scaffold(LocalPart):
    """Control variates as in SCAFFOLD (Karimireddy et al. 2020, Option II), for SGD.

    The gradient gets c − c_i; afterwards c_i ← c_i − c + (θ_received − θ) / (steps · rate).
    """

    correction: float = 1.0
    control: Arrays | None = None
    exclusive: ClassVar[frozenset[str]] = frozenset({"the control variates"})

    def read(self, config, content):
        part = super().read(config, content)
        record = content.array_records.get("scaffold.control")
        return part if record is None else replace(part, control=arrays_of(record))

    def _mine(self, node_round):
        memory = memory_of(node_round.kept)
        return {name: memory.get(f"control.{name}", np.zeros_like(a)) for name, a in node_round.received.items()}

    def _server(self, node_round):
        return self.control or {name: np.zeros_like(array) for name, array in node_round.received.items()}

    def prior(self, shared, model, node_round):
        mine, server = self._mine(node_round), self._server(node_round)
        added = {name: torch.from_numpy(self.correction * (server[name] - mine[name])) for name in shared}
        return QuadraticPrior({n: torch.zeros_like(a) for n, a in added.items()}, {n: -a for n, a in added.items()})

    def remember(self, model, node_round):
        mine, server, training = self._mine(node_round), self._server(node_round), node_round.settings.training
        trained = get_arrays(model, node_round.received)
        return {
            f"control.{n}": mine[n] - server[n] + (a - trained[n]) / (training.epochs * training.learning_rate)
            for n, a in node_round.received.items()
        }

    def next_stage(self, carried, kept):
        return carried | {name: a for name, a in kept.items() if name.startswith("memory.control.")}

    def records(self, trained, model, node_round) -> Mapping[str, ArrayRecord]:
        memory, mine = self.remember(model, node_round), self._mine(node_round)
        return {"scaffold.change": record_of({n: memory[f"control.{n}"] - mine[n] for n in trained})}

    def answer(self, query, node_round):
        if query != "control":
            return None
        memory = memory_of(node_round.kept)
        return {"scaffold.control": record_of({n: a for n, a in memory.items() if n.startswith("control.")})}


WHOLE = {"optimizer": "sgd", "learning_rate": 0.05, "epochs": 2, "batch_size": 6}


def scaffold_by_hand(rounds, server):
    """θ and c_i after some rounds that all start from the same θ, in autograd."""
    task, sent = ToyTask(), initial(NAMES[:3])
    batch = task.data(1).splits["train"]
    mine = {name: torch.zeros(array.shape) for name, array in sent.items()}
    for _ in range(rounds):
        model = task.build_model()
        model.load_state_dict({n: torch.from_numpy(a) for n, a in initial().items()})
        named = dict(model.named_parameters())
        for _ in range(2):
            gradients = torch.autograd.grad(task.loss(model, batch), list(named.values()))
            with torch.no_grad():
                for (name, parameter), gradient in zip(named.items(), gradients, strict=True):
                    parameter -= 0.05 * (gradient - mine[name] + server[name])
        mine = {n: mine[n] - server[n] + (torch.from_numpy(sent[n]) - p.detach()) / 0.1 for n, p in named.items()}
    return {n: p.detach().numpy() for n, p in named.items()}, {n: c.numpy() for n, c in mine.items()}


def test_a_part_of_another_package_reads_records_remembers_and_replies(tmp_path):
    server = {name: np.full_like(array, 0.25) for name, array in initial(NAMES[:3]).items()}
    part = Scaffold().read({}, RecordDict({"scaffold.control": record_of(server)}))
    client, changes = node(tmp_path, part), []
    for server_round in (1, 2):
        reply = client.train_round(initial(NAMES[:3]), at(server_round, **WHOLE))
        changes.append(arrays_of(reply.records["scaffold.change"]))
    arrays, control = scaffold_by_hand(2, {name: torch.from_numpy(array) for name, array in server.items()})
    for name in NAMES[:3]:
        np.testing.assert_allclose(reply.arrays[name], arrays[name], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(
            client.private.load(3)[f"memory.control.{name}"], control[name], rtol=1e-3, atol=1e-5
        )
        np.testing.assert_allclose(changes[0][name] + changes[1][name], control[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("others", [[], [Proximal(0.1)], [FreshStages()], [Reconstruction()], [Ewc(0.1)]])
@pytest.mark.parametrize("first", [True, False])
def test_its_memory_survives_the_parts_beside_it(tmp_path, others, first):
    """Single-task learning and reconstruction forget the private parameters, but not the memory of other parts."""
    parts = [Scaffold(), *others] if first else [*others, Scaffold()]
    client = node(tmp_path, *parts, data=staged(1))
    change = {}
    for server_round, stage in ((1, 0), (2, 0), (3, 1)):
        reply = client.train_round(initial(ENCODER), at(server_round, stage, **WHOLE))
        found = arrays_of(reply.records["scaffold.change"])
        change = {name: change.get(name, 0.0) + array for name, array in found.items()}
    kept = client.private.load(4)["memory.control.encoder.weight"]
    np.testing.assert_allclose(kept, change["encoder.weight"], rtol=1e-4, atol=1e-6)


def test_its_hyper_parameters_come_from_the_config_and_a_neutral_one_is_plain_training(tmp_path):
    off = Scaffold().read({"correction": 0.0}, RecordDict())
    found, expected = (node(tmp_path / str(len(parts)), *parts) for parts in ([off], []))
    for server_round in (1, 2):
        reply = found.train_round(initial(), at(server_round))
        assert same_bits(reply.arrays, expected.train_round(initial(), at(server_round)).arrays)


def test_it_answers_its_query(tmp_path):
    client = node(tmp_path, Proximal(), Scaffold(), data=staged(1))
    client.train_round(initial(ENCODER), at(1))
    answer = arrays_of(client.answer("control", at(2))["scaffold.control"])
    kept = client.private.load(2)["memory.control.encoder.weight"]
    assert same_bits(answer, {"control.encoder.weight": kept})


@dataclass(frozen=True)
class Doubled(LocalPart):
    """Doubles the loss of a batch."""

    def loss(self, loss):
        return lambda model, batch: 2 * loss(model, batch)


@pytest.mark.parametrize("others", [[], [Proximal(0.0)], [Decomposition()]])
@pytest.mark.parametrize("first", [True, False])
def test_a_changed_loss_is_the_one_that_is_trained(tmp_path, others, first):
    """SGD on twice the loss at half the rate is SGD on the loss."""
    data, names = staged(1), ["encoder.weight", "head.weight"]
    whole, half = (at(1, optimizer="sgd", batch_size=8, learning_rate=rate) for rate in (1 / 16, 1 / 32))
    plain = node(tmp_path / "plain", *others, data=data)
    parts = [Doubled(), *others] if first else [*others, Doubled()]
    expected = plain.train_round(initial(names), whole).arrays
    found = node(tmp_path / "doubled", *parts, data=data).train_round(initial(names), half)
    assert same_bits(found.arrays, expected)
