"""The stages of FedVLN in drawn houses: a process that is killed in augmented training goes on there."""

import os
import signal
import subprocess
import sys

import pytest
import tomli_w
from drawn_houses import run_keys, write_world
from pipelines import assert_same_results, results, run_pipeline

BEST = "checkpoints/fedavg/best.safetensors"
STAGES = {
    "agent": {"track-metric": "val_seen.sr", "track-mode": "max"},
    "speaker": {"vln.stage": "speaker", "track-metric": "val_seen.bleu", "track-mode": "max"},
    "augmented": {
        "vln.stage": "augmented", "vln.agent-file": f"{{agent}}/{BEST}", "vln.speaker-file": f"{{speaker}}/{BEST}",
    },
}  # fmt: skip

#: `fedapps run` in a process that is killed when the first round of augmented training has been recorded.
KILLED = """
import os, signal, sys
import fedapps.app.server_app as server_app
from fedapps.runs.run_folder import RunFolder
from pipelines import run_pipeline
from pathlib import Path

def record_and_die(self, method, label, report, record=RunFolder.record):
    record(self, method, label, report)
    if (self.path.name, report.round) == ("augmented", 1):
        os.kill(os.getpid(), signal.SIGKILL)

RunFolder.record = record_and_die
server_app.write_report = lambda folder: (folder / "report.html").touch()
run_pipeline(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
"""


@pytest.mark.slow
@pytest.mark.subprocesses
def test_a_kill_in_augmented_training_resumes_there(tmp_path, monkeypatch):
    recipe = tmp_path / "stages.toml"
    keys = run_keys(write_world(tmp_path / "world")) | {"methods": "fedavg", "num-nodes": 3, "rounds": 3}
    del keys["name"]
    recipe.write_text(tomli_w.dumps(keys | {"pipeline": STAGES}))

    def settings(name):
        return "name=pipe", f"vln.feature-cache={tmp_path / f'{name}-cache'}"

    assert run_pipeline(recipe, tmp_path / "whole", *settings("whole")) == 0
    python = [sys.executable, "-c", KILLED, str(recipe), str(tmp_path / "cut"), *settings("cut")]
    known = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run(python, check=False, env=known).returncode == -signal.SIGKILL
    folder = tmp_path / "cut" / "pipe"
    before = {path: path.stat().st_mtime_ns for stage in ("agent", "speaker") for path in (folder / stage).rglob("*")}
    monkeypatch.setattr("fedapps.tasks.vln.nodes.label_paths", None)  # every house has its labels
    assert run_pipeline(recipe, tmp_path / "cut", *settings("cut"), "resume=true") == 0
    assert before == {path: path.stat().st_mtime_ns for path in before}, "finished stages"
    for stage in STAGES:
        assert_same_results(results(folder / stage), results(tmp_path / "whole" / "pipe" / stage))
