"""A node whose stages have parameters of their own: what it sends, what it keeps, and what it must be equal to."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.client import ClientApp
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import ToyTask, arrays_of, federate, record_of, same_bits

from clients.base import FederatedClient
from clients.decomposed_client import DecomposedClient, Knowledge
from clients.named import get_arrays
from clients.settings import RoundSettings
from clients.state import ContextState, DiskState
from strategies.base import BaseStrategy
from strategies.fedweit import FedWeIT
from tasks.seeding import torch_seed
from tasks.social.networks import GraphConvolutions

WEIGHTS = ["encoder.weight", "head.weight"]
ORDERS = RoundSettings(epochs=2, learning_rate=0.05, batch_size=4, decomposition="apd")
PENALTIES = {"l1_adaptive": 1e-3, "l1_mask": 1e-3, "drift": 0.1}


def staged(partition):
    """Three stages: the data of partitions k, k + 3 and k + 6."""
    task = ToyTask()
    stages = [task.data(partition + 3 * stage).splits for stage in range(3)]
    return replace(task.data(partition), stages=tuple({**s, "validation": s["test"]} for s in stages))


def initial(names=WEIGHTS):
    with torch_seed(3, "model"):
        return get_arrays(ToyTask().build_model(), names)


def node(state, *, data=None, task=None, **more):
    state = state if isinstance(state, ContextState) else DiskState(state)
    return DecomposedClient(
        task or ToyTask(), data or staged(1), state, ORDERS, seed=3, device=torch.device("cpu"), **more
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


# -- what it must be equal to ----------------------------------------------------------------------------------


def test_one_step_of_sgd_by_the_chain_rule(tmp_path):
    """θ = B σ(m) + A from σ = 2/3, A = B/3: each part moves by its share of the plain model's gradient."""
    batch = staged(1).stages[0]["train"]
    model = ToyTask().build_model()
    model.load_state_dict({n: torch.from_numpy(a) for n, a in initial([*WEIGHTS, "head.bias", "passes"]).items()})
    ToyTask().loss(model, batch).backward()
    gradient = model.encoder.weight.grad.numpy()
    base = initial()["encoder.weight"]

    client = node(tmp_path)
    orders = at(1, 0, epochs=1, batch_size=6, optimizer="sgd", learning_rate=0.1, l1_adaptive=0.01, l1_mask=0.02)
    sent = client.train_round(initial(), orders).arrays["encoder.weight"]
    np.testing.assert_allclose(sent, base - 0.1 * 2 / 3 * gradient, rtol=1e-4, atol=1e-6)
    parts = kept(client, 1)
    expected = base / 3 - 0.1 * (gradient + 0.01 * np.sign(base))
    np.testing.assert_allclose(parts["adaptive"][0, :4].reshape(2, 2), expected, rtol=1e-4, atol=1e-6)
    slope = 2 / 3 * (1 / 3) * (gradient * base).sum(1)
    np.testing.assert_allclose(parts["mask"][0, :2], np.log(2) - 0.1 * (slope + 0.02), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        parts["own"][0], initial(["head.bias"])["head.bias"] - 0.1 * model.head.bias.grad.numpy(), rtol=1e-4
    )


def test_with_all_units_sent_the_first_stage_of_fedweit_is_apd_bit_for_bit(tmp_path):
    apd, weit = node(tmp_path / "a"), node(tmp_path / "w")
    received = initial()
    for server_round in (1, 2, 3):
        mine = apd.train_round(received, at(server_round, 0, **PENALTIES))
        other = weit.train_round(received, fedweit(server_round, 0, mask_share=1.0, **PENALTIES))
        assert same_bits(mine.arrays, other.arrays)
        assert same_bits(kept(apd, server_round), kept(weit, server_round))
        assert mine.metrics == other.metrics
        received = mine.arrays


def test_without_drift_later_stages_are_alike_too_and_the_past_is_untouched(tmp_path):
    apd, weit = node(tmp_path / "a"), node(tmp_path / "w")
    received = initial()
    for server_round in (1, 2, 3):
        stage = server_round - 1
        mine = apd.train_round(received, at(server_round, stage))
        other = weit.train_round(received, fedweit(server_round, stage, mask_share=1.0))
        assert same_bits(mine.arrays, other.arrays)
        assert same_bits(kept(apd, server_round), kept(weit, server_round))
        received = mine.arrays


