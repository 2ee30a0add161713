"""The engineer's day of the page on a fleet over time: from the logs of robots to a model that a program uses."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from fedapps.tasks.lqr.world import optimal_gain, trajectories
from robot_logs import Messages, Recorded, write_bag

import fedapps
from fedapps.base.seeding import generator
from fedapps.cli.commands import main

PAGE = Path(__file__).parents[3] / "docs" / "fleet_over_time.md"
STEP = 0.1  # seconds, as in the draft of a mapping


def drives(weight: float) -> list[Recorded]:
    """The odometry and the commands of a robot in six drives, a minute apart."""
    ros, messages = Messages(), []
    rollouts = trajectories(weight, 6, 20, start_range=5.0, noise_variance=1e-4, rng=generator(0, "day", int(weight)))
    for number, rollout in enumerate(rollouts):
        for step, (y, v, u, *_) in enumerate(rollout):
            time = 100 + 60 * number + STEP * step
            messages.append(("/odom", time, ros.odometry(time, y, speed=v / STEP)))
            messages.append(("/cmd_vel", time, ros.twist((v + u) / STEP)))
    return messages


def test_from_a_bag_to_a_robot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    for module in ("app.server_app", "deployment.gate"):
        monkeypatch.setattr(f"fedapps.{module}.write_report", lambda path: path)
    monkeypatch.chdir(tmp_path)
    day = PAGE.read_text().partition("## The engineer's day")[2]
    commands, program = re.findall(r"```\w*\n(.*?)```", day, re.DOTALL)[:2]
    show, read, check, generation = (line.split("  #")[0].split()[1:] for line in commands.splitlines())
    for number, weight in enumerate((2.0, 50.0), start=6):
        log = write_bag(tmp_path / f"drive-{number}.mcap", drives(weight))
        capsys.readouterr()
        assert main([str(log) if word == "drive.mcap" else word for word in show]) == 0
        draft = capsys.readouterr().out
        (tmp_path / "mapping.toml").write_text(draft.replace('node = "robot"', f'node = "{number}"'))
        assert main([str(log) if word == "drive.mcap" else word for word in read]) == 0
    assert sorted(path.name for path in (tmp_path / "data").glob("*.csv")) == [f"robot-{n}.csv" for n in (6, 7)]

    recipe = {
        "base": "lqr", "methods": "fedper", "num-nodes": 2, "rounds": 4, "evaluate-every": 4, "learning-rate": 0.1,
        "registry": "champions", "track-metric": "test.total_loss",
    }  # fmt: skip
    (tmp_path / "weekly.toml").write_text(tomli_w.dumps(recipe))
    assert main(check) == 0
    assert generation[-2:] == ["--federation", "fleet"]
    assert main([*generation[:-2], "--set", f"data-dir={tmp_path / 'data'}"]) == 0
    names: dict[str, Any] = {"fedapps": fedapps}
    exec(program.replace("next(models)", "model = next(models); answer = model"), names)
    names["models"].close()
    gain = np.array(optimal_gain(50.0))
    assert names["answer"] == pytest.approx(-gain @ [1.0, 0.5], abs=0.1)
