"""Local parts: those of another package, and several together on one node."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from fedapps.clients.arrays import Arrays, get_arrays, memory_of
from fedapps.clients.local_part import ComposedParts, LocalPart, composed
from fedapps.clients.penalties import QuadraticPrior
from fedapps.clients.settings import with_config
from fedapps.clients.state import ContextState
from flwr.app import ArrayRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_nodes import NAMES, SETTINGS, adaptive_updating, at, initial, node, staged
from toys import ToyTask, arrays_of, record_of, same_bits

from fedapps.methods.apd import Decomposition
from fedapps.methods.baselines import StlPart
from fedapps.methods.ewc import EwcPart
from fedapps.methods.fedcurv import FisherPrior
from fedapps.methods.fedprox import Proximal
from fedapps.methods.fedrecon import FedReconPart
from fedapps.methods.fedvc import FedVcPart
from fedapps.methods.h_fl import SharedEvaluation
from fedapps.methods.l2_transfer import L2TransferPart
from fedapps.methods.spfl import Personalisation

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
        part = with_config(self, config)
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


@pytest.mark.parametrize("others", [[], [Proximal(0.1)], [StlPart()], [FedReconPart()], [EwcPart(0.1)]])
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

    def loss(self, loss, model, node_round):
        return lambda model, batch: 2 * loss(model, batch)


@pytest.mark.parametrize("others", [[], [Proximal(0.0)], [Decomposition(0.0, 0.0)]])
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


#: Every local algorithm with the values that change nothing.
NEUTRAL = [
    Proximal(0.0),
    EwcPart(0.0),
    L2TransferPart(0.0),
    adaptive_updating(0),
    FedVcPart(0),
    FisherPrior(),
    SharedEvaluation(),
]


# -- which parts can be combined -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "need"),
    [
        ((EwcPart(), L2TransferPart()), "the memory of earlier stages"),
        ((EwcPart(), StlPart()), "the memory of earlier stages"),
        ((EwcPart(), FedReconPart()), "the memory of earlier stages"),
        ((L2TransferPart(), Decomposition(0.0, 0.0)), "the memory of earlier stages"),
        ((adaptive_updating(), FedReconPart()), "the phases of training"),
        ((adaptive_updating(), Decomposition(0.0, 0.0)), "the phases of training"),
        ((FedReconPart(), Decomposition(0.0, 0.0)), "the memory of earlier stages and the phases of training"),
        ((Personalisation(1, 0.1), Decomposition(0.0, 0.0)), "the evaluated model"),
        ((FisherPrior(), Decomposition(0.0, 0.0)), "the names of the parameters"),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_parts_that_need_the_same_thing_cannot_be_combined(tmp_path, parts, need, order):
    first, second = parts[::order]
    message = (
        f"the local algorithms {type(first).__name__} and {type(second).__name__} cannot be combined: "
        f"both need {need} for themselves"
    )
    for make in (composed, lambda given: node(tmp_path, *given)):
        with pytest.raises(ValueError, match=f"^{message}$"):
            make([first, Proximal(), second])


def test_a_part_that_is_given_twice_is_an_error():
    with pytest.raises(ValueError, match="the local algorithm Proximal is given twice"):
        composed([Proximal(0.1), EwcPart(), Proximal(0.2)])


def test_parts_that_can_be_combined_keep_their_order():
    assert composed([]) == ()
    assert composed(NEUTRAL[2:][::-1]) == tuple(NEUTRAL[2:][::-1])


# -- neutral parts ---------------------------------------------------------------------------------------------


def history(*parts):
    """All that a node replies, keeps and measures over two stages."""
    client = node(ContextState(RecordDict()), *parts, data=staged(1))
    received, seen = initial(ENCODER), []
    for server_round, stage in ((1, 0), (2, 1), (3, 1)):
        reply = client.train_round(received, at(server_round, stage))
        measured = client.evaluate_round(received, at(server_round, stage)).metrics
        seen.append((reply.metrics, reply.num_examples, dict(reply.records), measured))
        received = reply.arrays
    return seen, received, client.private.load(9)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    st.sets(st.sampled_from(NEUTRAL), min_size=1).filter(
        lambda chosen: not {EwcPart(0.0), L2TransferPart(0.0)} <= chosen
    )
)
def test_neutral_parts_are_plain_training_bit_for_bit(parts):
    seen, arrays, kept = history(*parts)
    expected_seen, expected_arrays, expected_kept = history()
    assert seen == expected_seen
    assert same_bits(arrays, expected_arrays)
    assert same_bits(kept, expected_kept)


# -- order and sums --------------------------------------------------------------------------------------------


def test_a_proximal_term_and_a_fisher_prior_add_both_gradients_exactly(tmp_path):
    """One step of SGD at rate 1 over numbers that have no rounding: θ − g − µ (θ − θ₀) − (Pθ − L), and θ = θ₀."""

    class Still(ToyTask):
        def loss(self, model, batch):
            return 0.0 * super().loss(model, batch)

    start = {name: np.full_like(array, 2.0) for name, array in initial(NAMES[:3]).items()}
    prior = QuadraticPrior.around({name: torch.full(a.shape, 1.5) for name, a in start.items()}, 0.25)
    parts = [Proximal(0.5), FisherPrior("per-sample", prior)]
    two_steps = at(1, optimizer="sgd", learning_rate=1.0, epochs=2, batch_size=6)
    # θ₁ = 2 − ¼ (2 − 1.5) = 1.875, then θ₂ = θ₁ − ¼ (θ₁ − 1.5) − ½ (θ₁ − 2) = 1.84375
    for number, given_parts in enumerate((parts, parts[::-1])):
        client = node(tmp_path / str(number), *given_parts, task=Still())
        trained = client.train_round(start, two_steps).arrays
        assert all((array == 1.84375).all() for array in trained.values())


@pytest.mark.parametrize(
    "parts",
    [
        [Proximal(0.5), EwcPart(0.5)],
        [Proximal(0.5), FisherPrior("per-sample"), L2TransferPart(0.5)],
        [Proximal(0.5), adaptive_updating(2), FedVcPart(4)],
        [EwcPart(0.5), Personalisation(2, 0.1), SharedEvaluation(initial(ENCODER))],
        [StlPart(), Proximal(0.5), FedVcPart(3, 1)],
    ],
)
def test_the_order_does_not_matter(parts):
    expected = history(*parts)
    for order in list(itertools.permutations(parts))[1:]:
        seen, arrays, kept = history(*order)
        assert [s[:2] + s[3:] for s in seen] == [s[:2] + s[3:] for s in expected[0]]
        for found, other in zip(seen, expected[0], strict=True):
            assert found[2].keys() == other[2].keys()
            assert all(same_bits(arrays_of(found[2][name]), arrays_of(other[2][name])) for name in found[2])
        assert same_bits(arrays, expected[1])
        assert same_bits(kept, expected[2])


def test_reading_a_message_reads_every_part():
    config = {"virtual-examples": 2, "correction": 0.5, "mu": 9.0}
    parts = ComposedParts((Proximal(0.1), FedVcPart(), Scaffold(), FisherPrior("per-batch")))
    found = parts.read(config, RecordDict())
    assert found.parts == (Proximal(0.1), FedVcPart(2), Scaffold(0.5), FisherPrior("per-batch"))


# -- queries ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "names"),
    [([], "none"), ([Proximal()], "Proximal"), ([Proximal(), Decomposition(0.0, 0.0)], "Proximal, Decomp")],
)
def test_a_query_that_no_part_knows_is_an_error(tmp_path, parts, names):
    client = node(tmp_path, *parts)
    with pytest.raises(
        ValueError, match=f"query 'weather': no local algorithm of this node answers it; it has: {names}"
    ):
        client.answer("weather", SETTINGS)


# -- names ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Noted(LocalPart):
    """Sends a record under the name that the Fisher exchange uses."""

    def records(self, trained, model, node_round):
        return {"fisher.precision": record_of({})}


def test_two_parts_with_a_record_of_the_same_name_are_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"two local algorithms of this node use the name fisher\.precision"):
        node(tmp_path, FisherPrior("per-sample"), Noted()).train_round(initial(), SETTINGS)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (None, r"local_parts\(\) returned None: it must return a list"),
        ([Proximal], r"local_parts\(\) returned <class .*Proximal'>: each must be an object"),
        ([type("Bare", (LocalPart,), {})()], r"Bare must have the decorator @dataclass"),
    ],
)
def test_what_is_no_part_is_refused(parts, said):
    with pytest.raises(ValueError, match=said):
        composed(parts)


def test_a_hook_that_returns_the_wrong_kind_is_named_without_the_value():
    @dataclass(frozen=True)
    class Forgetful(LocalPart):
        def outgoing(self, model, node_round):
            pass

        def prior(self, shared, model, node_round):
            return torch.ones(1)

    parts = ComposedParts((Forgetful(),))
    with pytest.raises(TypeError, match=r"^Forgetful.outgoing returned None: it must return Mapping$"):
        parts.outgoing(None, None)
    with pytest.raises(TypeError, match=r"^Forgetful.prior returned Tensor: it must return QuadraticPrior or None$"):
        parts.prior({}, None, None)


def test_a_reply_is_no_copy_of_the_model():
    model = torch.nn.Linear(2, 1)
    (name, array), _ = ComposedParts(()).outgoing(model, SimpleNamespace(received=["weight", "bias"])).items()
    assert name == "weight"
    assert array.ctypes.data == model.weight.data_ptr()
