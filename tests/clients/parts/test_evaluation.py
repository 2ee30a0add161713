"""A node that is evaluated with its own model as its last training left it, or with that of all clusters, too."""

import numpy as np
import pytest
from fedapps.clients.composed_parts import composed
from fedapps.clients.parts.evaluation import LocalEvaluation, SharedEvaluation
from fedapps.clients.parts.personalisation import Personalisation
from fedapps.clients.state import ContextState, DiskState
from flwr.app import RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_nodes import NAMES, SETTINGS, at, initial, node, staged
from toys import ToyTask, record_of, same_bits

ENCODER = NAMES[:1]


def received(shift, names=ENCODER):
    """What a server sends in some round."""
    return {name: array + array.dtype.type(shift) for name, array in initial(names).items()}


def by_hand(weights, rate):
    """Encoder, head and bias after a step of gradient descent on (x E' h' + c - y)², in double precision."""
    encoder, head, bias = weights
    train = ToyTask().data(1).splits["train"]
    x, y = (train[name].double().numpy() for name in ("x", "y"))
    hidden = x @ encoder.T
    error = 2 * (hidden @ head.T + bias - y) / len(x)
    return encoder - rate * (error @ head).T @ x, head - rate * error.T @ hidden, bias - rate * error.sum(0)


def test_an_evaluation_by_hand(tmp_path):
    """After one step from what was received, the loss is that of the step's result, whatever comes next."""
    client = node(tmp_path, LocalEvaluation())
    sent = received(0.3)
    client.train_round(sent, at(1, epochs=1, batch_size=6, optimizer="sgd", learning_rate=0.05))
    weights = [sent["encoder.weight"], *(initial()[name] for name in NAMES[1:3])]
    encoder, head, bias = by_hand([array.astype(np.float64) for array in weights], 0.05)
    test = ToyTask().data(1).splits["test"]
    outputs = test["x"].double().numpy() @ encoder.T @ head.T + bias
    expected = np.square(outputs - test["y"].double().numpy()).mean()
    found = client.evaluate_round(received(5.0), at(1)).metrics["test.loss"]
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_node_that_never_trained_is_evaluated_with_what_it_receives(tmp_path):
    alone = node(tmp_path / "part", LocalEvaluation()).evaluate_round(received(2.0), at(3)).metrics
    assert alone == node(tmp_path / "plain").evaluate_round(received(2.0), at(3)).metrics


@pytest.mark.slow
@settings(max_examples=30)
@given(drawn=st.lists(st.booleans(), min_size=1, max_size=6), names=st.sampled_from([ENCODER, NAMES, []]))
def test_whichever_rounds_a_node_trains_in_its_last_model_is_evaluated(tmp_path_factory, drawn, names):
    """Training, the reply and the private arrays are those of a plain node."""
    folder = tmp_path_factory.mktemp("nodes")
    client, plain = node(folder / "part", LocalEvaluation()), node(folder / "plain")
    last = None
    for server_round, trains in enumerate(drawn, 1):
        sent = received(server_round / 10, names)
        if trains:
            found, expected = (each.train_round(sent, at(server_round)) for each in (client, plain))
            assert same_bits(found.arrays, expected.arrays)
            assert found.metrics == expected.metrics
            last = expected.arrays
        evaluated = received(server_round, names)
        found = client.evaluate_round(evaluated, at(server_round)).metrics
        assert found == plain.evaluate_round(evaluated if last is None else last, at(server_round)).metrics
    kept, expected = client.private.load(99), plain.private.load(99)
    if expected is not None:
        assert same_bits({name: kept[name] for name in expected}, expected)
        assert len(kept) == len(NAMES)


def test_a_repeated_round_evaluates_as_the_first_time(tmp_path):
    """A server that goes back to a snapshot finds the models of that round."""
    client = node(tmp_path, LocalEvaluation())
    sent, found = received(0.1), {}
    for server_round in (1, 2, 3):
        client.train_round(sent, at(server_round))
        found[server_round] = client.evaluate_round(sent, at(server_round)).metrics
    assert len({metrics["test.loss"] for metrics in found.values()}) == 3
    assert client.evaluate_round(sent, at(2)).metrics == found[2]
    client.train_round(sent, at(3))
    assert client.evaluate_round(sent, at(3)).metrics == found[3]


def test_a_context_keeps_the_model_as_a_disk_does(tmp_path):
    found = []
    for state in (DiskState(tmp_path), ContextState(RecordDict())):
        client = node(state, LocalEvaluation())
        client.train_round(received(0.1), at(1))
        again = node(state, LocalEvaluation())
        found.append(again.evaluate_round(received(3.0), at(2)).metrics)
    assert found[0] == found[1]


def test_no_other_part_may_choose_the_evaluated_model():
    with pytest.raises(ValueError, match="cannot be combined: both need the evaluated model for themselves"):
        composed([LocalEvaluation(), Personalisation()])


def far():
    return {name: array + array.dtype.type(2) for name, array in initial(ENCODER).items()}


def test_the_model_is_read_from_the_record_of_a_message():
    part = SharedEvaluation().read({}, RecordDict({"hierarchical.shared": record_of(far())}))
    assert same_bits(part.shared, far())
    assert SharedEvaluation().read({}, RecordDict({"arrays": record_of(far())})).shared is None


def test_without_a_global_model_the_evaluation_is_plain(tmp_path):
    plain = node(tmp_path / "plain").evaluate_round(initial(), SETTINGS).metrics
    assert node(tmp_path / "part", SharedEvaluation()).evaluate_round(initial(), SETTINGS).metrics == plain


def test_its_metrics_are_those_of_an_evaluation_of_the_global_model(tmp_path):
    """With the node's private parameters; costly metrics, stages, traces and collection are of its own model alone."""
    client = node(tmp_path, SharedEvaluation(far()), data=staged(1))
    client.train_round(initial(ENCODER), SETTINGS)
    found = client.evaluate_round(initial(ENCODER), at(1, final=True)).metrics
    plain = node(tmp_path, data=staged(1))
    mine = plain.evaluate_round(initial(ENCODER), at(1, final=True)).metrics
    other = plain.evaluate_round(far(), SETTINGS).metrics
    expected = {f"shared.{name}": value for name, value in other.items() if not name.startswith("stage-")}
    assert found == {**mine, **expected}
    assert found["shared.test.loss"] != found["test.loss"]
    assert "shared.test.final" not in found
