"""What a node's reply has under a clipping norm and under local privacy, and which replies it keeps."""

from math import sqrt

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import arrays_of, record_of, same_bits

from fedapps.app.privacy import protected
from fedapps.config.run_config import RunConfig

pytestmark = pytest.mark.usefixtures("flower_identity")
CONTEXT = Context(run_id=1, node_id=2, node_config={}, state=RecordDict(), run_config={})
SENT = {"w": np.zeros(2, np.float32), "scale": np.zeros((), np.float32), "count": np.array(4)}
RETURNED = {"w": np.array([2.0, 3.0], np.float32), "scale": np.array(6.0, np.float32), "count": np.array(9)}


CENTRAL = RunConfig(dp="central-client")


def local(deviation=0.0, clip=1.0, **keys):
    return RunConfig(dp="local", dp_clip=clip, dp_noise=deviation / clip, **keys)


def answered(run, sent, returned, beside=None, **config):
    message = Message(
        RecordDict({"arrays": record_of(sent), "config": ConfigRecord({"clipping_norm": 1.0, **config})}), 2, "train"
    )
    message.content["other"] = record_of({"x": np.ones(1)})

    def app(received, context):
        assert received is message
        metrics = MetricRecord({"num-examples": 3})
        return Message(
            RecordDict({"arrays": record_of(returned), "metrics": metrics, **(beside or {})}), reply_to=received
        )

    return protected(run, message, CONTEXT, app)


@pytest.mark.parametrize("run", [local(), CENTRAL])
def test_by_hand_all_floating_point_numbers_are_clipped_together_and_integers_go_back_as_they_came(run):
    reply = answered(run, SENT, RETURNED)
    found = arrays_of(reply.content["arrays"])
    np.testing.assert_allclose(found["w"], np.array([2.0, 3.0]) / 7, rtol=1e-6)  # the norm of (2, 3, 6) is 7
    np.testing.assert_allclose(found["scale"], 6 / 7, rtol=1e-6)
    assert found["scale"].shape == ()
    assert found["count"] == 4
    assert list(found) == list(SENT)
    assert reply.content["metrics"] == MetricRecord({"num-examples": 3})


def test_buffers_go_back_as_they_came_and_statistics_that_changed_are_an_error():
    sent = {"w": np.zeros(2, np.float32), "ema": np.zeros(1, np.float32), "n.running_var": np.ones(1, np.float32)}
    trained = {**sent, "w": np.array([3.0, 4.0], np.float32), "ema": np.full(1, 1e6, np.float32)}
    found = arrays_of(answered(local(), sent, trained, buffers=["ema"]).content["arrays"])
    np.testing.assert_allclose(found["w"], [0.6, 0.8], rtol=1e-6)
    assert (found["ema"], found["n.running_var"]) == (0, 1)
    with pytest.raises(ValueError, match=r"nothing is sent, because n.running_var.*nn.GroupNorm"):
        answered(local(), sent, {**trained, "n.running_var": np.full(1, 0.5, np.float32)})


def test_a_reply_without_parameters_releases_nothing():
    sent, trained = {"count": np.array(4)}, {"count": np.array(9)}
    assert arrays_of(answered(local(), sent, trained).content["arrays"]) == sent


@pytest.mark.parametrize("norm", [-1.0, 0.0, float("nan"), "1", True])
def test_a_norm_that_would_reverse_or_release_an_update_is_refused_before_training(norm):
    config = ConfigRecord({"clipping_norm": norm})
    message = Message(RecordDict({"arrays": record_of(SENT), "config": config}), 2, "train")
    with pytest.raises(ValueError, match=f"config clipping_norm = {norm!r}: must be a number above 0"):
        protected(CENTRAL, message, CONTEXT, lambda *_: pytest.fail("it trains"))


def test_a_message_or_a_reply_without_arrays_is_an_error_that_names_them():
    with pytest.raises(ValueError, match="the message has no ArrayRecord 'arrays', only: none"):
        protected(local(), Message(RecordDict(), 2, "train"), CONTEXT, lambda *_: pytest.fail("it trains"))
    message = Message(RecordDict({"arrays": record_of(SENT)}), 2, "train")
    with pytest.raises(ValueError, match="the message has no ArrayRecord 'arrays', only: metrics"):
        protected(
            local(), message, CONTEXT, lambda *_: Message(RecordDict({"metrics": MetricRecord()}), reply_to=message)
        )


@pytest.mark.parametrize("run", [local(), CENTRAL])
def test_a_node_that_learned_nothing_sends_what_it_received(run):
    reply = answered(run, SENT, SENT)
    assert same_bits(arrays_of(reply.content["arrays"]), SENT)


def test_a_clip_that_is_not_reached_changes_nothing():
    found = arrays_of(answered(local(clip=1e6), SENT, RETURNED).content["arrays"])
    assert same_bits({"w": found["w"], "scale": found["scale"]}, {"w": RETURNED["w"], "scale": RETURNED["scale"]})


@settings(max_examples=20, deadline=None)
@given(deviation=st.floats(0.01, 100), clip=st.floats(0.01, 100), seed=st.integers(0, 2**63 - 1))
def test_the_noise_has_its_deviation_and_repeats_with_its_seed(deviation, clip, seed):
    sent = {"w": np.zeros(10_000), "scale": np.zeros(())}
    first, again, free = (
        arrays_of(answered(local(deviation, clip, seed=seed, dp_seeded=s), sent, sent).content["arrays"])
        for s in (True, True, False)
    )
    assert same_bits(first, again)
    assert not same_bits(first, free)
    assert first["w"].std() == pytest.approx(deviation, rel=5 / sqrt(20_000))
    assert first["scale"] != 0


def test_what_would_not_be_protected_is_not_sent():
    with pytest.raises(ValueError, match=r"fisher\.precision beside the arrays"):
        answered(local(), SENT, RETURNED, {"fisher.precision": record_of(SENT)})
    with pytest.raises(ValueError, match="not finite: w"):
        answered(local(), SENT, RETURNED | {"w": np.array([1.0, np.nan], np.float32)})
    with pytest.raises(ValueError, match="names or shapes"):
        answered(local(), SENT, {"w": RETURNED["w"]})