def test_an_untrained_node_is_the_received_model(tmp_path):
    """A round of no learning gives back what came, and evaluates as a plain node with the same model."""
    client, orders = node(tmp_path), at(1, 0, learning_rate=0.0)
    reply = client.train_round(initial(), orders)
    assert same_bits(reply.arrays, initial())
    plain = FederatedClient(
        ToyTask(), staged(1), DiskState(tmp_path / "plain"), ORDERS, seed=3, device=torch.device("cpu")
    )  # fmt: skip
    expected = plain.evaluate_round(initial(), orders).metrics
    found = client.evaluate_round(initial(), orders).metrics
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-5)


def test_fedprox_holds_the_base_alone(tmp_path):
    """Overwhelming µ at a learning rate of 1/µ: every step of SGD lands the base next to where it came from."""
    client = node(tmp_path)
    sent = client.train_round(initial(), at(1, 0, proximal=1e3, optimizer="sgd", learning_rate=1e-3)).arrays
    free = node(tmp_path / "free")
    free.train_round(initial(), at(1, 0, optimizer="sgd", learning_rate=1e-3))
    for name in WEIGHTS:
        np.testing.assert_allclose(sent[name], initial()[name], atol=5e-3)
    np.testing.assert_allclose(kept(client, 1)["adaptive"], kept(free, 1)["adaptive"], atol=1e-3)
    assert np.abs(kept(client, 1)["adaptive"][0, :4] - initial()["encoder.weight"].ravel() / 3).max() > 1e-4


# -- stages ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["apd", "fedweit"])
def test_parts_persist_across_rounds_and_stages(tmp_path, kind):
    received = initial()
    for server_round, stage in ((1, 0), (2, 0), (3, 1), (4, 1)):
        client = node(tmp_path)  # a new one for each message
        orders = at(server_round, stage, decomposition=kind, mask_share=1.0, **PENALTIES)
        received = client.train_round(received, orders).arrays
    first, second, third, fourth = (kept(client, r) for r in (1, 2, 3, 4))
    assert fourth["stages"].tolist() == [0, 1]
    assert [len(fourth[name]) for name in ("adaptive", "mask", "own", "old")] == [2, 2, 2, 1]
    assert not np.array_equal(first["adaptive"], second["adaptive"])
    assert np.array_equal(third["old"], fourth["old"])
    assert np.array_equal(fourth["own"][0], second["own"][0])
    # Only APD goes on training what earlier stages have.
    for name in ("adaptive", "mask"):
        assert np.array_equal(fourth[name][0], second[name][0]) == (kind == "fedweit")


def test_a_context_keeps_the_same_as_a_disk(tmp_path):
    context = ContextState(RecordDict())
    for state in (tmp_path, context):
        for server_round, stage in ((1, 0), (2, 1), (3, 2)):
            node(state).train_round(initial(), at(server_round, stage, **PENALTIES))
    assert same_bits(kept(node(tmp_path), 3), kept(node(context), 3))


def test_the_same_message_twice_gives_the_same(tmp_path):
    client = node(tmp_path)
    client.train_round(initial(), fedweit(1, 0, **PENALTIES))
    replies = [
        node(tmp_path, knowledge=knowledge(1)).train_round(initial(), fedweit(2, 1, **PENALTIES)) for _ in range(2)
    ]  # fmt: skip
    assert same_bits(replies[0].arrays, replies[1].arrays)


def test_a_stage_begins_at_the_base_with_the_last_stages_biases(tmp_path):
    client = node(tmp_path)
    client.train_round(initial(), at(1, 0))
    received = {name: array + 0.5 for name, array in initial().items()}
    begun = model_at(client, received, at(1, 1), stage=1)
    for name in WEIGHTS:
        np.testing.assert_allclose(begun[name], received[name], rtol=1e-6)
    np.testing.assert_array_equal(begun["head.bias"], kept(client, 1)["own"][0])


