"""Flower's privacy mods behind on_floats: what they leave open or stop at, and what becomes of it."""

from math import sqrt

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import arrays_of, record_of, same_bits

from fedapps.app.privacy import on_floats

pytestmark = pytest.mark.usefixtures("flower_identity")
CONTEXT = Context(run_id=1, node_id=2, node_config={}, state=RecordDict(), run_config={})
SENT = {"w": np.zeros(2, np.float32), "scale": np.zeros((), np.float32), "count": np.array(4)}
RETURNED = {"w": np.array([2.0, 3.0], np.float32), "scale": np.array(6.0, np.float32), "count": np.array(9)}


def answered(mod, sent, returned, beside=None, **config):
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

    return mod(message, CONTEXT, app)


def local(deviation=0.0, clip=1.0):
    # deviation = sensitivity * sqrt(2 ln(1.25/delta)) / epsilon
    return LocalDpMod(clip, sensitivity=deviation, epsilon=sqrt(2 * np.log(1.25e5)), delta=1e-5)


@pytest.mark.parametrize("mod", [local(), fixedclipping_mod])
def test_by_hand_all_floating_point_numbers_are_clipped_together_and_integers_go_back_as_they_came(mod):
    reply = answered(on_floats(mod), SENT, RETURNED)
    found = arrays_of(reply.content["arrays"])
    np.testing.assert_allclose(found["w"], np.array([2.0, 3.0]) / 7, rtol=1e-6)  # the norm of (2, 3, 6) is 7
    np.testing.assert_allclose(found["scale"], 6 / 7, rtol=1e-6)
    assert found["scale"].shape == ()
    assert found["count"] == 4
    assert list(found) == list(SENT)
    assert reply.content["metrics"] == MetricRecord({"num-examples": 3})


def test_large_received_values_do_not_lengthen_the_clipped_update():
    """At 2^22 float32 has steps of .5: each value of the clipped update, .3, would become .5."""
    received = {"w": np.full(10, 2.0**22, np.float32)}
    seen = []

    def mod(message, context, call_next):
        reply = LocalDpMod(1.0, sensitivity=0.0, epsilon=1.0, delta=1e-5)(message, context, call_next)
        seen.append(arrays_of(reply.content["arrays"])["w"] - received["w"].astype(np.float64))
        return reply

    reply = answered(on_floats(mod), received, {"w": received["w"] + 8})
    assert np.linalg.norm(seen[0]) == pytest.approx(1.0), "before the one rounding at the end"
    assert arrays_of(reply.content["arrays"])["w"].dtype == np.float32


def test_buffers_go_back_as_they_came_and_statistics_that_changed_are_an_error():
    sent = {"w": np.zeros(2, np.float32), "ema": np.zeros(1, np.float32), "n.running_var": np.ones(1, np.float32)}
    trained = {**sent, "w": np.array([3.0, 4.0], np.float32), "ema": np.full(1, 1e6, np.float32)}
    found = arrays_of(answered(on_floats(local()), sent, trained, buffers=["ema"]).content["arrays"])
    np.testing.assert_allclose(found["w"], [0.6, 0.8], rtol=1e-6)
    assert (found["ema"], found["n.running_var"]) == (0, 1)
    with pytest.raises(ValueError, match=r"nothing is sent, because n.running_var.*nn.GroupNorm"):
        answered(on_floats(local()), sent, {**trained, "n.running_var": np.full(1, 0.5, np.float32)})


def test_a_reply_without_parameters_releases_nothing():
    sent, trained = {"count": np.array(4)}, {"count": np.array(9)}
    assert arrays_of(answered(on_floats(local()), sent, trained).content["arrays"]) == sent


@pytest.mark.parametrize("norm", [-1.0, 0.0, float("nan"), "1", True])
def test_a_norm_that_would_reverse_or_release_an_update_is_refused_before_training(norm):
    config = ConfigRecord({"clipping_norm": norm})
    message = Message(RecordDict({"arrays": record_of(SENT), "config": config}), 2, "train")
    with pytest.raises(ValueError, match=f"config clipping_norm = {norm!r}: must be a number above 0"):
        on_floats(fixedclipping_mod)(message, CONTEXT, lambda *_: pytest.fail("it trains"))


