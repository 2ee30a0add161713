"""The parameters that stay on a node, whatever a message asks for, and the mod that completes messages."""

from fnmatch import fnmatchcase

import numpy as np
import pytest
import torch
from fedapps.clients.guard import Guard, PrivateParametersError, keep_private
from fedapps.sim.flower_internals import set_message_id
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from torch import nn
from toys import ToyModel, arrays_of, record_of, same_bits

NAMES = ["embedding.weight", "encoder.weight", "encoder.bias", "head.weight"]
PATTERNS = ["*", "embedding.*", "enc*", "head.weight", "*.bias"]


def test_a_request_for_a_private_name_is_refused_and_named_without_its_shape():
    guard = Guard((("embedding.*",),))
    guard.check_names(["encoder.weight"])
    with pytest.raises(PrivateParametersError, match=r"^embedding\.weight: private on this node"):
        guard.check_names(["encoder.weight", "embedding.weight"])


def test_what_one_of_the_possible_methods_shares_may_leave():
    guard = Guard((("embedding.*", "head.*"), ("embedding.*",)))
    assert [name for name in NAMES if guard.stays(name)] == ["embedding.weight"]


def test_without_patterns_nothing_is_refused():
    Guard().check_names(NAMES)
    Guard.of({}).check_names(NAMES)


def test_the_operators_patterns_hold_for_every_method():
    guard = Guard.of({"private": "embedding.*, head.*"}, [(), ("encoder.*",)])
    assert [name for name in NAMES if guard.stays(name)] == ["embedding.weight", "head.weight"]


@given(
    st.lists(st.lists(st.sampled_from(PATTERNS)).map(tuple), min_size=1, max_size=3),
    st.lists(st.sampled_from(PATTERNS)),
    st.sampled_from(NAMES),
)
def test_the_operators_patterns_only_add(methods, node, name):
    guard = Guard.of({"private": ",".join(node)}, methods)
    by_operator = any(fnmatchcase(name, pattern) for pattern in node)
    by_methods = all(any(fnmatchcase(name, pattern) for pattern in patterns) for patterns in methods)
    assert guard.stays(name) == (by_operator or by_methods)


def test_a_node_that_keeps_every_parameter_sends_no_record_that_its_operator_does_not_list():
    """FedProto's prototypes and class counts are computed from parameters, and have other names."""

    def make_model():
        return nn.Linear(2, 1)

    records = {"fedproto.local": record_of({"counts": np.array([1])})}
    every = {"private": "weight, bias"}
    for config in ({}, {"private": "weight"}, {**every, "may-leave": "fedproto.*"}, {"private": "*", "may-leave": "*"}):
        Guard.of(config).check_records(records, make_model)
    for config in (every, {"may-leave": "loss"}, {"private": "*"}):
        with pytest.raises(PrivateParametersError):
            Guard.of(config).check_records(records, make_model)
    with pytest.raises(PrivateParametersError, match="weight: private"):
        Guard.of({**every, "may-leave": "*"}).check_records({"x": record_of({"weight": np.ones(1)})}, make_model)


