"""A node of FedWeIT: what it sends, what it borrows, what it lends, and what it reads from a message."""

from dataclasses import replace

import numpy as np
import pytest
from decomposed_nodes import ORDERS, PENALTIES, WEIGHTS, at, fedweit, initial, kept, knowledge, model_at, node
from flwr.app import ConfigRecord, Message, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_nodes import nodes_app, partition_of, staged
from toys import arrays_of, federate, record_of, same_bits

from clients.decomposed_client import Knowledge
from clients.state import ContextState
from strategies.base import BaseStrategy
from strategies.fedweit import FedWeIT


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

    def client_of(partition, message, context):
        orders = replace(ORDERS, decomposition=kind, **PENALTIES).updated(message.content["config"])
        lent = Knowledge.read(message.content)
        return node(ContextState(context.state), data=staged(partition), knowledge=lent), orders

    def lenders(client, published):
        if masks is not None:
            masks.append(arrays_of(published["fedweit.mask"]))
        return {"lenders": len(client.knowledge.keys)}

    app = nodes_app(client_of, lenders)

    @app.query("adaptive")
    def adaptive(message, context):
        client, orders = client_of(partition_of(context), message, context)
        return Message(RecordDict({"fedweit.adaptive": record_of(client.adaptive(orders))}), reply_to=message)

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
