"""Local training plans, against steps worked out by hand, and the learning rate that falls inside them."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from fedapps.clients.arrays import get_arrays
from fedapps.clients.penalties import QuadraticPrior
from fedapps.clients.settings import LocalTraining
from fedapps.clients.training import Phase, Plateau, run_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau
from toys import ToyModel, ToyTask, same_bits
from training_plans import DATA, TASK, Scalar, phase, scalar_training, toy_model, train

from fedapps.base.errors import DivergedError

# -- steps by hand ---------------------------------------------------------------------------------------------


def test_momentum_begins_at_zero_in_each_phase():
    model, once = Scalar(), phase(optimizer="sgd", momentum=0.5)
    scalar_training(model, once)  # gradients 4, 2.4: 1 - .1 * 4 = .6, then .6 - .1 * (2.4 + .5 * 4) = .16
    assert model.w.item() == pytest.approx(0.16)
    scalar_training(model, phase(optimizer="sgd", momentum=0.5, epochs=1))  # .16 - .1 * .64
    assert model.w.item() == pytest.approx(0.096)


def test_a_step_of_its_own_can_update_as_often_as_it_needs_and_has_the_rate():
    rates = []

    def step(model, batch, update):
        rates.append(update.rate)
        first = update(2 * (model.w**2).sum())
        update(2 * (model.w**2).sum())
        return first

    model = Scalar()
    trained = scalar_training(model, phase(optimizer="sgd", linear_decay=True, step=step))
    assert rates == pytest.approx([0.1, 0.05])
    assert model.w.item() == pytest.approx(0.6**2 * 0.8**2)
    assert (trained.steps, trained.loss) == (2, pytest.approx(2 * 0.36**2))


def test_two_steps_of_sgd_by_hand():
    model = Scalar(1.0)
    trained = scalar_training(model, phase(optimizer="sgd"))  # w ← w − 0.1 · 4 w, twice
    assert model.w.item() == pytest.approx(0.36)
    assert (trained.steps, trained.loss) == (2, pytest.approx(0.5 * 4 * 0.6**2))  # of the last epoch


def test_a_prior_adds_its_gradient():
    model = Scalar(1.0)
    prior = QuadraticPrior.around({"w": torch.tensor([3.0])}, 2.0)
    scalar_training(model, phase(optimizer="sgd", epochs=1, prior=prior))
    assert model.w.item() == pytest.approx(1 - 0.1 * (4 * 1 + 2 * (1 - 3)))


@pytest.mark.parametrize(
    ("name", "reference"), [("adamw", torch.optim.AdamW), ("adam", torch.optim.Adam), ("rmsprop", torch.optim.RMSprop)]
)
def test_weight_decay_is_that_of_torchs_optimizer(name, reference):
    mine, theirs = Scalar(1.0), Scalar(1.0)
    scalar_training(mine, phase(optimizer=name, epochs=3, weight_decay=0.3))
    optimizer = reference(theirs.parameters(), lr=0.1, weight_decay=0.3)
    for _ in range(3):
        optimizer.zero_grad()
        (2 * theirs.w**2).sum().backward()
        optimizer.step()
    assert mine.w.item() == pytest.approx(theirs.w.item(), rel=1e-6)


STEPS = """
import sys
import torch
from fedapps.clients.settings import LocalTraining
from fedapps.clients.training import Phase, run_plan
from fedapps.tasks.images.networks import check_network
from fedapps.tasks.images.options import Options

drawn = torch.get_rng_state()
options = Options(dataset="cifar10", model="lenet")
check_network(options, options.layout())
assert torch.equal(torch.get_rng_state(), drawn)
for name in ("adam", "adamw", "rmsprop", "sgd"):
    training = LocalTraining(optimizer=name, steps=2)
    model, batch = torch.nn.Linear(2, 1), {"x": torch.ones(3, 2)}
    run_plan(model, [Phase(training)], lambda size: iter([batch]), lambda net, batch: net(batch["x"]).mean())
