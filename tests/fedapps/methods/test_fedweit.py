"""A node of FedWeIT: the units that it sends, the knowledge that it borrows, and the knowledge that it lends."""

import numpy as np
import pytest
from decomposed_nodes import PENALTIES, WEIGHTS, decomposition, initial, kept, knowledge, model_at, node
from fedapps.clients.state import ContextState
from fedapps.strategies import BaseStrategy, FedWeIT
from flwr.app import ConfigRecord, Message, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_nodes import SETTINGS, at, nodes_app, partition_of, staged
from toy_nodes import node as node_of
from toys import arrays_of, federate, same_bits


@settings(deadline=None, max_examples=20)
@given(st.floats(0.01, 1), st.integers(0, 9))
def test_what_is_not_sent_is_zero_and_what_is_sent_is_the_base(share, partition):
    client = node(ContextState(RecordDict()), "fedweit", data=staged(partition), mask_share=share)
    reply = client.train_round(initial(), at(1))
    sent = arrays_of(reply.records["fedweit.mask"])
    base = dict(zip(WEIGHTS, np.split(kept(client, 1)["base"], [4]), strict=True))
    assert {name: mask.shape for name, mask in sent.items()} == {"encoder.weight": (2, 1), "head.weight": (1, 1)}
    for name, mask in sent.items():
        assert mask.dtype == bool
        assert mask.sum() == np.ceil(share * len(mask) - 1e-9)
        np.testing.assert_array_equal(
            reply.arrays[name], np.where(mask, base[name].reshape(reply.arrays[name].shape), 0)
        )


def test_apd_sends_no_mask(tmp_path):
    assert node(tmp_path).train_round(initial(), at(1)).records == {}


def test_of_units_that_nobody_sent_the_own_base_stays(tmp_path):
    client = node(tmp_path, "fedweit")
    client.train_round(initial(), at(1))
    own = kept(client, 1)["base"][:2]
    received = {**initial(), "encoder.weight": np.array([[0, 0], [7, 0]], dtype=np.float32)}
    client.train_round(received, at(2, 0, learning_rate=0.0))
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
    node(tmp_path, "fedweit").train_round(initial(), at(1))
    lent = node(tmp_path, "fedweit", knowledge=knowledge(1))
    still = model_at(lent, initial(), at(1, 1), 1)
    np.testing.assert_allclose(still["encoder.weight"], initial()["encoder.weight"], rtol=1e-6)
    lent.train_round(initial(), at(2, 1))
    alpha = kept(lent, 2)["alpha"]
    assert alpha.shape == (2, 2)
    assert (alpha != 0).all()
    later = node(tmp_path, "fedweit")
    later.train_round(initial(), at(3, 1, learning_rate=0.0))
    np.testing.assert_array_equal(kept(later, 3)["alpha"], alpha)
    assert (kept(later, 3)["knowledge"] == [[1] * 6, [2] * 6]).all()
    again = node(tmp_path, "fedweit", knowledge=knowledge(1))
    again.train_round(initial(), at(4, 1, learning_rate=0.0))
    np.testing.assert_array_equal(kept(again, 4)["alpha"], alpha)
    # θ of the stage that is over stays what it was, though another stage borrows anew.
    before = model_at(again, initial(), at(4, 1), 1)
    begun = node(tmp_path, "fedweit", knowledge=knowledge(2, lenders=3))
    begun.train_round(initial(), at(5, 2))
    after = model_at(begun, initial(), at(5, 2), 1)
    for name, array in before.items():
        np.testing.assert_allclose(after[name], array, rtol=1e-5, atol=1e-6)
    assert kept(begun, 5)["alpha"].shape == (3, 2)


def adaptive(client, settings):
    """The answer of a node to the query of this name."""
    return arrays_of(client.answer("adaptive", settings)["fedweit.adaptive"])


def test_what_a_node_learned_is_its_own_part_without_small_numbers(tmp_path):
    node(tmp_path, "fedweit").train_round(initial(), at(1))
    client = node(tmp_path, "fedweit", knowledge=knowledge(1))
    client.train_round(initial(), at(2, 1))
    learned = kept(client, 2)["adaptive"][1]
    bound = float(np.sort(np.abs(learned))[2])
    answer = adaptive(node(tmp_path, "fedweit", l1=bound), at(3, 1))
    assert {name: a.shape for name, a in answer.items()} == {name: a.shape for name, a in initial().items()}
    flat = np.concatenate([answer[name].ravel() for name in WEIGHTS])
    assert (flat == 0).sum() == 3
    np.testing.assert_array_equal(flat, np.where(np.abs(learned) > np.float32(bound), learned, 0))


def test_of_a_stage_without_training_a_node_has_nothing_to_tell(tmp_path):
    with pytest.raises(ValueError, match="node toy-1 did not train in stage 0: its last one is none"):
        adaptive(node(tmp_path, "fedweit"), at(1, 0))
    node(tmp_path, "fedweit").train_round(initial(), at(1))
    with pytest.raises(ValueError, match="node toy-1 did not train in stage 1: its last one is 0"):
        adaptive(node(tmp_path, "fedweit"), at(2, 1))


# -- with strategies -------------------------------------------------------------------------------------------


def app(kind, masks=None, mask_share=0.7):
    """A ClientApp of decomposed nodes with stages; ``masks`` collects which units they sent."""

    def client_of(partition, message, context):
        config = message.content["config"]
        part = decomposition(kind, **PENALTIES, mask_share=mask_share).read(config, message.content)
        return node_of(ContextState(context.state), part, data=staged(partition)), SETTINGS.with_config(config)

    def lenders(client, records):
        if masks is not None:
            masks.append(arrays_of(records["fedweit.mask"]))
        return {"lenders": len(client.parts.parts[0].knowledge.keys) if kind == "fedweit" else 0}

    app = nodes_app(client_of, lenders)

    @app.query("adaptive")
    def answer(message, context):
        client, settings = client_of(partition_of(context), message, context)
        return Message(RecordDict(dict(client.answer("adaptive", settings))), reply_to=message)

    return app


def run(strategy, client_app, rounds):
    lenders = []
    result = federate(
        strategy, client_app, initial(), num_nodes=3, num_rounds=rounds,
        train_config=lambda server_round: ConfigRecord({"stage": (server_round - 1) // 2}),
        on_round=lambda report: lenders.append(report.train["lenders"]),
    )  # fmt: skip
    assert not strategy.report.refused
    return arrays_of(result.arrays), lenders


@pytest.mark.usefixtures("flower_identity")
def test_fedweit_of_one_stage_with_all_units_is_fedavg_of_apd_bit_for_bit():
    ours, _ = run(FedWeIT(), app("fedweit", mask_share=1.0), 2)
    theirs, _ = run(BaseStrategy(), app("apd"), 2)
    assert same_bits(ours, theirs)


@pytest.mark.usefixtures("flower_identity")
def test_nodes_lend_to_each_other_once_a_stage():
    masks, strategy = [], FedWeIT(profiles=True)
    _, lenders = run(strategy, app("fedweit", masks, 0.5), 6)
    assert lenders == [0, 0, 3, 0, 3, 0]
    assert list(strategy.knowledge) == ["toy-0", "toy-1", "toy-2"]
    assert all(mask["encoder.weight"].sum() == 1 for mask in masks)