@pytest.mark.parametrize("kind", ["apd", "fedweit"])
def test_stages_are_evaluated_with_their_own_parameters_unmet_ones_with_the_present(tmp_path, kind):
    client = node(tmp_path)
    client.train_round(initial(), at(1, 0, decomposition=kind))
    orders = at(2, 1, decomposition=kind, **PENALTIES)
    client.train_round(initial(), orders)
    received = {name: array + 0.1 for name, array in initial().items()}
    metrics = client.evaluate_round(received, orders).metrics
    parts, flat = kept(client, 2), np.concatenate([received[name].ravel() for name in WEIGHTS])
    units = np.array([0, 0, 1, 1, 2, 2])
    for stage, index in ((0, 0), (1, 1), (2, 1)):
        theta = flat / (1 + np.exp(-parts["mask"][index]))[units] + parts["adaptive"][index]
        model = ToyTask().build_model().eval()
        with torch.no_grad():
            model.encoder.weight.copy_(torch.from_numpy(theta[:4].reshape(2, 2)))
            model.head.weight.copy_(torch.from_numpy(theta[4:].reshape(1, 2)))
            model.head.bias.copy_(torch.from_numpy(parts["own"][index]))
        expected = ToyTask().loss(model, staged(1).stages[stage]["test"]).item()
        assert metrics[f"stage-{stage + 1}.test.loss"] == pytest.approx(expected, rel=1e-4)
    assert metrics["test.loss"] == metrics["stage-2.test.loss"]


def test_the_learning_rate_falls_by_the_validation_loss_of_the_present_stage(tmp_path):
    client, orders = node(tmp_path), at(1, 0, plateau_patience=5, epochs=1)
    trained = client.train_round(initial(), orders).arrays
    rate, best, stale = client.private.load(2)["memory.plateau"]
    plain = client._for_stage(client._model(trained, client._kept(2, orders)), 0, orders)
    validation = staged(1).stages[0]["validation"]
    assert (rate, stale) == (0.05, 0)
    assert best == pytest.approx(ToyTask().loss(plain.eval(), validation).item())


def test_apd_keeps_the_past_better_than_no_drift_penalty(tmp_path):
    moved = {}
    for drift in (0.0, 10.0):
        client = node(tmp_path / str(drift))
        base = client.train_round(initial(), at(1, 0)).arrays
        old = model_at(client, base, at(1, 0), 0)
        base = client.train_round(base, at(2, 1, drift=drift, epochs=40)).arrays
        new = model_at(client, base, at(2, 1), 0)
        moved[drift] = sum(float(np.square(new[name] - old[name]).sum()) for name in WEIGHTS)
    assert moved[10.0] < 0.1 * moved[0.0]


@pytest.mark.parametrize(
    ("kind", "orders", "trained", "held"),
    [
        # 6 numbers in the weights, 3 units, 1 bias; 3 stages.
        ("apd", {}, 6 + 3 * 10, 6),
        ("apd", {"proximal": 0.1}, 6 + 3 * 10, 12),
        ("fedweit", {}, 6 + 3 * 10 + 2 * 2 * 2, 6 + 12),
    ],
)
def test_parameters_are_counted(tmp_path, kind, orders, trained, held):
    node(tmp_path).train_round(initial(), at(1, 0, decomposition=kind))
    lent = knowledge(1) if kind == "fedweit" else None
    metrics = node(tmp_path, knowledge=lent).train_round(initial(), at(2, 1, decomposition=kind, **orders)).metrics
    assert (metrics["trainable_parameters"], metrics["static_parameters"]) == (trained, held)


class Graphs(ToyTask):
    """The network of Elastic Transfer on one graph per example."""

    def build_model(self):
        return GraphConvolutions()

    def loss(self, model, batch):
        return (model(batch["x"], torch.eye(1).expand(len(batch["x"]), 1, 1)) - batch["y"]).square().mean()