print([name for name in ("torch._dynamo", "sympy", "matplotlib") if name in sys.modules])
"""


@pytest.mark.slow
@pytest.mark.subprocesses
def test_no_optimizer_and_no_check_of_a_network_imports_torchs_compiler():
    """Its import takes as long as that of torch."""
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"clip_norm": -1.0}, r"clip_norm = -1\.0: must be above 0, or 0 for no clipping"),
        ({"clip_norm": float("nan")}, "clip_norm = nan"),
        ({"linear_decay": True, "plateau": Plateau(1, 0.5, 0.0, 0.1)}, "linear_decay = True: must be false with a"),
    ],
)
def test_impossible_phases_are_errors(changes, told):
    with pytest.raises(ValueError, match=told):
        phase(**changes)


# -- length ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({"epochs": 3}, 6),  # 6 examples in batches of 4 are 2 batches
        ({"epochs": 3, "batch_size": 6}, 3),
        ({"epochs": 3, "steps": 5}, 5),
        ({"epochs": 0, "steps": 1}, 1),
        ({"epochs": 0}, 0),
    ],
)
def test_epochs_and_steps(changes, steps):
    model = toy_model()
    trained, arrays = train(model, phase(**changes))
    assert trained.steps == steps
    assert int(arrays["passes"]) == steps


def test_as_many_steps_as_batches_are_an_epoch():
    assert same_bits(train(toy_model(), phase(epochs=2))[1], train(toy_model(), phase(steps=4))[1])


def test_steps_without_a_batch_are_an_error():
    with pytest.raises(ValueError, match="no training batches"):
        run_plan(toy_model(), [phase(steps=3)], lambda batch_size: iter(()), TASK.loss)


# -- which parameters ------------------------------------------------------------------------------------------


def test_what_is_not_trainable_is_frozen_exactly():
    start = get_arrays(toy_model(), toy_model().state_dict())
    model = toy_model()
    _, arrays = train(model, phase(trainable=["head.*"]))
    assert arrays["encoder.weight"].tobytes() == start["encoder.weight"].tobytes()
    for name in ("head.weight", "head.bias"):
        assert (arrays[name] != start[name]).all()
    assert model.encoder.weight.grad is None  # no gradient was worked out for nothing
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_phases_follow_one_another():
    both = train(toy_model(), phase(trainable=["head.*"]), phase(trainable=["encoder.*"], epochs=1))
    assert both[0].steps == 6
    start = get_arrays(toy_model(), toy_model().state_dict())
    assert all((both[1][name] != start[name]).all() for name in ("encoder.weight", "head.weight", "head.bias"))
    heads_only = train(toy_model(), phase(trainable=["head.*"]))[1]
    assert both[1]["head.weight"].tobytes() == heads_only["head.weight"].tobytes()


def test_a_phase_may_train_on_other_examples():
    model = Scalar(0.0)

    def stream(target):
        return lambda batch_size: iter([{"t": torch.tensor(target)}])

    run_plan(
        model,
        [phase(optimizer="sgd", epochs=1, epoch=stream(5.0)), phase(optimizer="sgd", epochs=1)],
        stream(-1.0),
        lambda net, batch: 0.5 * ((net.w - batch["t"]) ** 2).sum(),
    )
    assert model.w.item() == pytest.approx(0.5 - 0.1 * 1.5)


def test_no_gradient_of_one_phase_reaches_the_next():
    """Of a frozen parameter no gradient is made, and those of the last step are gone before the next phase's first."""
    first, second = (phase(optimizer="sgd", epochs=1, trainable=t) for t in (["head.*"], ["*"]))
    both = train(toy_model(), first, second)[1]
    torch.manual_seed(7)
    model = toy_model()
    for part in (first, second):
        run_plan(model, [part], lambda size: TASK.batches(DATA, "train", size), TASK.loss)
        model.zero_grad(set_to_none=True)
    assert same_bits(get_arrays(model, model.state_dict()), both)


def test_a_pattern_that_matches_nothing_is_an_error():
    with pytest.raises(ValueError, match=r"trainable = \['tail\.\*'\]: matches no parameter.*encoder\.weight"):
        train(toy_model(), phase(trainable=["tail.*"]))


def test_rates_in_another_shape_than_their_parameter_are_named():
    with pytest.raises(ValueError, match=r"rates: 'encoder\.weight' is \[9\]: must be one number or \[.*\], as the"):
        train(toy_model(), phase(rates={"encoder.weight": torch.zeros(9)}))


def test_an_unknown_optimizer_is_an_error():
    with pytest.raises(ValueError, match=r"optimizer = 'Adam'.*'adam', 'adamw', 'rmsprop' or 'sgd'"):
        train(toy_model(), phase(optimizer="Adam"))


# -- divergence ------------------------------------------------------------------------------------------------


