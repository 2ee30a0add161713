"""The script for a GPU: its checks, on a machine without one."""

import json

import numpy as np
import pytest

from benchmarks import gpu
from fedapps.registry.tasks import own_tasks


def test_every_task_has_its_check_and_none_begins_after_its_time(capsys):
    assert gpu.main(["--device", "cpu", "--minutes", "0"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["outcome"] for row in rows} == {"not begun: the time is over"}
    assert {row["check"] for row in rows} > {f"{task} as on the CPU" for task in own_tasks()}


@pytest.mark.parametrize("outcome", ["ok", "failed: broken"])
def test_a_check_that_fails_is_counted_and_the_next_one_begins(outcome, monkeypatch, tmp_path, capsys):
    def first(folder):
        if outcome != "ok":
            raise ValueError("broken")
        return {}

    monkeypatch.setattr(gpu, "_checks", lambda device: iter([("first", first), ("second", lambda folder: {})]))
    rows = tmp_path / "rows.json"
    assert gpu.main(["--device", "cpu", "--json", str(rows)]) == (outcome != "ok")
    assert [json.loads(line)["outcome"] for line in rows.read_text().splitlines()] == [outcome, "ok"]


@pytest.mark.slow
def test_an_encoder_of_random_weights_trains_whole_and_as_lora(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "_MINILM", {**gpu._MINILM, "hidden_size": 24, "intermediate_size": 48, "vocab_size": 5000})
    for adapter in ("", "lora"):
        row = gpu._encoder("cpu", adapter, tmp_path / adapter)
        assert row["difference"] == 0 < row["run_seconds"]


@pytest.mark.parametrize(("draws", "gap"), [(False, 0.01), (True, np.nan)])
def test_other_parameters_than_on_the_cpu_are_an_error(draws, gap, monkeypatch, tmp_path):
    """A network that draws on the device itself must only end with finite numbers."""
    ends = {"device": {"w": np.array([1 + gap, 2])}, "cpu": {"w": np.array([1.0, 2.0])}}
    monkeypatch.setattr(gpu, "_run", lambda folder, name, *_: name)
    monkeypatch.setattr(gpu, "_arrays", ends.get)
    with pytest.raises(ValueError, match=r"a parameter differs by (0\.01|nan); at most 0\.005"):
        gpu._agrees("cpu", "", {}, draws, tmp_path)
    ends["device"] = {"w": np.array([1.004 + draws, 2])}
    assert gpu._agrees("cpu", "", {}, draws, tmp_path)["difference"] == pytest.approx(0.004 + draws)
