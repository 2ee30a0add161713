"""Local parts together on one node: which can be combined, in which order, and neutral ones as plain training."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from fedapps.clients.composed_parts import ComposedParts
from fedapps.clients.local_part import LocalPart, composed
from fedapps.clients.parts.adaptive_updating import AdaptiveUpdating
from fedapps.clients.parts.decomposition import Decomposition
from fedapps.clients.parts.earlier_stages import Ewc, FreshStages, L2Transfer
from fedapps.clients.parts.fisher_exchange import FisherPrior
from fedapps.clients.parts.personalisation import Personalisation
from fedapps.clients.parts.proximal import Proximal
from fedapps.clients.parts.reconstruction import Reconstruction
from fedapps.clients.parts.shared_evaluation import SharedEvaluation
from fedapps.clients.parts.virtual_client import VirtualClient
from fedapps.clients.penalties import QuadraticPrior
from fedapps.clients.state import ContextState
from flwr.app import RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_nodes import NAMES, SETTINGS, at, initial, node, staged
from toys import ToyTask, arrays_of, record_of, same_bits

ENCODER = NAMES[:1]
#: Every local algorithm with the values that change nothing.
NEUTRAL = [
    Proximal(0.0),
    Ewc(0.0),
    L2Transfer(0.0),
    AdaptiveUpdating(0),
    VirtualClient(0),
    FisherPrior(),
    Personalisation(),
    SharedEvaluation(),
]


# -- which parts can be combined -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "need"),
    [
        ((Ewc(), L2Transfer()), "the memory of earlier stages"),
        ((Ewc(), FreshStages()), "the memory of earlier stages"),
        ((Ewc(), Reconstruction()), "the memory of earlier stages"),
        ((L2Transfer(), Decomposition()), "the memory of earlier stages"),
        ((AdaptiveUpdating(), Reconstruction()), "the phases of training"),
        ((AdaptiveUpdating(), Decomposition()), "the phases of training"),
        ((Reconstruction(), Decomposition()), "the memory of earlier stages and the phases of training"),
        ((Personalisation(), Decomposition()), "the evaluated model"),
        ((FisherPrior(), Decomposition()), "the names of the parameters"),
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
        composed([Proximal(0.1), Ewc(), Proximal(0.2)])


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
@given(st.sets(st.sampled_from(NEUTRAL), min_size=1).filter(lambda chosen: not {Ewc(0.0), L2Transfer(0.0)} <= chosen))
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
        [Proximal(0.5), Ewc(0.5)],
        [Proximal(0.5), FisherPrior("per-sample"), L2Transfer(0.5)],
        [Proximal(0.5), AdaptiveUpdating(2), VirtualClient(4)],
        [Ewc(0.5), Personalisation(True, 2, 0.1), SharedEvaluation(initial(ENCODER))],
        [FreshStages(), Proximal(0.5), VirtualClient(3, 1)],
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
    config = {"proximal": 0.5, "adapt-epochs": 2, "epochs": 9}
    found = ComposedParts((Proximal(), AdaptiveUpdating(), FisherPrior("per-batch"))).read(config, RecordDict())
    assert found.parts == (Proximal(0.5), AdaptiveUpdating(2), FisherPrior("per-batch"))


# -- queries ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "names"), [([], "none"), ([Proximal()], "Proximal"), ([Proximal(), Decomposition()], "Proximal, Decomp")]
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