def test_a_message_or_a_reply_without_arrays_is_an_error_that_names_them():
    with pytest.raises(ValueError, match="the message has no ArrayRecord 'arrays', only: none"):
        on_floats(local())(Message(RecordDict(), 2, "train"), CONTEXT, lambda *_: pytest.fail("it trains"))
    message = Message(RecordDict({"arrays": record_of(SENT)}), 2, "train")
    with pytest.raises(ValueError, match="the message has no ArrayRecord 'arrays', only: metrics"):
        on_floats(local())(
            message, CONTEXT, lambda *_: Message(RecordDict({"metrics": MetricRecord()}), reply_to=message)
        )


def test_flowers_mod_alone_leaves_an_array_without_dimensions_as_it_is():
    # when this fails, Flower has closed the gap that the docstring of on_floats names
    message = Message(RecordDict({"arrays": record_of({"scale": np.zeros(())})}), 2, "train")
    reply = local(1.0)(
        message, CONTEXT, lambda m, c: Message(RecordDict({"arrays": record_of({"scale": np.array(6.0)})}), reply_to=m)
    )
    assert arrays_of(reply.content["arrays"])["scale"] == 6.0
    guarded = answered(on_floats(local(1.0)), {"scale": np.zeros(())}, {"scale": np.array(6.0)})
    assert arrays_of(guarded.content["arrays"])["scale"] != 6.0


@pytest.mark.parametrize("mod", [local(), fixedclipping_mod])
def test_a_node_that_learned_nothing_sends_what_it_received(mod):
    reply = answered(on_floats(mod), SENT, SENT)
    assert same_bits(arrays_of(reply.content["arrays"]), SENT)


def test_where_nothing_is_shared_the_mod_is_not_asked():
    assert answered(on_floats(local()), {}, {}).content["arrays"] == ArrayRecord()


def test_a_clip_that_is_not_reached_leaves_all_but_rounding():
    found = arrays_of(answered(on_floats(local(clip=1e6)), SENT, RETURNED).content["arrays"])
    assert same_bits({"w": found["w"], "scale": found["scale"]}, {"w": RETURNED["w"], "scale": RETURNED["scale"]})


@settings(max_examples=20, deadline=None)
@given(deviation=st.floats(0.01, 100), seed=st.integers(0, 2**63 - 1))
def test_the_noise_has_its_deviation_repeats_with_its_seed_and_leaves_the_global_state(deviation, seed):
    sent = {"w": np.zeros(10_000)}
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    first, again, free = (
        arrays_of(answered(on_floats(local(deviation), s), sent, sent).content["arrays"]) for s in (seed, seed, None)
    )
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
    assert same_bits(first, again)
    assert not same_bits(first, free)
    assert first["w"].std() == pytest.approx(deviation, rel=5 / sqrt(20_000))


def test_what_the_mod_would_not_protect_is_not_sent():
    with pytest.raises(ValueError, match=r"fisher\.precision beside the arrays"):
        answered(on_floats(local()), SENT, RETURNED, {"fisher.precision": record_of(SENT)})
    with pytest.raises(ValueError, match="not finite: w"):
        answered(on_floats(local()), SENT, RETURNED | {"w": np.array([1.0, np.nan], np.float32)})
    with pytest.raises(ValueError, match="names or shapes"):
        answered(on_floats(local()), SENT, {"w": RETURNED["w"]})


def test_what_training_draws_is_left_to_it():
    draws = []

    def train(message, context):
        draws.append(np.random.random())  # noqa: NPY002
        return Message(RecordDict({"arrays": record_of(SENT), "metrics": MetricRecord({"a": 1})}), reply_to=message)

    np.random.seed(3)  # noqa: NPY002
    for _ in range(2):
        on_floats(local(1.0), 7)(Message(RecordDict({"arrays": record_of(SENT)}), 2, "train"), CONTEXT, train)
    np.random.seed(3)  # noqa: NPY002
    assert draws == [np.random.random(), np.random.random()]  # noqa: NPY002


def test_an_error_of_the_mod_answers_the_message():
    message = Message(RecordDict({"arrays": record_of(SENT)}), 2, "train")  # tells no norm
    reply = on_floats(fixedclipping_mod)(
        message, CONTEXT, lambda m, c: Message(RecordDict({"arrays": record_of(RETURNED)}), reply_to=m)
    )
    assert reply.has_error()
    assert reply.metadata.reply_to_message_id == message.metadata.message_id