@pytest.mark.parametrize(("kind", "trained"), [("apd", 39_176), ("fedweit", 39_257)])
def test_the_network_of_elastic_transfer_has_the_published_number_of_parameters(tmp_path, kind, trained):
    task, splits = Graphs(), {"train": {"x": torch.ones(2, 1, 7), "y": torch.ones(2)}}
    data = replace(ToyTask().data(1), splits=splits, stages=(splits,) * 4)
    weights = {n: p.detach().numpy() for n, p in task.build_model().named_parameters() if p.ndim > 1}
    lent = Knowledge(1, ("a", "b", "c"), (weights,) * 3) if kind == "fedweit" else None
    node(tmp_path, data=data, task=task).train_round(weights, at(1, 0, decomposition=kind))
    client = node(tmp_path, data=data, task=task, knowledge=lent)
    metrics = client.train_round(weights, at(2, 1, decomposition=kind)).metrics
    assert metrics["trainable_parameters"] == trained


# -- FedWeIT on the wire ---------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=20)
@given(st.floats(0.01, 1), st.integers(0, 9))
def test_what_is_not_sent_is_zero_and_what_is_sent_is_the_base(share, partition):
    client = node(ContextState(RecordDict()), data=staged(partition))
    orders = fedweit(1, 0, mask_share=share)
    reply = client.train_round(initial(), orders)
    sent = arrays_of(client.publish(reply, orders)["fedweit.mask"])
    base = dict(zip(WEIGHTS, np.split(kept(client, 1)["base"], [4]), strict=True))
    assert {name: mask.shape for name, mask in sent.items()} == {"encoder.weight": (2, 1), "head.weight": (1, 1)}
    for name, mask in sent.items():
        assert mask.dtype == bool
        assert mask.sum() == np.ceil(share * len(mask) - 1e-9)
        np.testing.assert_array_equal(
            reply.arrays[name], np.where(mask, base[name].reshape(reply.arrays[name].shape), 0)
        )


def test_apd_sends_no_mask(tmp_path):
    client = node(tmp_path)
    assert client.publish(client.train_round(initial(), at(1, 0)), at(1, 0)) == {}


def test_of_units_that_nobody_sent_the_own_base_stays(tmp_path):
    client = node(tmp_path)
    client.train_round(initial(), fedweit(1, 0))
    own = kept(client, 1)["base"][:2]
    received = {**initial(), "encoder.weight": np.array([[0, 0], [7, 0]], dtype=np.float32)}
    client.train_round(received, fedweit(2, 0, learning_rate=0.0))
    np.testing.assert_array_equal(kept(client, 2)["base"][:4], [*own, 7, 0])


def test_a_node_alone_keeps_its_base(tmp_path):
    client = node(tmp_path)
    for server_round, stage in ((1, 0), (2, 1)):
        assert client.train_round({}, at(server_round, stage)).arrays == {}
    base = kept(client, 2)["base"]
    client.train_round({}, at(3, 1, learning_rate=0.0))
    assert np.array_equal(kept(client, 3)["base"], base)
    assert not np.array_equal(base, kept(client, 1)["base"])


def test_knowledge_is_borrowed_from_nothing_on_and_kept_for_the_stage(tmp_path):
    node(tmp_path).train_round(initial(), fedweit(1, 0))
    lent = node(tmp_path, knowledge=knowledge(1))
    still = model_at(lent, initial(), fedweit(1, 1), 1)
    np.testing.assert_allclose(still["encoder.weight"], initial()["encoder.weight"], rtol=1e-6)
    lent.train_round(initial(), fedweit(2, 1))
    alpha = kept(lent, 2)["alpha"]
    assert alpha.shape == (2, 2)
    assert (alpha != 0).all()
    later = node(tmp_path)
    later.train_round(initial(), fedweit(3, 1, learning_rate=0.0))
    np.testing.assert_array_equal(kept(later, 3)["alpha"], alpha)
    assert (kept(later, 3)["knowledge"] == [[1] * 6, [2] * 6]).all()
    again = node(tmp_path, knowledge=knowledge(1))
    again.train_round(initial(), fedweit(4, 1, learning_rate=0.0))
    np.testing.assert_array_equal(kept(again, 4)["alpha"], alpha)
    # θ of the stage that is over stays what it was, though another stage borrows anew.
    before = model_at(again, initial(), fedweit(4, 1), 1)
    begun = node(tmp_path, knowledge=knowledge(2, lenders=3))
    begun.train_round(initial(), fedweit(5, 2))
    after = model_at(begun, initial(), fedweit(5, 2), 1)
    for name, array in before.items():
        np.testing.assert_allclose(after[name], array, rtol=1e-5, atol=1e-6)
    assert kept(begun, 5)["alpha"].shape == (3, 2)


