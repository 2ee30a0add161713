"""TensorBoard's own reader finds the numbers of the run, each round once."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tracked_runs import SMALL, cut_and_resumed, expected


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    given = SMALL | {"cache-dir": str(tmp_path_factory.mktemp("worlds")), "trackers": "tensorboard"}
    return cut_and_resumed(given, tmp_path_factory.mktemp("runs"))


def reader(folder, method):
    found = EventAccumulator(str(folder.path / "tensorboard" / method), size_guidance={"scalars": 0, "tensors": 0})
    return found.Reload()


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_every_number_of_every_round_is_there_once(folder, method):
    found = reader(folder, method)
    rounds = expected(folder.path, method)
    tags = {tag for values in rounds.values() for tag in values}
    assert {tag for tag in found.Tags()["scalars"] if not tag.startswith("final/")} == tags
    assert {"evaluate/test.total_loss", "round/bytes_up", "nodes/robot-01/evaluate/test.total_loss"} <= tags
    for tag in tags:
        events = [(event.step, pytest.approx(event.value)) for event in found.Scalars(tag)]
        assert events == [(number, values[tag]) for number, values in rounds.items() if tag in values]


def test_final_metrics_config_and_report_are_there(folder):
    found = reader(folder, "fedavg")
    final = folder.summary()["methods"]["fedavg"]["final"]
    (excess,) = found.Scalars("final/test.excess")
    assert (excess.step, excess.value) == (3, pytest.approx(final["test.excess"]))
    (config,) = found.Tensors("run config/text_summary")
    assert b"| `lqr.horizon` | `6` |" in config.tensor_proto.string_val[0]
    (report,) = found.Tensors("report/text_summary")
    assert report.tensor_proto.string_val[0].decode() == f"`{folder.path / 'report.html'}`"
