"""A node in a Fisher exchange: what it publishes, what holds it, and that it is a plain node without."""

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, RecordDict
from toy_nodes import NAMES, initial, nodes_app
from toys import ToyTask, arrays_of, federate, record_of, same_bits

from clients.base import FederatedClient
from clients.fisher import diagonal_fisher
from clients.fisher_client import FisherClient, FisherOrder
from clients.penalties import QuadraticPrior
from clients.round_settings import RoundSettings
from clients.state import ContextState, DiskState
from strategies.base import BaseStrategy
from strategies.fisher_exchange import FisherExchange
from tasks.seeding import torch_seed

pytestmark = pytest.mark.usefixtures("flower_identity")
ORDERS = RoundSettings(epochs=2, learning_rate=0.05, batch_size=4)


def node(folder, order, kind=FisherClient, **more):
    task = ToyTask()
    given = {} if kind is FederatedClient else {"order": order, **more}
    return kind(task, task.data(1), DiskState(folder), ORDERS, seed=3, device=torch.device("cpu"), **given)


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


def test_an_order_without_prior_trains_bit_for_bit_as_the_parent(tmp_path):
    plain = node(tmp_path / "a", None, FederatedClient).train_round(initial(), ORDERS)
    for number, order in enumerate((FisherOrder(), FisherOrder("per-sample"))):
        client = node(tmp_path / str(number), order)
        reply = client.train_round(initial(), ORDERS)
        assert same_bits(reply.arrays, plain.arrays)
        assert reply.metrics == plain.metrics
        assert list(client.publish(reply, ORDERS)) == (["fisher.precision"] if number else [])


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_the_prior_and_fedprox_add_up_as_in_autograd(tmp_path, mu):
    settings = RoundSettings(epochs=3, learning_rate=0.05, batch_size=6, optimizer="sgd", proximal=mu)
    held = FisherOrder("per-sample", prior(2.0, 1.5))
    arrays = node(tmp_path, held).train_round(initial(), settings).arrays

    task = ToyTask()
    model, batch = task.build_model(), task.data(1).splits["train"]  # one batch holds all of it
    model.load_state_dict({name: torch.from_numpy(array) for name, array in initial().items()})
    named = dict(model.named_parameters())
    start = {name: parameter.detach().clone() for name, parameter in named.items()}
    for _ in range(3):
        penalty = sum((2.0 * (p - 1.5) ** 2 + mu * (p - start[n]) ** 2).sum() / 2 for n, p in named.items())
        gradients = torch.autograd.grad(task.loss(model, batch) + penalty, list(named.values()))
        with torch.no_grad():
            for parameter, gradient in zip(named.values(), gradients, strict=True):
                parameter -= 0.05 * gradient
    for name, parameter in named.items():
        np.testing.assert_allclose(arrays[name], parameter.detach().numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("names", [NAMES, ["encoder.weight"], ["passes"]])
@pytest.mark.parametrize("estimator", ["per-sample", "per-batch", "per-batch-scaled"])
def test_the_precision_is_the_fisher_information_at_the_trained_parameters(tmp_path, names, estimator):
    client = node(tmp_path, FisherOrder(estimator))
    reply = client.train_round(initial(names), ORDERS)
    found = client.precision(reply, ORDERS)
    assert sorted(found) == sorted(set(names) - {"passes"})
    # The private rest of the model is that of this round, too.
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


def test_publishing_changes_nothing_and_repeats(tmp_path):
    client = node(tmp_path, FisherOrder("per-batch"))
    reply = client.train_round(initial(["encoder.weight"]), ORDERS)
    before = client.private.load(before=2)
    state = torch.get_rng_state()
    first = client.precision(reply, ORDERS)
    assert torch.equal(torch.get_rng_state(), state)
    assert same_bits(client.precision(reply, ORDERS), first)
    assert same_bits(client.private.load(before=2), before)


def test_one_by_one_gives_the_same(tmp_path, monkeypatch):
    client, slow = (node(tmp_path, FisherOrder("per-sample")) for _ in range(2))
    monkeypatch.setattr(slow.task, "vectorises", False, raising=False)
    reply = client.train_round(initial(), ORDERS)
    quick = client.precision(reply, ORDERS)
    for name, array in slow.precision(reply, ORDERS).items():
        np.testing.assert_allclose(array, quick[name], rtol=1e-4, atol=1e-9)


# -- reading a message -----------------------------------------------------------------------------------------


def test_an_order_is_read_from_a_message():
    assert FisherOrder.read(RecordDict({"arrays": record_of(initial())})) == FisherOrder()
    assert FisherOrder.read(content(estimator="per-batch")) == FisherOrder("per-batch")
    order = FisherOrder.read(content({"w": np.ones(2)}, {"w": np.zeros(2)}, estimator="per-sample"))
    assert order.prior.precision["w"].tolist() == [1, 1]
    assert order.prior.linear["w"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (content(estimator="exact"), "fisher estimator = 'exact': must be one of 'per-sample', "),
        (content(), "fisher estimator = None"),
        (content({"w": np.ones(1)}, estimator="per-sample"), "must come together"),
        (content(None, {"w": np.ones(1)}, estimator="per-sample"), "must come together"),
    ],
)
def test_a_message_that_makes_no_order_is_an_error(message, told):
    with pytest.raises(ValueError, match=told):
        FisherOrder.read(message)


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
    client = node(tmp_path, FisherOrder("per-sample", QuadraticPrior(precision, linear)))
    with pytest.raises(ValueError, match=told):
        client.train_round(initial(), ORDERS)