def test_divergence_is_told():
    with pytest.raises(DivergedError, match=r"after 4 steps at learning rate 1e\+30: lower the learning rate"):
        train(toy_model(), phase(optimizer="sgd", learning_rate=1e30))


def test_poisoned_data_are_told():
    with pytest.raises(DivergedError, match="training loss is nan"):
        run_plan(
            toy_model(),
            [phase()],
            lambda batch_size: iter([{"x": torch.zeros(1, 2), "y": torch.full((1, 1), torch.nan)}]),
            TASK.loss,
        )


def test_halved_after_five_stale_epochs_and_again():
    plateau = Plateau(patience=5, factor=0.5, minimum=0.3, learning_rate=1.0)
    rates = []
    for loss in [2.0, 1.0, *[1.0] * 5, *[3.0] * 5, *[3.0] * 5]:
        plateau.epoch_ended(loss)
        rates.append(plateau.learning_rate)
    assert rates == [1.0] * 6 + [0.5] * 5 + [0.3] * 6  # 0.25 is below the minimum


def test_a_lower_loss_starts_the_count_again():
    plateau = Plateau(2, 0.5, 0.0, 1.0)
    for loss in [1.0, 1.5, 0.9, 1.5, 0.8, float("nan")]:
        plateau.epoch_ended(loss)
    assert (plateau.learning_rate, plateau.best, plateau.stale) == (1.0, 0.8, 1)


@settings(deadline=None)
@given(st.lists(st.sampled_from([0.5, 1.0, 1.5, 2.0]), min_size=1, max_size=40), st.integers(1, 4), st.integers(0, 39))
def test_it_is_torchs_schedule_also_across_rounds(losses, patience, cut):
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    reference = ReduceLROnPlateau(optimizer, factor=0.5, patience=patience - 1, threshold=0, min_lr=0.2, eps=0)
    mine = Plateau(patience, 0.5, 0.2, 1.0)
    for index, loss in enumerate(losses):
        if index == cut:
            kept, mine = mine.arrays(), Plateau(patience, 0.5, 0.2, 1.0)
            mine.resume(kept)
        reference.step(loss)
        mine.epoch_ended(loss)
        assert mine.learning_rate == optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("length", [{"epochs": 3}, {"epochs": 1, "steps": 5}])
def test_training_asks_after_every_epoch_and_steps_at_the_new_rate(length):
    task, model, asked = ToyTask(), ToyModel(), []
    data = task.data(1)
    plateau = Plateau(1, 0.0625, 0.0, 1.0)

    def validation_loss():
        asked.append(model.head.bias.item())
        return 1.0

    def linear(net, batch):
        return net.head.bias.sum()  # its gradient is 1: the bias falls by the rate in every step

    model.head.bias.data.zero_()
    training = LocalTraining(learning_rate=9.0, batch_size=3, optimizer="sgd", **length)
    phase = Phase(training, plateau=plateau, validation_loss=validation_loss)
    run_plan(model, [phase], lambda size: task.batches(data, "train", size), linear)
    # two steps an epoch: at 1, then, as the first loss is the best, at 1 again, then at 1/16
    expected = [-2.0, -4.0, -4.125] if "steps" not in length else [-2.0, -4.0, -4.0625]
    np.testing.assert_allclose(asked, expected)


# What makes a step of local training smaller: a clipped gradient, a falling rate, rates per parameter.


# -- the size of the gradient and of the rate ------------------------------------------------------------------


@pytest.mark.parametrize(("clip_norm", "gradient"), [(0.0, 4.0), (3.0, 3.0), (4.5, 4.0)])
def test_the_gradient_is_clipped_to_its_norm(clip_norm, gradient):
    model = Scalar(1.0)
    scalar_training(model, phase(optimizer="sgd", epochs=1, clip_norm=clip_norm))
    assert model.w.item() == pytest.approx(1 - 0.1 * gradient)


def test_the_norm_is_of_all_trainable_parameters_with_the_prior():
    """The loss gives gradient 3, the prior 4 at another parameter: together of norm 5, clipped to 1."""
    model = nn.ParameterDict({"v": torch.tensor(0.0), "w": torch.tensor(0.0), "frozen": torch.tensor(1.0)})
    prior = QuadraticPrior.around({"w": torch.tensor(-4.0)}, 1.0)
    run_plan(
        model,
        [phase(optimizer="sgd", epochs=1, clip_norm=1.0, prior=prior, trainable=["v", "w"], learning_rate=1.0)],
        lambda batch_size: iter([{"x": torch.zeros(1)}]),
        lambda net, batch: 3 * net["v"] + 0 * net["w"] + 1000 * net["frozen"],
    )
    assert [model[name].item() for name in ("v", "w", "frozen")] == [pytest.approx(-0.6), pytest.approx(-0.8), 1.0]


