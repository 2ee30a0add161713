"""Measures of continual learning, against a matrix worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedapps.base.report.metrics import describe, is_on_stage
from fedapps.runs.continual import (
    average,
    backward_transfer,
    continual_metrics,
    forward_transfer,
    last_rounds,
    measure_names,
    on_stage,
    so_far,
    stage_metrics,
    train_test_matrix,
)

#: Row i: after stage i + 1; column j: on stage j + 1.
P = np.array([[1.0, 5.0, 6.0], [2.0, 3.0, 7.0], [4.0, 2.5, 2.0]])


def row(number, values=(), metric="test.mse"):
    named = {on_stage(j, metric): value for j, value in enumerate(values, 1)}
    return {"round": number, "stage": "whatever", "evaluate": named and named | {"test.mse": 9.0, "num-examples": 3}}


def run(matrix, rounds_per_stage=2):
    """A run that also evaluates in the middle of its stages; these evaluations must be ignored."""
    rows = []
    for i, values in enumerate(matrix):
        rows += [row(i * rounds_per_stage + k, [99.0] * len(values)) for k in range(1, rounds_per_stage)]
        rows.append(row((i + 1) * rounds_per_stage, values))
    return rows


def test_the_measures_by_hand():
    assert average(P) == (1 + 3 + 2) / 3
    assert backward_transfer(P) == pytest.approx(((2 - 1) + (4 - 1) + (2.5 - 3)) / 3)
    assert forward_transfer(P) == (5 + 6 + 7) / 3
    np.testing.assert_allclose(so_far(P), [1, (2 + 3) / 2, (4 + 2.5 + 2) / 3])


def test_an_accuracy_that_is_forgotten_has_a_backward_transfer_below_zero():
    """Class-incremental: the model knows the newest stage alone, .9 of it right, and then .3 of the first one."""
    rows = run([[0.9, 0.0], [0.3, 0.9]])
    for one in rows:
        one["evaluate"] = {name.replace("mse", "accuracy"): value for name, value in one["evaluate"].items()}
    assert continual_metrics(rows, 2) == pytest.approx(
        {
            "test.average_accuracy": 0.9, "test.bwt_accuracy": -0.6, "test.fwt_accuracy": 0.0,
            "test.final_accuracy": 0.6, "test.incremental_accuracy": 0.75,
        }
    )  # fmt: skip
    assert [describe(name).better for name in ("test.bwt_accuracy", "test.bwt")] == [1, -1]


def test_the_matrix_is_read_at_the_end_of_each_stage():
    np.testing.assert_array_equal(train_test_matrix(run(P)), P)
    np.testing.assert_array_equal(train_test_matrix(run(P, 1)), P)
    np.testing.assert_array_equal(train_test_matrix(run(P)[::-1]), P)  # the order of the rows does not matter


def test_stages_that_have_not_finished_are_nan():
    matrix = train_test_matrix(run(P)[:5], rounds=6)  # round 5 evaluated, but the stage ends with round 6
    np.testing.assert_array_equal(matrix, [*P[:2], [np.nan] * 3])
    assert np.isnan(train_test_matrix([], num_stages=3)).all()
    assert train_test_matrix([row(1), row(2)]).shape == (0, 0)


def test_the_rounds_of_a_started_run_go_on_with_those_before_it():
    """Six rounds after six, of which the first three stages would end with the rounds 2, 4 and 6."""
    rows = [one | {"round": 6 + one["round"]} for one in run(P)]
    np.testing.assert_array_equal(train_test_matrix(rows, begun=6), P)
    np.testing.assert_array_equal(train_test_matrix(rows[:3], rounds=6, begun=6), [P[0], *[[np.nan] * 3] * 2])
    assert continual_metrics(rows, 3, rounds=6, begun=6) == continual_metrics(run(P), 3)


def test_a_stage_that_was_not_evaluated_is_nan():
    seen_only = [row(1, [1.0]), row(2, [2.0, 3.0])]
    np.testing.assert_array_equal(train_test_matrix(seen_only), [[1.0, np.nan], [2.0, 3.0]])
    means = {"test.final_mse": 2.5, "test.incremental_mse": 1.75}
    assert continual_metrics(seen_only, 2) == {"test.amse": 2.0, "test.bwt": 1.0, **means}


def test_one_stage_has_no_transfer():
    means = dict.fromkeys(("test.amse", "test.final_mse", "test.incremental_mse"), 3.0)
    assert continual_metrics([row(1, [4.0]), row(2, [3.0])], 1) == means
    assert np.isnan(backward_transfer(np.ones((1, 1))))
    assert np.isnan(forward_transfer(np.ones((1, 1))))


def test_every_split_and_metric_has_its_measures():
    rows = run(P)
    for r, (i, _) in zip(rows[1::2], enumerate(P), strict=True):
        r["evaluate"] |= {on_stage(j + 1, "validation.mse"): 2 * P[i, j] for j in range(3)}
        r["evaluate"] |= {on_stage(j + 1, "test.mae"): -P[i, j] for j in range(3)}
    expected = {"test.amse": 2.0, "test.bwt": 3.5 / 3, "test.fwt": 6.0}
    expected |= {"validation.amse": 4.0, "validation.bwt": 7 / 3, "validation.fwt": 12.0}
    expected |= {"test.average_mae": -2.0, "test.bwt_mae": -3.5 / 3, "test.fwt_mae": -6.0}
    final, means = 8.5 / 3, (1 + 2.5 + 8.5 / 3) / 3
    expected |= {"test.final_mse": final, "validation.final_mse": 2 * final, "test.final_mae": -final}
    expected |= {"test.incremental_mse": means, "validation.incremental_mse": 2 * means, "test.incremental_mae": -means}
    assert continual_metrics(rows, 3) == pytest.approx(expected)
    assert continual_metrics(rows[:5], 3, rounds=6).keys() == {"test.fwt", "validation.fwt", "test.fwt_mae"}
    assert continual_metrics(rows[:3], 3, rounds=6) == {}


def test_counts_of_examples_have_no_measures():
    rows = run(P)
    for one in rows:
        one["evaluate"] |= {f"{name}.count": 9.0 for name in list(one["evaluate"]) if is_on_stage(name)}
    assert stage_metrics(rows) == {"test.mse": 3}
    assert continual_metrics(rows, 3) == continual_metrics(run(P), 3)


def test_names():
    assert measure_names("test.mse") == ("test.amse", "test.bwt", "test.fwt", "test.final_mse", "test.incremental_mse")
    assert measure_names("mae") == ("average_mae", "bwt_mae", "fwt_mae", "final_mae", "incremental_mae")
    assert is_on_stage("stage-12.test.mse")
    for name in ("test.mse", *(f"stage-{number}.test.mse" for number in ("x", "0", "", "-1", "01"))):
        assert not is_on_stage(name), "nodes choose the names of their metrics"


def test_stages_share_the_rounds_equally():
    assert last_rounds(4, 12) == [3, 6, 9, 12]
    with pytest.raises(ValueError, match="rounds = 10: must be a multiple of the number of stages, 4"):
        last_rounds(4, 10)


@given(arrays(float, (4, 4), elements=st.floats(-100, 100)), st.floats(-100, 100))
def test_a_constant_added_to_every_error_moves_the_means_and_no_backward_transfer(matrix, constant):
    """So BWT says how errors change, AMSE and FWT how large they are."""
    assert average(matrix + constant) == pytest.approx(average(matrix) + constant, abs=1e-9)
    assert forward_transfer(matrix + constant) == pytest.approx(forward_transfer(matrix) + constant, abs=1e-9)
    assert backward_transfer(matrix + constant) == pytest.approx(backward_transfer(matrix), abs=1e-9)


@given(arrays(float, 5, elements=st.floats(-100, 100)))
def test_a_model_that_never_changes_transfers_nothing_back(errors):
    matrix = np.tile(errors, (5, 1))
    assert backward_transfer(matrix) == 0
    assert average(matrix) == pytest.approx(errors.mean(), abs=1e-9)
