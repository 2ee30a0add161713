"""Models made of parts: composition and penalties by hand and against autograd, and what a stage begins with."""

from math import ceil, log

import numpy as np
import pytest
import torch
from fedapps.clients.decomposition import DecomposedModel, Drift, Layout, Parts, PartsPrior, composed, unit_axes
from fedapps.clients.settings import LocalTraining
from fedapps.clients.training import Phase, run_phase
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from toys import ToyModel

SIZES = st.integers(1, 4)


def network(inputs, hidden, outputs, seed=0):
    """Axes of both kinds: rows of a linear map, columns of a transposed convolution."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(inputs, hidden), nn.Conv1d(hidden, outputs, 2), nn.ConvTranspose1d(outputs, hidden + 5, 1)
        ).double()


def parts_of(layout, stages, knowledge, seed):
    """Random parts after some stages."""
    rng = torch.Generator().manual_seed(seed)
    n, u, o = len(layout.unit_of), len(layout.layer_of_unit), sum(s.numel() for s in layout.own.values())

    def draw(*shape):
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    return Parts(
        tuple(range(stages)), draw(n), draw(stages, n), draw(stages, u), draw(stages, o), draw(stages - 1, n),
        draw(knowledge, n), draw(knowledge, len(layout.weights)),
    )  # fmt: skip


def flat_of(layout, model):
    named = dict(model.named_parameters())
    return tuple(layout.flat(shapes, named) for shapes in (layout.weights, layout.own))


# -- the layout ------------------------------------------------------------------------------------------------


def test_a_layout_by_hand():
    layout = Layout.of(ToyModel())  # weights [2, 2] and [1, 2], one bias
    assert layout.unit_of.tolist() == [0, 0, 1, 1, 2, 2]
    assert layout.layer_of.tolist() == [0, 0, 0, 0, 1, 1]
    assert layout.layer_of_unit.tolist() == [0, 0, 1]
    assert layout.among(["head.weight"]).tolist() == [False] * 4 + [True] * 2
    assert {n: t.tolist() for n, t in layout.by_weight(torch.tensor([1, 2, 3])).items()} == {
        "encoder.weight": [[1], [2]],
        "head.weight": [[3]],
    }


def test_frozen_parameters_are_no_part_of_it():
    model = ToyModel()
    model.encoder.requires_grad_(False)
    assert Layout.of(model).weights.keys() == {"head.weight"}


def test_units_lie_along_the_axis_of_the_bias():
    assert unit_axes(network(3, 4, 2)) == {"0.weight": 0, "1.weight": 0, "2.weight": 1}
    # A square weight is read as the others of its class, which for a transposed convolution is not torch's first axis.
    square = nn.Sequential(nn.ConvTranspose1d(2, 3, 1), nn.ConvTranspose1d(3, 3, 1), nn.Linear(2, 2))
    assert unit_axes(square) == {"0.weight": 1, "1.weight": 1, "2.weight": 0}


@settings(deadline=None, max_examples=30)
@given(SIZES, SIZES, SIZES)
def test_splitting_what_was_made_flat_changes_nothing(inputs, hidden, outputs):
    model = network(inputs, hidden, outputs)
    layout = Layout.of(model)
    weights, own = flat_of(layout, model)
    again = {**layout.split(layout.weights, weights), **layout.split(layout.own, own)}
    named = dict(model.named_parameters())
    assert again.keys() == named.keys()
    assert all(torch.equal(again[name], parameter) for name, parameter in named.items())


@settings(deadline=None, max_examples=60)
@given(SIZES, SIZES, st.floats(0.01, 1), st.integers(0, 99))
def test_the_strongest_units_of_every_weight_are_chosen(hidden, outputs, share, seed):
    layout = Layout.of(network(2, hidden, outputs))
    mask = torch.randn(len(layout.layer_of_unit), generator=torch.Generator().manual_seed(seed))
    chosen = layout.strongest(mask, share)
    for layer in range(len(layout.weights)):
        here = layout.layer_of_unit == layer
        sent, left = mask[here & chosen].abs(), mask[here & ~chosen].abs()
        assert len(sent) == ceil(share * int(here.sum()) - 1e-9)
        assert not len(left) or sent.min() >= left.max()


def test_an_exact_share_is_not_rounded_up():
    layout = Layout.of(nn.Linear(3, 10))
    assert int(layout.strongest(torch.arange(10.0), 0.7).sum()) == 7  # though 0.7 * 10 may be above 7


@pytest.mark.parametrize("share", [0.0, 1.5, float("nan")])
def test_a_share_that_makes_no_sense_is_an_error(share):
    layout = Layout.of(nn.Linear(3, 10))
    with pytest.raises(ValueError, match=f"mask-share = {share}: must be above 0 and at most 1"):
        layout.strongest(torch.zeros(10), share)


def test_a_model_that_cannot_be_decomposed_is_an_error():
    with pytest.raises(ValueError, match="the model has 0 parameters of two or more dimensions"):
        Layout.of(nn.LayerNorm(3))
    with pytest.raises(ValueError, match=r"of the types torch\.float32, torch\.float64"):
        Layout.of(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1).double()))


# -- the parts -------------------------------------------------------------------------------------------------


def test_the_composition_by_hand():
    """Two units of two inputs, σ(log 3) = 3/4 and σ(0) = 1/2, one lender with α = 2."""
    layout = Layout.of(nn.Linear(2, 2))
    parts = Parts(
        (0,),
        base=torch.tensor([4.0, 8.0, 2.0, 6.0]),
        adaptive=torch.tensor([[1.0, 0.0, 0.0, -1.0]]),
        mask=torch.tensor([[log(3), 0.0]]),
        own=torch.zeros(1, 2),
        old=torch.zeros(0, 4),
        knowledge=torch.tensor([[0.0, 1.0, 0.0, 0.5]]),
        alpha=torch.tensor([[2.0]]),
    )
    np.testing.assert_allclose(parts.weights(layout, 0), [4, 8, 1, 3], rtol=1e-6)


@settings(deadline=None, max_examples=30)
@given(SIZES, SIZES, st.integers(0, 3), st.integers(0, 99))
def test_every_stage_begins_at_the_base(hidden, outputs, lenders, seed):
    model = network(2, hidden, outputs)
    layout = Layout.of(model)
    base, own = flat_of(layout, model)
    first = Parts.first(layout, 0, base, own)
    np.testing.assert_allclose(first.weights(layout, 0), base, rtol=1e-12)
    later = parts_of(layout, 2, lenders, seed)
    begun = later.begin(layout, 2, base)  # which the node has received
    np.testing.assert_allclose(begun.weights(layout, 2), base, rtol=1e-12)
    assert torch.equal(begun.own[2], later.own[1])
    lent = begun.borrow(layout, torch.ones(lenders, len(base), dtype=base.dtype))
    assert torch.equal(lent.weights(layout, 2), begun.weights(layout, 2))  # at first nothing is borrowed


@settings(deadline=None, max_examples=30)
@given(SIZES, SIZES, st.integers(0, 3), st.integers(0, 99))
def test_a_stage_that_is_over_keeps_its_model_and_is_held_at_it(hidden, outputs, lenders, seed):
    layout = Layout.of(network(2, hidden, outputs))
    parts = parts_of(layout, 2, lenders, seed)
    begun, elsewhere = (parts.begin(layout, 7, base) for base in (parts.base, parts.base + 1))
    assert begun.stages == (0, 1, 7)
    for index in range(2):
        np.testing.assert_allclose(begun.weights(layout, index), parts.weights(layout, index), atol=1e-12)
        for each in (begun, elsewhere):
            np.testing.assert_allclose(each.old[index], parts.weights(layout, index), atol=1e-12)
    assert [begun.index(stage) for stage in (0, 1, 7, 3)] == [0, 1, 2, 2]


def test_parts_survive_being_kept():
    layout = Layout.of(network(2, 3, 2))
    parts = parts_of(layout, 3, 2, 0)
    again = Parts.read(parts.arrays())
    assert again.stages == parts.stages
    for name, array in parts.arrays().items():
        np.testing.assert_array_equal(again.arrays()[name], array)
    assert Parts.read({}) is None


# -- what holds them -------------------------------------------------------------------------------------------


def model_of(parts, layout, plain):
    return DecomposedModel(plain, layout, parts)


def squares(model, batch):
    return model(batch["x"]).square().sum()


def gradients(model, prior):
    """What a prior alone adds, of the parameters that it moves."""
    named = {name: p for name, p in model.named_parameters() if not name.startswith("plain.")}
    for name, parameter in named.items():
        parameter.grad = None if name.startswith("past_") else torch.zeros_like(parameter)
    prior.add_gradient(named)
    return {name: p.grad for name, p in named.items() if p.grad is not None and bool((p.grad != 0).any())}


def test_the_penalties_by_hand():
    """One weight w = [2], m_1 = 0, A_1 = 3, once θ_1 = 1: the change is 2/2 + 3 − 1 = 3."""
    plain = nn.Linear(1, 1).double()
    layout = Layout.of(plain)
    zero = torch.zeros(0, dtype=torch.float64)
    parts = Parts(
        (0, 1),
        base=torch.tensor([2.0]).double(),
        adaptive=torch.tensor([[3.0], [-5.0]]).double(),
        mask=torch.tensor([[0.0], [0.7]]).double(),
        own=torch.zeros(2, 1).double(),
        old=torch.tensor([[1.0]]).double(),
        knowledge=zero.view(0, 1),
        alpha=zero.view(0, 1),
    )
    # d/dB = 2·½·3·σ = 1.5, d/dA = 3 and the sign of A_1, d/dm = 3·B·σ(1 − σ) = 1.5; then the signs of A_2 and m_2.
    expected = {"base": 1.5, "past_adaptive": 3.1, "adaptive": -0.1, "mask": 0.2}
    for masks, further in ((True, {"past_mask": 1.5}), (False, {})):
        drift = Drift(0.5, layout, parts.old, l1=0.1, masks=masks)
        found = gradients(model_of(parts, layout, plain), PartsPrior({}, {}, {"adaptive": 0.1, "mask": 0.2}, drift))
        assert {name: float(gradient) for name, gradient in found.items()} == pytest.approx(expected | further)


@settings(deadline=None, max_examples=40)
@given(SIZES, SIZES, st.integers(2, 4), st.integers(0, 99))
def test_the_drift_has_the_gradient_of_autograd(hidden, outputs, stages, seed):
    plain = network(2, hidden, outputs)
    layout = Layout.of(plain)
    parts = parts_of(layout, stages, 1, seed)
    base, adaptive, mask = (t.clone().requires_grad_() for t in (parts.base, parts.adaptive[:-1], parts.mask[:-1]))
    changes = composed(layout, base, mask, adaptive) - parts.old
    (0.3 * changes.square().sum() + 0.2 * adaptive.abs().sum()).backward()
    drift = Drift(0.3, layout, parts.old, l1=0.2)
    found = gradients(model_of(parts, layout, plain), PartsPrior({}, {}, drift=drift))
    for name, tensor in {"base": base, "past_adaptive": adaptive, "past_mask": mask}.items():
        np.testing.assert_allclose(found[name], tensor.grad, atol=1e-9)


@pytest.mark.parametrize("clip_norm", [0.0, 0.01])
@pytest.mark.parametrize("name", ["adam", "adamw", "rmsprop", "sgd"])
def test_weight_decay_does_not_wear_earlier_stages_away(name, clip_norm):
    plain = network(2, 3, 1)
    layout = Layout.of(plain)
    before = parts_of(layout, 3, 1, 0)
    parts = before.begin(layout, 3, before.base)
    model = model_of(parts, layout, plain)
    base, *past = (t.clone() for t in (parts.base, parts.adaptive[:-1], parts.mask[:-1]))
    settings = LocalTraining(steps=3, learning_rate=0.1, optimizer=name, weight_decay=0.2, clip_norm=clip_norm)
    phase = Phase(settings, prior=PartsPrior({}, {}, drift=Drift(0.0, layout, parts.old)))
    run_phase(model, phase, lambda size: iter([{}]), lambda model, batch: (model.base + model.adaptive).sum())
    assert not torch.equal(model.base, base)
    for found, before in zip((model.past_adaptive, model.past_mask), past, strict=True):
        np.testing.assert_allclose(found.detach(), before, atol=1e-7)


@settings(deadline=None, max_examples=30)
@given(SIZES, SIZES, st.integers(0, 2), st.integers(0, 99))
def test_a_stage_begins_without_drift(hidden, outputs, lenders, seed):
    plain = network(2, hidden, outputs)
    layout = Layout.of(plain)
    before = parts_of(layout, 3, lenders, seed)
    parts = before.begin(layout, 3, before.base)
    drift = Drift(2.0, layout, parts.old)
    assert not gradients(model_of(parts, layout, plain), PartsPrior({}, {}, drift=drift))


@settings(deadline=None, max_examples=20)
@given(SIZES, SIZES, st.integers(0, 3), st.integers(0, 99))
def test_the_loss_is_that_of_the_composed_model_and_so_is_its_gradient(hidden, outputs, lenders, seed):
    plain = nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, outputs)).double()
    layout = Layout.of(plain)
    parts = parts_of(layout, 2, lenders, seed)
    model, batch = model_of(parts, layout, plain), {"x": torch.ones(5, 3, dtype=torch.float64)}
    loss = model.loss(batch, squares)
    loss.backward()
    assert model.past_adaptive.grad is model.past_mask.grad is None
    whole = model.at(1)
    assert squares(whole, batch).item() == pytest.approx(loss.item())
    # ∂θ/∂A = 1, ∂θ/∂B = σ(m) and ∂θ/∂α is the sum over the layer of ∂θ times the knowledge.
    whole.requires_grad_(True)
    squares(whole, batch).backward()
    theta = layout.flat(layout.weights, {name: p.grad for name, p in whole.named_parameters()})
    np.testing.assert_allclose(model.adaptive.grad, theta, atol=1e-9)
    np.testing.assert_allclose(model.base.grad, theta * torch.sigmoid(parts.mask[-1])[layout.unit_of], atol=1e-9)
    if lenders:
        layers = [(theta * parts.knowledge)[:, layout.layer_of == layer].sum(1) for layer in range(len(layout.weights))]
        np.testing.assert_allclose(model.alpha.grad, torch.stack(layers, dim=1), atol=1e-9)
