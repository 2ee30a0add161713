"""The overhead benchmark: its app in one process, its row, and a run that fails."""

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from fedapps.sim.inprocess import run_inprocess

from benchmarks import overhead
from benchmarks.overhead_app.client_app import app as client_app
from benchmarks.overhead_app.server_app import app as server_app
from fedapps.deployment.processes import FleetError


class InProcess:
    """Replaces a deployment: runs the app in this process, or fails."""

    def __init__(self, folder: Path, *, works: bool = True) -> None:
        self.folder, self.works, self.nodes = folder, works, 0
        self.ran: list[str] = []
        folder.mkdir()
        (folder / "superlink.log").write_text("what the SuperLink says")

    def start_superlink(self) -> None:
        pass

    def start_supernodes(self, configs: Sequence[Any]) -> None:
        self.nodes = len(configs)

    def run(self, app: Path, config: dict[str, Any], show: Callable[[str], None]) -> None:
        self.ran.append(config["strategy"])
        show("what the run says")
        if self.works:
            config |= {"as-fedapps": False}  # the in-process grid packs no arrays
            run_inprocess(server_app, client_app, num_nodes=self.nodes, run_config=config, errors="reply")


def test_both_strategies_are_measured_end_with_the_same_arrays_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = (InProcess(tmp_path / name) for name in ("ours", "theirs"))
    monkeypatch.setattr(overhead, "deployment", lambda _, plain=False: nullcontext(theirs if plain else ours))
    path = tmp_path / "rows.json"
    sizes = ["--nodes", "3", "--rounds", "3", "--megabytes", "0.001", "--arrays", "4", "--pairs", "2"]
    assert overhead.main([*sizes, "--flower-nodes", "flower", "--json", str(path)]) == 0
    assert (ours.ran, theirs.ran) == (["fedapps"] * 3, ["flower"] * 3)
    row = json.loads(path.read_text())
    assert (row["name"], row["side"]) == (
        "round of 3 nodes, 0.001 MB [s]",
        "FedAvg of Flower on Flower's SuperNodes",
    )
    assert 0 < row["least"] <= row["ratio"] <= row["most"]
    assert 10 < row["ours_megabytes"] < 100_000
    assert [path.name for path in ours.folder.iterdir()] == ["superlink.log"]


def test_a_failed_run_is_reported_with_its_log(tmp_path: Path) -> None:
    fleet: Any = InProcess(tmp_path / "fleet", works=False)
    with pytest.raises(FleetError, match=r"what the run says\nend of the SuperLink's:\nwhat the SuperLink says"):
        overhead.measured(fleet, {"strategy": "flower"})