class Tied(nn.Module):
    """The embedding is also the output layer."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.output = nn.Linear(3, 5)
        self.output.weight = self.embedding.weight


def test_a_second_name_of_a_private_tensor_is_refused():
    guard = Guard((("embedding.*",),))
    guard.check_model(Tied(), ["output.bias"])
    with pytest.raises(PrivateParametersError, match=r"^output\.weight: the same numbers as a private parameter"):
        guard.check_model(Tied(), ["output.weight", "output.bias"])


@pytest.mark.parametrize("patterns", ["embeding.*", "embedding.*,decoder.*", "True"])
def test_a_misspelt_pattern_is_an_error_and_not_ignored(patterns):
    with pytest.raises(ValueError, match=r"private = .*: no parameter of the model matches; it has embedding\.weight"):
        Guard.of({"private": patterns}).check_model(Tied(), [])


def test_no_record_takes_a_private_parameter_out():
    guard, record = Guard.of({"private": "embedding.*"}), ArrayRecord({"embedding.weight": Array(np.ones(2))})
    guard.check_records({"fisher.precision": ArrayRecord({"head.weight": Array(np.ones(2))})})
    with pytest.raises(PrivateParametersError):
        guard.check_records({"fisher.precision": record})


pytestmark = pytest.mark.usefixtures("flower_identity")
ENCODER = {"encoder.weight": np.full((2, 2), 5.0, np.float32)}
PRIVATE = ["head.bias", "head.weight", "passes"]


def context():
    return Context(run_id=1, node_id=2, node_config={}, state=RecordDict(), run_config={})


def message(kind="train", server_round=1, arrays=ENCODER, **config):
    given = ConfigRecord({"server-round": server_round, **{key.replace("_", "-"): v for key, v in config.items()}})
    sent = Message(RecordDict({"arrays": record_of(arrays), "config": given}), 2, kind)
    set_message_id(sent, "m")
    return sent


def adds(amount, name="arrays", seen=None):
    """A client that adds a number to its whole model."""

    def call(received, _context):
        model = ToyModel()
        model.load_state_dict(received.content["arrays"].to_torch_state_dict(), strict=True)
        before = arrays_of(ArrayRecord(model.state_dict()))
        if seen is not None:
            seen.append(before)
        after = {n: a + a.dtype.type(amount) for n, a in before.items()}
        content = {name: record_of(after), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=received)

    return call


def seen_by(mod, place, sent, amount=0):
    seen = []
    mod(sent, place, adds(amount, seen=seen))
    return seen[0]


def test_at_first_the_private_part_is_the_models_own_and_the_same_everywhere():
    torch.manual_seed(1)
    first = seen_by(keep_private(ToyModel), context(), message())
    torch.manual_seed(2)
    second = seen_by(keep_private(ToyModel), context(), message("evaluate"))
    assert same_bits(first, second)
    assert first["encoder.weight"].tobytes() == ENCODER["encoder.weight"].tobytes()
    other = seen_by(keep_private(ToyModel, seed=1), context(), message())
    assert (other["head.weight"] != first["head.weight"]).any()


def test_the_clients_own_draws_are_left_alone():
    torch.manual_seed(1)
    drawn = torch.rand(3)
    torch.manual_seed(1)

    def draws(received, _context):
        assert torch.equal(torch.rand(3), drawn)
        return adds(0)(received, _context)

    keep_private(ToyModel)(message(), context(), draws)


def test_a_reply_has_the_names_that_came_and_metrics():
    for kind in ("train", "train.again", "evaluate"):
        reply = keep_private(ToyModel)(message(kind), context(), adds(1))
        assert same_bits(arrays_of(reply.content["arrays"]), {"encoder.weight": ENCODER["encoder.weight"] + 1})
        assert reply.content["metrics"]["num-examples"] == 1


def test_private_parameters_are_taken_out_of_every_record():
    def twice(received, place):
        reply = adds(1)(received, place)
        reply.content["gradients"] = reply.content["arrays"].copy()
        return reply

    reply = keep_private(ToyModel)(message(), context(), twice)
    assert [sorted(record) for record in reply.content.array_records.values()] == [["encoder.weight"]] * 2


def test_training_is_kept_and_evaluation_is_not():
    mod, place = keep_private(ToyModel), context()
    first = seen_by(mod, place, message(), amount=1)
    evaluated = seen_by(mod, place, message("evaluate"), amount=10)
    second = seen_by(mod, place, message(server_round=2))
    for name in PRIVATE:
        np.testing.assert_array_equal(evaluated[name], first[name] + first[name].dtype.type(1))
        np.testing.assert_array_equal(second[name], evaluated[name])


def test_a_repeated_round_starts_where_it_did_and_old_ones_are_forgotten():
    mod, place = keep_private(ToyModel), context()
    for server_round in (1, 2, 3):
        before = seen_by(mod, place, message(server_round=server_round), amount=1)
    assert same_bits(seen_by(mod, place, message(server_round=3), amount=7), before)
    kept = [name for name in place.state if "keep-private" in name]
    assert kept == ["keep-private.round-000002", "keep-private.round-000003"]


def test_with_a_folder_the_private_part_outlives_the_supernode_and_the_run(tmp_path):
    def restarted(run_id=1):
        return Context(run_id, 2, {"state-dir": str(tmp_path)}, state=RecordDict(), run_config={})

    mod = keep_private(ToyModel)
    first = seen_by(mod, restarted(), message(), amount=1)
    second = seen_by(mod, restarted(), message(server_round=2))
    trained = load_file(tmp_path / "keep-private" / "1" / "round-000001.safetensors")
    for name in PRIVATE:
        np.testing.assert_array_equal(second[name], first[name] + first[name].dtype.type(1))
        np.testing.assert_array_equal(second[name], trained[name])
    assert same_bits(seen_by(mod, restarted(run_id=5), message()), first)


def test_the_server_says_how_far_it_can_go_back():
    mod, place = keep_private(ToyModel), context()
    for server_round in (1, 2, 3):
        before = seen_by(mod, place, message(server_round=server_round, durable_round=1), amount=1)
        if server_round == 2:
            in_two = before
    assert same_bits(seen_by(mod, place, message(server_round=2, durable_round=1)), in_two)


def test_queries_pass():
    question = Message(RecordDict({"config": ConfigRecord()}), 2, "query.profile")
    assert keep_private(ToyModel)(question, context(), lambda m, c: m) is question


def test_what_cannot_be_completed_is_an_error():
    mod = keep_private(ToyModel)
    nameless = message()
    del nameless.content["config"]["server-round"]
    with pytest.raises(ValueError, match="the message has no server-round"):
        mod(nameless, context(), adds(1))
    empty = message()
    del empty.content["arrays"]
    with pytest.raises(ValueError, match="no ArrayRecord 'arrays', only: config"):
        mod(empty, context(), adds(1))
    with pytest.raises(ValueError, match=r"tail: not a parameter of the model"):
        mod(message(arrays={"tail": np.zeros(2)}), context(), adds(1))


ALL = {**ENCODER, "head.weight": np.zeros((2, 2), np.float32)}


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize("node_config", [{}, {"private": "head.*"}])
def test_a_server_that_asks_for_private_parameters_gets_nothing(kind, node_config):
    """By the developer's patterns, or by those of the node's operator; the client is not called."""
    called = []
    mod = keep_private(ToyModel, private=[] if node_config else ["head.*"])
    place = Context(run_id=1, node_id=2, node_config=node_config, state=RecordDict(), run_config={})
    with pytest.raises(PrivateParametersError) as refused:
        mod(message(kind, arrays=ALL), place, lambda *_: called.append(1))
    assert str(refused.value) == "head.weight: private on this node, and neither received nor sent"
    assert not called
    reply = mod(message(kind), place, adds(1))
    assert set(reply.content["arrays"]) == set(ENCODER)


def test_a_private_pattern_that_matches_nothing_is_an_error():
    with pytest.raises(ValueError, match=r"private = haed\.\*: no parameter of the model matches"):
        keep_private(ToyModel, private=["haed.*"])(message(), context(), adds(1))


def test_a_round_that_the_server_went_back_behind_is_not_read_again():
    mod, place = keep_private(ToyModel), context()
    for server_round in range(1, 6):
        mod(message(server_round=server_round, attempts="0:a1", durable_round=0), place, adds(1))
    first = seen_by(mod, place, message("evaluate", 3, attempts="0:a1"))
    again = seen_by(mod, place, message("evaluate", 5, attempts="0:a1 3:b2"))
    assert same_bits({n: again[n] for n in PRIVATE}, {n: first[n] for n in PRIVATE})