def test_what_a_node_learned_is_its_own_part_without_small_numbers(tmp_path):
    node(tmp_path).train_round(initial(), fedweit(1, 0))
    client = node(tmp_path, knowledge=knowledge(1))
    client.train_round(initial(), fedweit(2, 1))
    learned = kept(client, 2)["adaptive"][1]
    bound = float(np.sort(np.abs(learned))[2])
    answer = node(tmp_path).adaptive(fedweit(3, 1, sparsity=bound))
    assert {name: a.shape for name, a in answer.items()} == {name: a.shape for name, a in initial().items()}
    flat = np.concatenate([answer[name].ravel() for name in WEIGHTS])
    assert (flat == 0).sum() == 3
    np.testing.assert_array_equal(flat, np.where(np.abs(learned) > np.float32(bound), learned, 0))


def test_of_a_stage_without_training_a_node_has_nothing_to_tell(tmp_path):
    with pytest.raises(ValueError, match="node toy-1 did not train in stage 0: its last one is none"):
        node(tmp_path).adaptive(fedweit(1, 0))
    node(tmp_path).train_round(initial(), fedweit(1, 0))
    with pytest.raises(ValueError, match="node toy-1 did not train in stage 1: its last one is 0"):
        node(tmp_path).adaptive(fedweit(2, 1))


# -- with strategies -------------------------------------------------------------------------------------------


