"""The evaluation of the model of all clusters, beside that of the cluster of a node."""

from flwr.app import RecordDict
from toy_nodes import NAMES, SETTINGS, at, initial, node, staged
from toys import record_of, same_bits

from fedapps.methods.h_fl import SharedEvaluation

ENCODER = NAMES[:1]


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
