"""A node in a Fisher exchange: the precision that it reports, the prior that holds it, plain training without both."""

import numpy as np
import pytest
import torch
from fedapps.clients.base import InitialModels
from fedapps.clients.fisher import diagonal_fisher
from fedapps.clients.penalties import QuadraticPrior
from fedapps.clients.state import ContextState
from fedapps.strategies import BaseStrategy, FisherExchange
from flwr.app import ConfigRecord, RecordDict
from toy_nodes import NAMES, SETTINGS, at, initial, node, nodes_app, staged, steps_by_autograd
from toys import ToyModel, ToyTask, arrays_of, federate, record_of, same_bits

from fedapps.base.seeding import torch_seed
from fedapps.methods.fedcurv import FisherPrior
from fedapps.methods.fedprox import Proximal

pytestmark = pytest.mark.usefixtures("flower_identity")


def prior(precision, anchor, names=NAMES[:3]):
    arrays = {name: torch.full(initial()[name].shape, float(anchor)) for name in names}
    return QuadraticPrior.around(arrays, precision)


def content(precision=None, linear=None, **order):
    records = RecordDict({"fisher": ConfigRecord(order)})
    if precision is not None:
        records["fisher.prior-precision"] = record_of(precision)
    if linear is not None:
        records["fisher.prior-linear"] = record_of(linear)
    return records


def read(message):
    return FisherPrior().read({}, message)


def test_without_a_prior_it_trains_bit_for_bit_as_a_plain_node(tmp_path):
    plain = node(tmp_path / "a").train_round(initial(), SETTINGS)
    for number, part in enumerate((FisherPrior(), FisherPrior("per-sample"))):
        reply = node(tmp_path / str(number), part).train_round(initial(), SETTINGS)
        assert same_bits(reply.arrays, plain.arrays)
        assert reply.metrics == plain.metrics
        assert list(reply.records) == (["fisher.precision"] if number else [])


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_the_prior_and_fedprox_add_up_as_in_autograd(tmp_path, mu):
    settings = at(1, epochs=3, batch_size=6, optimizer="sgd")
    parts = [Proximal(mu), FisherPrior("per-sample", prior(2.0, 1.5))]
    arrays = node(tmp_path / "one", *parts).train_round(initial(), settings).arrays
    assert same_bits(node(tmp_path / "other", *parts[::-1]).train_round(initial(), settings).arrays, arrays)

    def penalty(named, start):
        return sum((2.0 * (p - 1.5) ** 2 + mu * (p - start[n]) ** 2).sum() / 2 for n, p in named.items())

    for name, values in steps_by_autograd(penalty).items():
        np.testing.assert_allclose(arrays[name], values, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("names", [NAMES, ["encoder.weight"], ["passes"]])
@pytest.mark.parametrize("estimator", ["per-sample", "per-batch", "per-batch-scaled"])
def test_the_precision_is_the_fisher_information_at_the_trained_parameters(tmp_path, names, estimator):
    client = node(tmp_path, FisherPrior(estimator))
    reply = client.train_round(initial(names), SETTINGS)
    found = arrays_of(reply.records["fisher.precision"])
    assert sorted(found) == sorted(set(names) - {"passes"})
    # The private parameters of the model are those of this round, too.
    model = ToyTask().build_model()
    kept = client.private.load(before=2) or {}
    model.load_state_dict({n: torch.as_tensor(a) for n, a in {**kept, **reply.arrays}.items()})
    with torch_seed(3, "fisher", 1, "toy-1"):
        batches = list(client.task.batches(client.data, "train", 4))
    expected = diagonal_fisher(model, batches, client.task.loss, estimator)
    for name, array in found.items():
        assert (array.dtype, array.shape) == (reply.arrays[name].dtype, reply.arrays[name].shape)
        np.testing.assert_allclose(array, expected[name].numpy(), rtol=1e-6)
        assert (array >= 0).all()
        assert array.any()


def test_what_is_no_parameter_has_a_precision_of_zero(tmp_path, monkeypatch):
    class Scaled(ToyModel):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(2))

    monkeypatch.setattr(ToyTask, "build_model", lambda self: Scaled())
    monkeypatch.setattr("fedapps.clients.base.initial_models", InitialModels())  # without that of other tests
    received = {**initial(["encoder.weight"]), "scale": np.full(2, 3.0, np.float32)}
    reply = node(tmp_path, FisherPrior("per-sample")).train_round(received, SETTINGS)
    found = arrays_of(reply.records["fisher.precision"])
    assert found["encoder.weight"].any()
    assert same_bits({"scale": found["scale"]}, {"scale": np.zeros(2, np.float32)})


