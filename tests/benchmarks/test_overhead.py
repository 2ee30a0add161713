"""The overhead benchmark: its command line, its app in one process, and ratios and medians of pairs by hand."""

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedapps.sim.inprocess import run_inprocess

from benchmarks import overhead
from benchmarks.overhead import STRATEGIES, Pair, RunTime, parser, report
from benchmarks.overhead_app.client_app import app as client_app
from benchmarks.overhead_app.server_app import app as server_app

ROUNDS = 3


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["--nodes", "1"], "argument --nodes: 1: must be at least 2"),
        (["--rounds", "1"], "argument --rounds: 1: must be at least 2"),
        (["--pairs", "0"], "argument --pairs: 0: must be at least 1"),
        (["--megabytes", "1,0"], "argument --megabytes: 1,0: must be numbers above 0"),
        (["--megabytes", "1,big"], "argument --megabytes: 1,big: must be numbers above 0"),
    ],
)
def test_values_out_of_range_are_refused(given: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(given)
    assert complaint in capsys.readouterr().err


def test_sizes_are_separated_by_commas() -> None:
    assert parser().parse_args(["--megabytes", "0.01,10"]).megabytes == [0.01, 10.0]


class InProcess:
    """Replaces a deployment: runs the app in this process, or fails."""

    def __init__(self, folder: Path, *, works: bool) -> None:
        self.folder, self.works, self.nodes = folder, works, 0
        self.ran: list[tuple[str, float]] = []
        (folder / "superlink.log").write_text("what the SuperLink says")

    def start_superlink(self) -> None:
        pass

    def start_supernodes(self, configs: Sequence[Any]) -> None:
        self.nodes = len(configs)

    def run(self, app: Path, config: dict[str, Any], show: Callable[[str], None]) -> None:
        self.ran.append((config["strategy"], config["megabytes"]))
        show("what the run says")
        if self.works:
            run_inprocess(server_app, client_app, num_nodes=self.nodes, run_config=config, errors="reply")


def measure(monkeypatch: pytest.MonkeyPatch, fleet: InProcess) -> int:
    monkeypatch.setattr(overhead, "deployment", lambda folder: nullcontext(fleet))
    return overhead.main(
        ["--nodes", "3", "--rounds", "3", "--megabytes", "0.001,0.002", "--arrays", "4", "--pairs", "2"]
    )


def test_the_order_of_strategies_alternates_and_each_size_has_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = InProcess(tmp_path, works=True)
    assert measure(monkeypatch, fleet) == 0
    turns = ["flower", "fedapps", "fedapps", "flower"]
    assert fleet.ran == [("flower", 0.001), *((turn, size) for size in (0.001, 0.002) for turn in turns)]
    said = capsys.readouterr().out
    assert said.count("in 2 pairs") == 2
    assert [path.name for path in tmp_path.iterdir()] == ["superlink.log"]


def test_a_failed_run_is_reported_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert measure(monkeypatch, InProcess(tmp_path, works=False)) == 1
    said = capsys.readouterr().err
    assert "what the run says" in said
    assert "what the SuperLink says" in said


def test_both_strategies_are_measured_and_end_with_the_same_arrays(tmp_path: Path) -> None:
    ends = []
    for strategy in STRATEGIES:
        output = tmp_path / strategy
        output.mkdir()
        config = {
            "strategy": strategy,
            "rounds": ROUNDS,
            "nodes": 3,
            "megabytes": 0.001,
            "arrays": 4,
            "as-fedapps": False,
        }
        run_inprocess(server_app, client_app, num_nodes=3, run_config=config | {"output": str(output)}, errors="reply")
        told = json.loads((output / "rounds.json").read_text())
        assert len(told["rounds"]) == ROUNDS
        for took in told["rounds"]:
            assert 0 <= took["nodes"] + took["fetch"] <= took["seconds"] > 0
        assert 10 < told["peak_megabytes"] < 100_000
        with np.load(output / "arrays.npz") as saved:
            ends.append([saved[name] for name in saved.files])
    theirs, ours = ends
    assert len(theirs) == 4
    for a, b in zip(theirs, ours, strict=True):
        assert a.dtype == b.dtype == np.float32
        assert len(a) == round(1000 / 4 / 4)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


# -- pairs -----------------------------------------------------------------------------------------------------------


def took(*later: float, peak: float = 100.0) -> RunTime:
    rounds = [{"seconds": seconds, "nodes": 2.0, "fetch": 1.0} for seconds in (9.0, *later)]
    return RunTime.read({"rounds": rounds, "peak_megabytes": peak})


def test_the_first_round_is_separate_and_the_others_are_averaged() -> None:
    assert took(4.0, 6.0) == RunTime(first=9.0, later=5.0, nodes=2.0, fetch=1.0, peak=100.0)
    assert took(4.0, 6.0).server == 2.0


def test_one_round_is_refused() -> None:
    with pytest.raises(ValueError, match="at least two"):
        took()


def test_ratios_are_computed_within_pairs() -> None:
    """The ratio of the medians would be 5 / 5 = 1, although ours is faster in two of three pairs."""
    pairs = [
        Pair(took(theirs), took(ours, peak=80.0), apart)
        for theirs, ours, apart in [(4.0, 5.0, 1e-7), (5.0, 4.0, 2e-7), (10.0, 8.0, 0.0)]
    ]
    assert [pair.ratio() for pair in pairs] == [1.25, 0.8, 0.8]
    table = report(0.5, pairs).splitlines()
    assert table[0] == "0.5 MB"
    assert cells(table[3]) == ["9", "5", "2", "1", "2", "100"]
    assert cells(table[4]) == ["9", "5", "2", "1", "2", "80"]
    assert table[5].startswith("later rounds, ours / Flower's: 0.800 (0.800 to 1.250 in 3 pairs)")
    assert "at most 2e-07" in table[5]


def cells(line: str) -> list[Any]:
    return line.split()[-6:]
