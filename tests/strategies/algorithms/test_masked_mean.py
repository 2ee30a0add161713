"""The masked mean and its use by FedWeIT: by hand, against NumPy, and as FedAvg where all units are sent."""

import numpy as np
import pytest
from fedapps.strategies.aggregation import StreamingMean
from fedapps.strategies.algorithms.fedweit import FedWeIT, MaskedMean, mask_error
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.optimizers import SGD, Momentum
from flwr.app import MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from toys import arithmetic_app, arrays_of, federate, record_of, same_bits

ON = True
OFF = False


def mean_of(replies, weights, masks, integers="newest"):
    mean = MaskedMean(integers)
    for reply, weight, mask in zip(replies, weights, masks, strict=True):
        mean.add(reply, weight, mask)
    return mean


def averaged_units(values, weights, masks):
    """Σ w M θ / Σ w M of each unit, 0 where Σ w M is 0."""
    shares = np.array([w * np.broadcast_to(mask, values[0].shape) for w, mask in zip(weights, masks, strict=True)])
    total = shares.sum(axis=0)
    return np.divide((shares * np.array(values)).sum(axis=0), total, out=np.zeros_like(total), where=total > 0)


# -- the mean --------------------------------------------------------------------------------------------------


def test_weighted_mean_of_the_units_sent_by_hand():
    mean = mean_of(
        [{"w": np.array([1.0, 2.0, 7.0], np.float32)}, {"w": np.array([5.0, 8.0, 9.0], np.float32)}],
        [1, 3],
        [{"w": np.array([ON, ON, OFF])}, {"w": np.array([ON, OFF, OFF])}],
    )
    result = mean.result()["w"]
    assert result.dtype == np.float32
    assert result.tolist() == [(1 * 1 + 3 * 5) / 4, 2.0, 0.0]
    assert mean.sent_units()["w"].tolist() == [True, True, False]
    assert mean.count == 2


def test_a_mask_of_rows_applies_to_all_columns():
    mean = mean_of(
        [{"w": np.full((2, 3), 2.0)}, {"w": np.full((2, 3), 6.0)}],
        [1, 1],
        [{"w": np.array([[ON], [OFF]])}, {}],  # the second reply contains the complete array
    )
    assert mean.result()["w"].tolist() == [[4, 4, 4], [6, 6, 6]]
    assert mean.sent_units()["w"].tolist() == [[True], [True]]


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_the_mean_of_each_unit_is_that_of_numpy(data):
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=2, max_side=3))
    count = data.draw(st.integers(1, 6))
    values = [data.draw(hnp.arrays(np.float64, shape, elements=st.floats(-100, 100))) for _ in range(count)]
    weights = data.draw(st.lists(st.floats(1e-3, 1e6), min_size=count, max_size=count))
    masks = []
    for _ in range(count):
        distinguished = data.draw(st.tuples(*[st.booleans() for _ in shape]))
        own = tuple(side if told else 1 for side, told in zip(shape, distinguished, strict=True))
        masks.append(data.draw(hnp.arrays(np.bool_, own)))
    mean = mean_of([{"w": value} for value in values], weights, [{"w": mask} for mask in masks])
    np.testing.assert_allclose(mean.result()["w"], averaged_units(values, weights, masks), rtol=1e-9, atol=1e-9)
    sent = np.broadcast_to(mean.sent_units()["w"], shape)
    np.testing.assert_array_equal(sent, np.any([np.broadcast_to(mask, shape) for mask in masks], axis=0))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_values_of_units_that_were_not_sent_do_not_matter(data):
    mask = data.draw(hnp.arrays(np.bool_, (4,)))
    value, other, noise = (data.draw(hnp.arrays(np.float32, (4,), elements=st.floats(-9, 9, width=32))) for _ in "abc")
    results = [
        mean_of([{"w": other}, {"w": reply}], [2, 3], [{}, {"w": mask}]).result()
        for reply in (value, np.where(mask, value, noise))
    ]
    assert same_bits(*results)