def test_the_precision_changes_nothing_and_repeats(tmp_path):
    plain, client = node(tmp_path / "plain"), node(tmp_path / "fisher", FisherPrior("per-batch"))
    state, records = torch.get_rng_state(), []
    for server_round in (1, 2, 2):  # a repeated round, too
        reply = client.train_round(initial(["encoder.weight"]), at(server_round))
        expected = plain.train_round(initial(["encoder.weight"]), at(server_round))
        assert same_bits(reply.arrays, expected.arrays)
        assert torch.equal(torch.get_rng_state(), state)
        assert same_bits(client.private.load(before=9), plain.private.load(before=9))
        records.append(arrays_of(reply.records["fisher.precision"]))
    assert same_bits(records[1], records[2])
    assert not same_bits(records[0], records[1])


def test_one_by_one_gives_the_same(tmp_path, monkeypatch):
    client, slow = (node(tmp_path, FisherPrior("per-sample")) for _ in range(2))
    monkeypatch.setattr(slow.task, "vectorises", False, raising=False)
    expected = arrays_of(client.train_round(initial(), SETTINGS).records["fisher.precision"])
    found = arrays_of(slow.train_round(initial(), SETTINGS).records["fisher.precision"])
    for name, array in found.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-4, atol=1e-9)


# -- reading a message -----------------------------------------------------------------------------------------


def test_estimator_and_prior_are_read_from_a_message():
    assert read(RecordDict({"arrays": record_of(initial())})) == FisherPrior()
    assert read(content(estimator="per-batch")) == FisherPrior("per-batch")
    part = read(content({"w": np.ones(2)}, {"w": np.zeros(2)}, estimator="per-sample"))
    assert part.received_prior.precision["w"].tolist() == [1, 1]
    assert part.received_prior.linear["w"].tolist() == [0, 0]
    # The next message brings no prior: the one before it does not count.
    assert part.read({}, content(estimator="per-batch")) == FisherPrior("per-batch")


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (content(estimator="exact"), "fisher estimator = 'exact': must be one of 'per-sample', "),
        (content(), "fisher estimator = None"),
        (content({"w": np.ones(1)}, estimator="per-sample"), "must come together"),
        (content(None, {"w": np.ones(1)}, estimator="per-sample"), "must come together"),
    ],
)
def test_a_malformed_message_is_an_error(message, told):
    with pytest.raises(ValueError, match=told):
        read(message)


@pytest.mark.parametrize(
    ("precision", "linear", "told"),
    [
        ({"tail": torch.ones(1)}, {"tail": torch.ones(1)}, "'tail' is not among the received parameters"),
        (
            {"head.bias": torch.ones(2)},
            {"head.bias": torch.ones(1)},
            r"prior-precision: 'head.bias' is \[2\], not \[1\]",
        ),
        ({"head.bias": torch.ones(1)}, {"head.bias": torch.ones(2)}, r"prior-linear: 'head.bias' is \[2\], not \[1\]"),
        ({"head.bias": torch.ones(1)}, {}, "must have the same names"),
    ],
)
def test_a_prior_that_does_not_fit_is_an_error(tmp_path, precision, linear, told):
    client = node(tmp_path, FisherPrior("per-sample", QuadraticPrior(precision, linear)))
    with pytest.raises(ValueError, match=told):
        client.train_round(initial(), SETTINGS)


def test_the_terms_of_the_prior_are_counted_as_static_parameters(tmp_path):
    data = staged(1)
    part = FisherPrior("per-sample", prior(1.0, 0.0, ["encoder.weight"]))
    metrics = node(tmp_path, part, data=data).train_round(initial(), SETTINGS).metrics
    assert (metrics["trainable_parameters"], metrics["static_parameters"]) == (7, 2 * 4)


# -- with the strategy -----------------------------------------------------------------------------------------


def toy_app(priors=None):
    """A ClientApp of toy nodes; ``priors`` collects what each message held the node to."""

    def client_of(partition, message, context):
        settings, part = SETTINGS.with_config(message.content["config"]), read(message.content)
        if priors is not None:
            priors.append(part.received_prior)
        return node(ContextState(context.state), part, data=ToyTask().data(partition)), settings

    return nodes_app(client_of)


def run(strategy, num_nodes, priors=None):
    result = federate(strategy, toy_app(priors), initial(), num_nodes=num_nodes, num_rounds=3)
    assert not strategy.report.refused
    return arrays_of(result.arrays)


@pytest.mark.parametrize("shared", [("*",), ("encoder.*",)])
def test_nodes_are_held_by_what_the_others_published(shared):
    priors = []
    arrays = run(FisherExchange(others_now=0.5, shared=shared), 3, priors)
    assert priors[:3] == [None] * 3
    for held in priors[3:]:
        assert set(held.precision) == (set(NAMES[:3]) if shared == ("*",) else {"encoder.weight"})
        assert all((precision >= 0).all() for precision in held.precision.values())
    assert not same_bits(arrays, run(BaseStrategy(shared=shared), 3))
