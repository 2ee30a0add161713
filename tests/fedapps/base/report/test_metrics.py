"""Names of metrics and formats of numbers."""

import pytest

from fedapps.base.report.metrics import columns, describe, main_metric, measures
from fedapps.base.report.numbers import format_bytes, format_duration, format_number


@pytest.mark.parametrize(
    ("name", "axis", "better"),
    [
        ("test.elbo", "test ELBO loss", -1),
        ("closed_loop.time_to_lane_change", "closed loop time to lane change [s]", -1),
        ("closed_loop.distance_at_start", "closed loop distance at start [m]", 0),
        ("closed_loop.start_rate", "closed loop start rate", 1),
        ("test.error_1.5s", "test error 1.5s", -1),
        ("unseen.spl", "unseen SPL", 1),
        ("test.recall@5", "test recall@5", 1),
        ("b-error", "b error", -1),
        ("val_unseen.ne", "val unseen NE [m]", -1),
        ("val_seen.ndtw", "val seen nDTW", 1),
        ("val_unseen.bleu", "val unseen BLEU", 1),
        ("val_unseen.distinct", "val unseen distinct", 1),
    ],
)
def test_label_unit_and_direction_follow_from_the_name(name: str, axis: str, better: int) -> None:
    assert (describe(name).axis, describe(name).better) == (axis, better)


def test_numbers_sizes_and_durations_as_text() -> None:
    assert [format_number(v) for v in (0.0, 0.016, -61.2, 12345.6, 3e-7, 70.0, float("nan"))] == [
        "0",
        "0.01600",
        "−61.20",
        "12,346",
        "3.000e−07",
        "70",
        "NaN",
    ]
    assert [format_number(v, 2) for v in (0.00074, 33.2, 332.4, 1.26)] == ["0.00074", "33", "332", "1.3"]
    assert format_number(1869.6) == "1,870"
    assert [format_bytes(v) for v in (0, 999, 11_400_000, 2.5e9)] == ["0 B", "999 B", "11.4 MB", "2.5 GB"]
    assert [format_duration(v) for v in (1.24, 235.0, 7260.0)] == ["1.24 s", "3 min 55 s", "2 h 01 min"]


def test_columns_start_with_continual_learning() -> None:
    names = ["test.mse", "stage-2.test.mse", "num-examples", "test.fwt", "trainable_parameters", "test.amse"]
    assert measures(names) == ["test.mse", "test.fwt", "trainable_parameters", "test.amse"]
    assert columns(["validation.bwt", "other", "bwt"]) == ["bwt", "other", "validation.bwt"]
    assert columns(names) == ["test.amse", "test.fwt", "trainable_parameters", "test.mse"]
    assert main_metric(names) == "test.amse"
    assert main_metric(["validation.mse", "test.mse"]) == "test.mse"
    assert main_metric(["validation.mse"]) == "validation.mse"
    final = "test.final_global_accuracy"
    assert main_metric(["test.global_accuracy", "test.average_global_accuracy", final]) == final
    assert main_metric(["val_seen.ne", "val_seen.sr", "val_unseen.ne", "val_unseen.sr"]) == "val_unseen.sr"
    assert main_metric(["val_seen.bleu", "val_seen.distinct"]) == "val_seen.bleu"