def test_a_precision_that_nobody_asked_for_is_an_error(tmp_path):
    client = node(tmp_path, FisherOrder())
    with pytest.raises(ValueError, match="no Fisher information was asked for"):
        client.precision(client.train_round(initial(), ORDERS), ORDERS)


# -- with the strategy -----------------------------------------------------------------------------------------


def toy_app(priors=None):
    """A ClientApp of toy nodes; ``priors`` collects what each message held the node to."""

    def client_of(partition, message, context):
        task, settings = ToyTask(), ORDERS.updated(message.content["config"])
        order = FisherOrder.read(message.content)
        if priors is not None:
            priors.append(order.prior)
        state, device = ContextState(context.state), torch.device("cpu")
        return FisherClient(task, task.data(partition), state, settings, seed=3, device=device, order=order), settings

    return nodes_app(client_of)


def run(strategy, num_nodes, priors=None):
    result = federate(strategy, toy_app(priors), initial(), num_nodes=num_nodes, num_rounds=3)
    assert not strategy.report.refused
    return arrays_of(result.arrays)


@pytest.mark.parametrize("shared", [("*",), ("encoder.*",)])
def test_all_lambdas_zero_is_fedavg_bit_for_bit(shared):
    assert same_bits(run(FisherExchange(shared=shared), 3), run(BaseStrategy(shared=shared), 3))


@pytest.mark.parametrize("estimator", ["per-sample", "per-batch", "per-batch-scaled"])
def test_one_node_is_fedavg_bit_for_bit(estimator):
    exchange = FisherExchange(others_past=0.5, others_now=0.5, estimator=estimator)
    assert same_bits(run(exchange, 1), run(BaseStrategy(), 1))


@pytest.mark.parametrize("shared", [("*",), ("encoder.*",)])
def test_nodes_are_held_by_what_the_others_published(shared):
    priors = []
    arrays = run(FisherExchange(others_now=0.5, shared=shared), 3, priors)
    assert priors[:3] == [None] * 3
    for held in priors[3:]:
        assert set(held.precision) == (set(NAMES[:3]) if shared == ("*",) else {"encoder.weight"})
        assert all((precision >= 0).all() for precision in held.precision.values())
    assert not same_bits(arrays, run(BaseStrategy(shared=shared), 3))