@pytest.mark.parametrize("changes", [{"epochs": 4}, {"epochs": 0, "steps": 4}])
def test_the_rate_falls_linearly_to_zero(changes):
    """Against torch's scheduler: the n-th of n steps still has the rate / n, the next one would have none."""
    model, theirs = Scalar(1.0), Scalar(1.0)
    scalar_training(model, phase(optimizer="sgd", linear_decay=True, **changes))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1.0, end_factor=0.0, total_iters=4)
    for _ in range(4):
        optimizer.zero_grad()
        (2 * theirs.w**2).sum().backward()
        optimizer.step()
        schedule.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0)
    assert model.w.item() == pytest.approx(theirs.w.item(), rel=1e-6)


def test_the_decay_knows_how_many_batches_an_epoch_has():
    """6 examples in batches of 4, 2 epochs: 4 steps, in the order of a phase without decay."""
    seen = []

    def loss(net, batch):
        seen.append(len(batch["x"]))
        return TASK.loss(net, batch)

    def run(**changes):
        torch.manual_seed(7)
        return run_plan(toy_model(), [phase(**changes)], lambda size: TASK.batches(DATA, "train", size), loss)

    assert run(linear_decay=True).steps == run().steps == 4
    assert seen == [4, 2, 4, 2] * 2
    assert train(toy_model(), phase(linear_decay=True, epochs=0))[0].steps == 0


# -- rates -----------------------------------------------------------------------------------------------------


def ones(full):
    return {
        name: torch.ones_like(parameter) if full else torch.ones(())
        for name, parameter in toy_model().named_parameters()
    }


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("full", [False, True], ids=["per tensor", "per parameter"])
def test_rates_of_one_change_no_bit(optimizer, full):
    plain = train(toy_model(), phase(optimizer=optimizer))[1]
    assert same_bits(train(toy_model(), phase(optimizer=optimizer, rates=ones(full)))[1], plain)
    assert same_bits(train(toy_model(), phase(optimizer=optimizer, rates={}))[1], plain)


def test_ones_among_other_rates_change_no_bit():
    """Not even the last one, which ``old + 1 * (new - old)`` would round away."""
    start = torch.linspace(-3, 3, 101)
    rates = {"w": torch.ones(101)}
    rates["w"][0] = 0.3
    ends = []
    for given_rates in (None, rates):
        model = Scalar()
        model.w = nn.Parameter(start.clone())
        scalar_training(model, phase(optimizer="sgd", epochs=1, rates=given_rates), target=0.1)
        ends.append(model.w.detach().numpy())
    assert ends[0][1:].tobytes() == ends[1][1:].tobytes()
    assert ends[0][0] != ends[1][0]


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_rate_of_zero_leaves_a_tensor_untouched(optimizer):
    start = get_arrays(toy_model(), toy_model().state_dict())
    _, arrays = train(toy_model(), phase(optimizer=optimizer, rates={"head.weight": torch.zeros(())}))
    assert arrays["head.weight"].tobytes() == start["head.weight"].tobytes()
    assert (arrays["head.bias"] != start["head.bias"]).all()


@settings(max_examples=25, deadline=None)
@given(
    rate=st.floats(0, 1),
    others=st.lists(st.floats(0, 1), min_size=4, max_size=4),
    optimizer=st.sampled_from(["adam", "sgd"]),
)
def test_a_rate_moves_its_share_of_the_step(rate, others, optimizer):
    rates = {
        "head.weight": torch.tensor(rate, dtype=torch.float64),
        "encoder.weight": torch.tensor(others, dtype=torch.float64).reshape(2, 2),
    }
    start = get_arrays(toy_model(), toy_model().state_dict())
    full = train(toy_model(), phase(steps=1, optimizer=optimizer))[1]
    part = train(toy_model(), phase(steps=1, optimizer=optimizer, rates=rates))[1]
    for name, scale in rates.items():
        moved = start[name] + scale.numpy() * (full[name].astype(float) - start[name])
        np.testing.assert_allclose(part[name], moved, rtol=1e-6, atol=1e-7)
    assert part["head.bias"].tobytes() == full["head.bias"].tobytes()
