"""What a node remembers of its earlier stages: by hand, and against the sum over all of them."""

import numpy as np
import pytest
import torch
from fedapps.clients.ewc_state import EwcState
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

F1, A1 = {"w": np.array([1.0, 2.0], np.float32)}, {"w": np.array([3.0, -1.0], np.float32)}
F2, A2 = {"w": np.array([0.5, 0.0], np.float32)}, {"w": np.array([1.0, 5.0], np.float32)}


def pull(prior, theta):
    parameter = nn.Parameter(torch.tensor(theta, dtype=torch.float64))
    parameter.grad = torch.zeros_like(parameter)
    prior.add_gradient({"w": parameter})
    return parameter.grad.tolist()


@pytest.mark.parametrize(
    ("anchors", "expected"),
    [
        # at θ = (2, 2), times λ = 10: F1 (θ − a1) = (−1, 6), F2 (θ − a2) = (.5, 0); online: (F1 + F2)(θ − a2)
        ("separate", [-5.0, 60.0]),
        ("online", [15.0, -60.0]),
        ("newest", [5.0, 0.0]),
    ],
)
def test_two_stages_by_hand(anchors, expected):
    past = EwcState().found(A1, F1).next_stage(anchors).found(A2, F2)
    assert pull(past.prior(10.0), [2.0, 2.0]) == [-10.0, 60.0]  # the current stage holds nothing yet
    assert pull(past.next_stage(anchors).prior(10.0), [2.0, 2.0]) == expected


def test_a_newer_solution_replaces_the_last_one():
    past = EwcState().found(A2, F2).found(A1, F1).next_stage("separate")
    assert pull(past.prior(1.0), [3.0, 0.0]) == [0.0, 2.0]


def test_without_a_finished_stage_or_a_weight_there_is_no_prior():
    assert EwcState().prior(1.0) is None
    assert EwcState().found(A1, F1).prior(1.0) is None
    assert EwcState().found(A1, F1).next_stage("separate").prior(0.0) is None


def test_a_stage_without_a_solution_leaves_the_past():
    past = EwcState().found(A1, F1).next_stage("separate")
    assert past.next_stage("separate") is past


def test_it_survives_being_kept():
    past = EwcState().found(A1, F1).next_stage("online").found(A2, F2)
    again = EwcState.read(past.arrays() | {"plateau": np.zeros(3)})
    assert again.arrays().keys() == past.arrays().keys()
    for name, array in past.arrays().items():
        np.testing.assert_array_equal(again.arrays()[name], array)


numbers = st.floats(-5, 5, width=32)


@given(st.lists(st.tuples(st.floats(0, 5, width=32), numbers), min_size=1, max_size=6), numbers)
def test_separate_anchors_pull_as_all_the_stages_do(stages, theta):
    past = EwcState()
    for precision, anchor in stages:
        past = past.found({"w": np.array([anchor], np.float32)}, {"w": np.array([precision], np.float32)})
        past = past.next_stage("separate")
    expected = sum(precision * (theta - anchor) for precision, anchor in stages)
    np.testing.assert_allclose(pull(past.prior(1.0), [theta]), [expected], atol=1e-9)
