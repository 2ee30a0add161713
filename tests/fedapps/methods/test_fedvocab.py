"""FedVocab and its variants as whole runs of nodes that classify made-up texts."""

import glob
from dataclasses import replace

import numpy as np
import pytest
import torch
from fedapps.clients.local_part import NodeRound
from fedapps.clients.penalties import QuadraticPrior
from fedapps.clients.settings import LocalTraining
from fedapps.clients.state import ContextState
from fedapps.clients.training import Phase, Plateau, run_plan
from fedapps.strategies import PartialAggregation
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from small_runs import run_inline
from torch import nn
from toy_nodes import NAMES, SETTINGS, adaptive_updating, at, initial, node, staged
from toys import ToyModel, ToyTask, arithmetic_app, arrays_of, federate, same_bits

from fedapps.base.options import with_values
from fedapps.config.parsing import ConfigError, parse

NODES = 4
SMALL = {
    "task": "text", "num-nodes": NODES, "rounds": 2, "fraction-train": 0.75, "epochs": 1, "batch-size": 8,
    "learning-rate": 0.01, "evaluate-every": 1, "collect-after": 0, "weighting": "num-examples", "name": "run",
    "text.source": "simulated", "text.world-examples": 24, "text.embedding-width": 8, "text.hidden": 8,
    "text.max-length": 12, "text.vocabulary-size": 500, "text.global-examples": 12, "text.dropout": 0.0,
}  # fmt: skip
PUBLISHED = "fedvocab(adapt-before-evaluation=false)"
CHANGED = ["fedvocab(adapt-rate=0.1)", "fedvocab(logit-adjustment=1)", "fedvocab(stateless=true)"]
METHODS = ["fedvocab", PUBLISHED, *CHANGED, "fedavg", "fedavg(logit-adjustment=1)", "fedrecon"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    cache = {"cache-dir": str(tmp_path_factory.mktemp("worlds"))}
    return run_inline(SMALL | cache | {"methods": ",".join(METHODS)}, tmp_path_factory.mktemp("whole"))


def rows(folder, method, phase):
    return [row for row in folder.lines("nodes.jsonl") if (row["method"], row["phase"]) == (method, phase)]


def arrays(folder, method):
    return folder.checkpoints(method).latest().arrays


def states(folder, method):
    """What the nodes keep, by node and round."""
    paths = folder.path.glob(f"nodes/*/{glob.escape(method)}/*/*.safetensors")
    return {(path.parent.name, path.name): load_file(path) for path in paths}


def test_an_evaluation_that_adapts_leaves_training_as_published(whole):
    assert same_bits(arrays(whole, "fedvocab"), arrays(whole, PUBLISHED))
    ours, published = states(whole, "fedvocab"), states(whole, PUBLISHED)
    assert ours.keys() == published.keys() != set()
    assert all(same_bits(kept, published[place]) for place, kept in ours.items())


def test_the_stale_metrics_are_the_published_ones(whole):
    for ours, published in zip(rows(whole, "fedvocab", "evaluate"), rows(whole, PUBLISHED, "evaluate"), strict=True):
        stale = {n.removeprefix("stale."): v for n, v in ours["metrics"].items() if n.startswith("stale.")}
        assert stale == published["metrics"]
    ours, published = (whole.summary()["methods"][method]["final"] for method in ("fedvocab", PUBLISHED))
    for name in ("test.global_accuracy", "test.local_accuracy"):  # with the same means over nodes
        assert ours[f"stale.{name}"] == published[name]
    assert not [name for name in published if name.startswith("stale.")]


def test_the_steps_of_all_phases_and_of_the_last_evaluation_count(whole):
    def final(method):
        return whole.summary()["methods"][method]["final"]["steps_per_node"]

    for method in METHODS:
        training = sum(row["metrics"]["steps"] for row in rows(whole, method, "train"))
        last = [row["metrics"].get("steps.count", 0) for row in rows(whole, method, "evaluate") if row["round"] == 2]
        assert len(last) == NODES
        assert final(method) == pytest.approx((training + sum(last)) / NODES)
    assert final(PUBLISHED) == 2 * final("fedavg")  # an epoch of adaptation before every epoch
    assert final("fedavg") < final(PUBLISHED) < final("fedvocab")


def test_a_variant_differs_from_its_method_and_keeps_what_it_should(whole):
    for method in CHANGED:
        assert not same_bits(arrays(whole, method), arrays(whole, "fedvocab"))
    assert not same_bits(arrays(whole, "fedavg(logit-adjustment=1)"), arrays(whole, "fedavg"))
    assert states(whole, "fedvocab(stateless=true)") == {}
    assert states(whole, "fedvocab(adapt-rate=0.1)").keys() == states(whole, "fedvocab").keys()


def test_in_the_first_round_a_stateless_node_does_what_every_node_does(whole):
    first = [
        [row["metrics"] for row in rows(whole, method, phase) if row["round"] == 1]
        for method in ("fedvocab", "fedvocab(stateless=true)")
        for phase in ("train",)
    ]
    assert first[0] == first[1]


def test_arguments_that_change_nothing_give_the_same_bits(whole, tmp_path):
    changed = "fedvocab(adapt-rate=1.0,logit-adjustment=0.0,stateless=false,adapt-before-evaluation=false)"
    folder = run_inline(SMALL | {"methods": changed, "cache-dir": str(tmp_path)}, tmp_path)
    assert same_bits(arrays(folder, changed), arrays(whole, PUBLISHED))
    assert np.array_equal(
        [row["metrics"]["test.local_accuracy"] for row in rows(folder, changed, "evaluate")],
        [row["metrics"]["test.local_accuracy"] for row in rows(whole, PUBLISHED, "evaluate")],
    )


@pytest.mark.parametrize("argument", ["adapt-epochs=0", "adapt-before-evaluation=false"])
def test_without_adaptation_before_an_evaluation_nothing_can_be_stateless(argument):
    with pytest.raises(ConfigError, match=r"fedvocab\.stateless = true: must be false with adapt-epochs = 0 or"):
        parse(SMALL | {"methods": f"fedvocab(stateless=true,{argument})"})


def test_logits_are_adjusted_for_labels_only():
    with pytest.raises(ConfigError, match=r"fedavg\.logit-adjustment = 1\.0: must be 0 with task 'lqr'"):
        parse({"task": "lqr", "methods": "fedavg(logit-adjustment=1)"})


PARAMETERS = NAMES[:3]
ENCODER = NAMES[:1]
TASK = ToyTask()


def planned(joint, model, received, epochs, rate=1.0):
    """The plan of a round whose only phase would be ``joint``."""
    arrays = {name: np.zeros(()) for name in received}
    node_round = NodeRound(
        TASK, TASK.data(1), SETTINGS, arrays, {}, seed=3, device=torch.device("cpu"), initial_model=ToyModel
    )  # fmt: skip
    return adaptive_updating(epochs, rate).plan([joint], model, TASK.data(1), node_round)


class Product(nn.Module):
    """Loss ½ (a b − 1)²: its gradient is (a b − 1) b at a, and (a b − 1) a at b."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor(2.0))
        self.b = nn.Parameter(torch.tensor(3.0))


def train(model, plan):
    batch = {"x": torch.zeros(1)}
    return run_plan(model, plan, lambda size: iter([batch]), lambda net, _: 0.5 * (net.a * net.b - 1) ** 2)


def joint(**changes):
    training = LocalTraining(epochs=1, learning_rate=0.01, batch_size=1, optimizer="sgd")
    return with_values(Phase(training), changes)


def test_two_phases_by_hand():
    """b is private: it steps twice alone, then both step once, from gradients of that step only."""
    a, b = 2.0, 3.0
    for _ in range(2):
        b -= 0.01 * (a * b - 1) * a
    error = a * b - 1
    a, b = a - 0.01 * error * b, b - 0.01 * error * a
    model = Product()
    trained = train(model, planned(joint(), model, ["a"], 2))
    assert (model.a.item(), model.b.item()) == (pytest.approx(a, rel=1e-6), pytest.approx(b, rel=1e-6))
    assert (trained.steps, trained.loss) == (3, pytest.approx(0.5 * error**2, rel=1e-6))  # the loss of the joint phase


def test_the_moments_start_again():
    """Adam's first step is the learning rate, in either phase: with the moments of the first it would be another."""
    model = Product()
    train(model, planned(joint(optimizer="adam", learning_rate=0.1), model, ["a"], 1))
    assert (model.a.item(), model.b.item()) == (pytest.approx(2 - 0.1), pytest.approx(3 - 0.1 - 0.1))


def test_all_but_the_length_is_that_of_the_joint_phase():
    plateau = Plateau(3, 0.5, 1e-5, 0.1)
    given = joint(steps=7, weight_decay=0.1, clip_norm=2.0, prior=QuadraticPrior({}, {}), plateau=plateau,
                  validation_loss=lambda: 0.0, optimizer="adamw")  # fmt: skip
    first, second = planned(given, ToyModel(), ["encoder.weight"], 3)
    assert second is given
    private = ["head.weight", "head.bias"]
    training = replace(given.training, epochs=3, steps=0, learning_rate=0.1)
    assert first == replace(given, training=training, trainable=private, plateau=None, validation_loss=None)


def test_a_lower_rate_of_adaptation_by_hand():
    """b steps alone at a tenth of the rate; the joint step has the whole rate."""
    a, b = 2.0, 3.0
    b -= 0.1 * 0.01 * (a * b - 1) * a
    error = a * b - 1
    a, b = a - 0.01 * error * b, b - 0.01 * error * a
    model = Product()
    train(model, planned(joint(), model, ["a"], 1, rate=0.1))
    assert (model.a.item(), model.b.item()) == (pytest.approx(a, rel=1e-6), pytest.approx(b, rel=1e-6))


@pytest.mark.parametrize(("received", "epochs"), [(PARAMETERS, 3), (NAMES, 3), ([], 0), (["encoder.weight"], 0)])
def test_without_epochs_or_private_parameters_there_is_one_phase(received, epochs):
    plan = [joint()]
    assert planned(plan[0], ToyModel(), received, epochs) == plan


def test_where_all_is_shared_it_is_fedavg_bit_for_bit(tmp_path):
    plain, adaptive = node(tmp_path / "plain"), node(tmp_path / "adaptive", adaptive_updating(4))
    expected = plain.train_round(initial(), SETTINGS)
    found = adaptive.train_round(initial(), SETTINGS)
    assert same_bits(found.arrays, expected.arrays)
    assert found.metrics == expected.metrics


@settings(max_examples=15, deadline=None)
@given(shared=st.sets(st.sampled_from(PARAMETERS), max_size=2), epochs=st.integers(1, 3))
def test_what_is_shared_is_frozen_and_what_is_private_moves(shared, epochs):
    """With no joint epochs, a round is the adaptation alone."""
    records = ContextState({})
    client = node(records, adaptive_updating(epochs))
    sent = initial(sorted(shared))
    reply = client.train_round(sent, at(1, epochs=0))
    assert same_bits(reply.arrays, sent)
    assert reply.metrics["steps"] == 2 * epochs  # 6 examples in batches of 4
    kept = records.load(2)
    assert sorted(kept) == sorted(set(NAMES) - shared)
    for name in set(PARAMETERS) - shared:
        assert (kept[name] != initial([name])[name]).any()


def test_the_joint_epochs_go_on_from_the_adapted_parameters(tmp_path):
    """Adapting in one round, then training in the next, is one round with both: only the draws of batches differ."""
    whole_batches = {"batch_size": 6, "optimizer": "sgd"}
    sent = initial(["encoder.weight"])
    in_one = node(tmp_path / "one", adaptive_updating(3)).train_round(sent, at(1, **whole_batches))
    node(tmp_path / "two", adaptive_updating(3)).train_round(sent, at(1, epochs=0, **whole_batches))
    in_two = node(tmp_path / "two").train_round(sent, at(2, **whole_batches))
    np.testing.assert_allclose(in_one.arrays["encoder.weight"], in_two.arrays["encoder.weight"], rtol=1e-5)


@pytest.mark.usefixtures("flower_identity")
def test_a_federation_by_hand(tmp_path):
    """Two rounds of FedVocab under PartialAggregation: each node its own head, the encoder the mean of both."""
    sent = initial(ENCODER)

    def member(folder, partition):
        return node(tmp_path / folder / str(partition), adaptive_updating(1), data=TASK.data(partition))

    def work(partition, arrays, config):
        reply = member("federated", partition).train_round(arrays, SETTINGS.with_config(config))
        return reply.arrays, {"num-examples": reply.num_examples, **reply.metrics}

    seen = []
    strategy = PartialAggregation(shared=ENCODER)
    result = federate(strategy, arithmetic_app(work, seen=seen), initial(), num_nodes=2, num_rounds=2)
    assert not strategy.report.refused
    assert all(list(message.content["arrays"]) == ENCODER for message in seen)
    for server_round in (1, 2):
        replies = [member("by hand", partition).train_round(sent, at(server_round)) for partition in (0, 1)]
        mean = np.mean([reply.arrays["encoder.weight"].astype(np.float64) for reply in replies], axis=0)
        sent = {"encoder.weight": mean.astype(np.float32)}
    np.testing.assert_allclose(arrays_of(result.arrays)["encoder.weight"], sent["encoder.weight"], rtol=1e-6)
    kept = [member("federated", partition).private.load(3) for partition in (0, 1)]
    assert all(same_bits(kept[k], member("by hand", k).private.load(3)) for k in (0, 1))
    assert (kept[0]["head.weight"] != kept[1]["head.weight"]).any()


def test_an_evaluation_adapts_by_hand(tmp_path):
    """One step of SGD on the head: the error of (x E' h' + c) to y gives the gradients 2 e' x E' / n and 2 Σ e / n."""
    data = TASK.data(1)
    x, y = (data.splits["train"][name].double().numpy() for name in ("x", "y"))
    encoder, head, bias = (initial()[name].astype(np.float64) for name in PARAMETERS)
    hidden = x @ encoder.T
    error = 2 * (hidden @ head.T + bias - y) / len(x)
    head, bias = head - 0.02 * error.T @ hidden, bias - 0.02 * error.sum(0)
    test = {name: tensor.double().numpy() for name, tensor in data.splits["test"].items()}
    expected = np.square(test["x"] @ encoder.T @ head.T + bias - test["y"]).mean()
    part = adaptive_updating(1, rate=0.4, before_evaluation=True)
    metrics = node(tmp_path, part).evaluate_round(initial(ENCODER), at(1, batch_size=6, optimizer="sgd")).metrics
    assert metrics["test.loss"] == pytest.approx(expected, rel=1e-5)
    assert metrics["steps.count"] == 1


@settings(max_examples=10, deadline=None)
@given(epochs=st.integers(1, 3), rate=st.floats(0.1, 2), rounds=st.integers(0, 2))
def test_adapting_before_an_evaluation_changes_nothing_else(epochs, rate, rounds):
    """The stale metrics are those of a node that does not adapt; both nodes keep and send the same."""
    states = [ContextState({}), ContextState({})]
    plain, adapting = (
        node(state, adaptive_updating(epochs, rate, before))
        for state, before in zip(states, (False, True), strict=True)
    )
    for server_round in range(1, rounds + 1):
        expected = plain.train_round(initial(ENCODER), at(server_round))
        assert same_bits(adapting.train_round(initial(ENCODER), at(server_round)).arrays, expected.arrays)
        adapting.evaluate_round(initial(ENCODER), at(server_round))
    stale = plain.evaluate_round(initial(ENCODER), at(rounds)).metrics
    found = adapting.evaluate_round(initial(ENCODER), at(rounds)).metrics
    assert {name: found[f"stale.{name}"] for name in stale} == stale
    assert found["test.loss"] != stale["test.loss"]
    assert found["steps.count"] == 2 * epochs  # 6 examples in batches of 4
    kept = [state.load(99) for state in states]
    assert kept[0] == kept[1] if rounds == 0 else same_bits(*kept)


def test_an_evaluation_without_private_parameters_or_epochs_is_plain(tmp_path):
    plain = node(tmp_path / "plain").evaluate_round(initial(), SETTINGS).metrics
    shared = node(tmp_path / "shared", adaptive_updating(2, before_evaluation=True))
    found = shared.evaluate_round(initial(), SETTINGS).metrics
    assert {name: value for name, value in found.items() if not name.startswith("stale.")} == plain
    idle = node(tmp_path / "idle", adaptive_updating(0, before_evaluation=True))
    plain = node(tmp_path / "private").evaluate_round(initial(ENCODER), SETTINGS).metrics
    assert idle.evaluate_round(initial(ENCODER), SETTINGS).metrics == plain


def test_an_evaluation_adapts_at_the_rate_of_the_plateau(tmp_path):
    client = node(tmp_path, adaptive_updating(1, before_evaluation=True), data=staged(1))
    no_steps = {"plateau_patience": 1, "plateau_factor": 1e-30, "min_learning_rate": 0.0, "epochs": 3}
    client.train_round(initial(ENCODER), at(1, learning_rate=1e-30, **no_steps))
    found = client.evaluate_round(initial(ENCODER), at(1)).metrics
    assert found["test.loss"] == found["stale.test.loss"]


def test_a_plateau_gives_the_first_phase_its_rate_and_counts_the_joint_epochs_alone(tmp_path):
    """The first loss of a stage is the best; at a rate of 1e-30 every later epoch of the joint phase is stale."""
    client = node(tmp_path, adaptive_updating(3), data=staged(1))
    no_steps = {"plateau_patience": 9, "learning_rate": 1e-30, "min_learning_rate": 0.0, "epochs": 3}
    client.train_round(initial(ENCODER), at(1, **no_steps))
    assert client.private.load(2)["memory.plateau"][2] == 3 - 1