def app(kind, masks=None):
    """A ClientApp of decomposed nodes with stages; ``masks`` collects which units they sent."""
    app = ClientApp()

    def client(message, context):
        orders = replace(ORDERS, decomposition=kind, **PENALTIES).updated(message.content["config"])
        data = staged(int(context.node_config["partition-id"]))
        lent = Knowledge.read(message.content)
        return node(ContextState(context.state), data=data, knowledge=lent), orders

    @app.train()
    def train(message, context):
        learner, orders = client(message, context)
        reply = learner.train_round(arrays_of(message.content["arrays"]), orders)
        more = learner.publish(reply, orders)
        if masks is not None:
            masks.append(arrays_of(more["fedweit.mask"]))
        metrics = MetricRecord({"num-examples": reply.num_examples, "lenders": len(learner.knowledge.keys)})
        content = {"arrays": record_of(reply.arrays), "metrics": metrics, **more}
        return Message(RecordDict(content), reply_to=message)

    @app.query("adaptive")
    def adaptive(message, context):
        learner, orders = client(message, context)
        return Message(RecordDict({"fedweit.adaptive": record_of(learner.adaptive(orders))}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    @app.query("profile")
    def profile(message, context):
        key = f"toy-{context.node_config['partition-id']}"
        return Message(RecordDict({"profile": ConfigRecord({"key": key})}), reply_to=message)

    return app


def run(strategy, client_app, rounds, **orders):
    lenders = []
    result = federate(
        strategy, client_app, initial(), num_nodes=3, num_rounds=rounds,
        train_config=lambda server_round: ConfigRecord({"stage": (server_round - 1) // 2, **orders}),
        on_round=lambda report: lenders.append(report.train["lenders"]),
    )  # fmt: skip
    assert not strategy.report.refused
    return arrays_of(result.arrays), lenders


@pytest.mark.usefixtures("flower_identity")
def test_fedweit_of_one_stage_with_all_units_is_fedavg_of_apd_bit_for_bit():
    ours, _ = run(FedWeIT(), app("fedweit"), 2, **{"mask-share": 1.0})
    theirs, _ = run(BaseStrategy(), app("apd"), 2)
    assert same_bits(ours, theirs)


@pytest.mark.usefixtures("flower_identity")
def test_nodes_lend_to_each_other_once_a_stage():
    masks, strategy = [], FedWeIT()
    _, lenders = run(strategy, app("fedweit", masks), 6, **{"mask-share": 0.5})
    assert lenders == [0, 0, 3, 0, 3, 0]
    assert list(strategy.knowledge) == ["toy-0", "toy-1", "toy-2"]
    assert all(mask["encoder.weight"].sum() == 1 for mask in masks)


# -- reading a message -----------------------------------------------------------------------------------------


def content(models, **order):
    records = RecordDict({"fedweit": ConfigRecord(order)} if order else {})
    for index, arrays in enumerate(models):
        records[f"fedweit.knowledge.{index}"] = record_of(arrays)
    return records


def test_knowledge_is_read_from_a_message():
    assert Knowledge.read(RecordDict({"arrays": record_of(initial())})) == Knowledge()
    found = Knowledge.read(content([initial(), initial()], stage=2, keys=["a", "b"]))
    assert (found.stage, found.keys) == (2, ("a", "b"))
    assert all(same_bits(arrays, initial()) for arrays in found.adaptive)


def test_a_message_that_makes_no_knowledge_is_an_error():
    with pytest.raises(ValueError, match=r"fedweit\.knowledge\.1, of node b: must come as an ArrayRecord"):
        Knowledge.read(content([initial()], stage=2, keys=["a", "b"]))
    with pytest.raises(ValueError, match="fedweit stage = None, keys = None: must be an integer and a list"):
        Knowledge.read(content([], other=1))


@pytest.mark.parametrize(
    ("lent", "told"),
    [
        (Knowledge(1, ("a",), ({"tail": np.ones(1)},)), "what node a learned: 'tail' is no weight of the model"),
        (Knowledge(1, ("a",), ({"head.weight": np.ones(2)},)), r"'head.weight' is \[2\], not \[1, 2\]"),
        (Knowledge(2, ("a",), (initial(),)), "fedweit stage = 2: must be 1, as in the message's config"),
    ],
)
def test_knowledge_that_does_not_fit_is_an_error(tmp_path, lent, told):
    with pytest.raises(ValueError, match=told):
        node(tmp_path, knowledge=lent).train_round(initial(), fedweit(1, 1))


@pytest.mark.parametrize(
    ("orders", "told"),
    [
        ({"decomposition": "none"}, "decomposition = 'none': must be 'apd' or 'fedweit'"),
        ({"ewc": 0.5}, r"ewc = 0.5, l2-transfer = 0.0: must be 0 with decomposition = 'apd'"),
        ({"decomposition": "fedweit", "mask_share": 0.0}, r"mask-share = 0.0: must be above 0 and at most 1"),
    ],
)
def test_orders_that_do_not_go_with_a_decomposition_are_errors(tmp_path, orders, told):
    with pytest.raises(ValueError, match=told):
        node(tmp_path).train_round(initial(), at(1, 0, **orders))


def test_a_bias_cannot_be_shared_nor_a_copy_personalised(tmp_path):
    with pytest.raises(ValueError, match=r"received head.bias: every stage has its own; only encoder.weight, head.we"):
        node(tmp_path).train_round(initial([*WEIGHTS, "head.bias"]), ORDERS)
    with pytest.raises(ValueError, match="personalise = True: must be false"):
        node(tmp_path).evaluate_round(initial(), at(1, 0, personalise=True))


def test_buffers_are_the_nodes_or_travel(tmp_path):
    client = node(tmp_path)
    client.train_round(initial(), at(1, 0))
    assert int(client.private.load(2)["passes"]) == 4  # 2 epochs of 2 batches
    shared = client.train_round(initial([*WEIGHTS, "passes"]), at(2, 0)).arrays
    assert int(shared["passes"]) == 4
    assert "passes" not in client.private.load(3)


def test_the_present_stages_model_collects(tmp_path):
    seen = []

    class Collecting(ToyTask):
        def collect(self, model, data, *, seed):
            seen.append(model)
            return super().collect(model, data, seed=seed)

    node(tmp_path, task=Collecting()).evaluate_round(initial(), at(1, 0, collect=True))
    assert seen[0](torch.zeros(1, 2)).shape == (1, 1)