@pytest.mark.parametrize("integers", ["newest", "round"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_with_all_masks_on_it_is_the_plain_mean_bit_for_bit(integers, data):
    dtype = data.draw(st.sampled_from([np.float16, np.float32, np.float64]))
    elements = st.floats(-100, 100, width=np.dtype(dtype).itemsize * 8) | st.just(-0.0)
    replies = [
        {"w": data.draw(hnp.arrays(dtype, (2, 3), elements=elements)), "steps": np.array(data.draw(st.integers(0, 99)))}
        for _ in range(data.draw(st.integers(1, 5)))
    ]
    weights = data.draw(st.lists(st.floats(1e-3, 1e6), min_size=len(replies), max_size=len(replies)))
    forms = st.sampled_from([{}, {"w": np.ones((2, 3), bool)}, {"w": np.ones((2, 1), bool)}])
    masks = data.draw(st.lists(forms, min_size=len(replies), max_size=len(replies)))
    plain = StreamingMean(integers)
    for reply, weight in zip(replies, weights, strict=True):
        plain.add(reply, weight)
    mean = mean_of(replies, weights, masks, integers)
    assert same_bits(mean.result(), plain.result())
    assert mean.sent_units()["w"].all()


def test_replies_are_not_changed():
    reply, mask = {"w": np.array([1.0, 2.0])}, {"w": np.array([ON, OFF])}
    mean = mean_of([reply, {"w": np.array([5.0, 6.0])}], [1, 1], [mask, {}])
    assert mean.result()["w"].tolist() == [3.0, 6.0]
    assert reply["w"].tolist() == [1.0, 2.0]
    assert mask["w"].tolist() == [True, False]


@pytest.mark.parametrize(
    ("mask", "fault"),
    [
        ({"v": np.ones(2, bool)}, "'v' belongs to no shared floating-point array"),
        ({"steps": np.array(True)}, "'steps' belongs to no shared floating-point array"),
        ({"w": np.ones((2, 2), bool)}, r"'w' has shape \[2, 2\]: must be \[2, 3\], or 1 along some dimensions"),
        ({"w": np.ones(3, bool)}, r"'w' has shape \[3\]"),
        ({"w": np.full((2, 3), 2)}, "'w': must hold booleans, or the integers 0 and 1"),
        ({"w": np.ones((2, 3))}, "'w': must hold booleans"),
    ],
)
def test_a_mask_that_does_not_fit_is_an_error(mask, fault):
    arrays = {"w": np.zeros((2, 3)), "steps": np.array(1)}
    with pytest.raises(ValueError, match=f"mask {fault}"):
        MaskedMean().add(arrays, 1, mask)
    assert mask_error({"w": np.array([[1], [0]])}, arrays) is None


def test_bad_replies_are_errors():
    mean = MaskedMean()
    with pytest.raises(ValueError, match="of no replies"):
        mean.result()
    with pytest.raises(ValueError, match="weight = 0"):
        mean.add({"w": np.ones(2)}, 0, {})
    mean = mean_of([{"w": np.ones(2)}], [1], [{}])
    with pytest.raises(ValueError, match="array 'w' must be"):
        mean.add({"w": np.ones(3)}, 1, {})


# -- FedWeIT ---------------------------------------------------------------------------------------------------

START = {"w": np.array([[1.0, 2.0], [3.0, 4.0]], np.float32), "b": np.array([0.5, -0.5], np.float32)}


def masked_reply(arrays, masks, examples=1):
    records = {"arrays": record_of(arrays), "metrics": MetricRecord({"num-examples": examples})}
    if masks:
        records["fedweit.mask"] = record_of(masks)
    return RecordDict(records)


def run(strategy, train, rounds=1, num_nodes=2, seen=None):
    result = federate(strategy, arithmetic_app(train, seen=seen), START, num_nodes=num_nodes, num_rounds=rounds)
    return arrays_of(result.arrays)


def test_units_that_no_node_sent_keep_the_values_of_the_server():
    seen = []

    def train(partition, arrays, config):
        # Node 0 sends the first row; node 1, with 3 examples, the first row too. Both send all of b.
        moved = {name: array + np.float32(partition + 1) for name, array in arrays.items()}
        return masked_reply(moved, {"w": np.array([[1], [0]])}, 1 + 2 * partition)

    arrays = run(FedWeIT(shared=["*"]), train, rounds=2, seen=seen)
    step = (1 * 1 + 3 * 2) / 4  # of each round
    np.testing.assert_array_equal(arrays["w"], [[1 + 2 * step, 2 + 2 * step], [3, 4]])
    np.testing.assert_array_equal(arrays["b"], [0.5 + 2 * step, -0.5 + 2 * step])
    sent = [arrays_of(m.content["arrays"])["w"].tolist() for m in seen if m.metadata.message_type == "train"]
    assert sent[:2] == [[[1, 2], [3, 4]]] * 2
    assert sent[2:] == [[[1 + step, 2 + step], [0, 0]]] * 2  # zeros where no node sent: nodes keep their own


def test_units_that_no_node_sent_have_no_pseudo_gradient():
    def train(partition, arrays, config):
        return masked_reply({n: a * 0 + 8 for n, a in arrays.items()}, {"w": np.array([[True, False], [False, False]])})

    arrays = run(FedWeIT(shared=["w"], server_optimizer=SGD(0.5)), train)
    np.testing.assert_array_equal(arrays["w"], [[4.5, 2], [3, 4]])


@pytest.mark.parametrize("optimizer", [SGD, lambda: SGD(0.7), lambda: Momentum(0.5)])
def test_with_all_masks_on_fedweit_is_fedavg_bit_for_bit(optimizer):
    def train(masks):
        def step(partition, arrays, config):
            moved = {n: a / 3 + np.float32((partition + 0.1) / config["server-round"]) for n, a in arrays.items()}
            return masked_reply(moved, masks, 1 + partition)

        return step

    full = {name: np.ones(array.shape, bool) for name, array in START.items()}
    fedavg = run(BaseStrategy(server_optimizer=optimizer()), train({}), rounds=3, num_nodes=3)
    for masks in ({}, {"w": full["w"]}, full):
        fedweit = run(FedWeIT(server_optimizer=optimizer()), train(masks), rounds=3, num_nodes=3)
        assert same_bits(fedweit, fedavg)
