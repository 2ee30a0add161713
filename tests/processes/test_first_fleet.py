"""An engineer's first fleet: from three folders of images to a model that answers, by the commands of the pages.

The README of a new project has the commands, with the addresses and names of an example. They are typed with those of
this machine, on which the server and all nodes share the project's folder.
"""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import tomli_w
from image_files import CLASSES, drawn, png, write_folders

from fedapps.base.processes import end_groups, flower_environment, free_port
from fedapps.deployment.submission import wait_until_healthy
from fedapps.deployment.superlink import started_run

pytestmark = [pytest.mark.processes, pytest.mark.slow]

NODES = ("lima", "oslo", "rome")
TRAINING = {"methods": "fedavg", "rounds": 1, "evaluate-every": 1, "epochs": 40}


class Terminal:
    """Runs lines of the shell in ``folder``, for a user whose home folder is empty at first."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        self._environment = flower_environment(home / ".flwr") | {"HOME": str(home)}
        self.last_log = folder
        self._started: list[subprocess.Popen[bytes]] = []

    def run(self, line: str, status: int = 0) -> str:
        """Run a line, which must end with the exit status ``status``. Return what it prints."""
        with (self.folder / "typed.log").open("w+") as log:
            ended = subprocess.run(
                line, shell=True, cwd=self.folder, env=self._environment, stdout=log, stderr=log, check=False
            )
            log.seek(0)
            printed = log.read()
        assert ended.returncode == status, f"{line}\n{printed}"
        return printed

    def start(self, line: str, **variables: int) -> subprocess.Popen[bytes]:
        """Start a line that ends when the terminal closes; ``last_log`` has what it prints."""
        environment = self._environment | {name: str(value) for name, value in variables.items()}
        self.last_log = self.folder / f"started-{len(self._started)}.log"
        with self.last_log.open("wb") as log:
            process = subprocess.Popen(
                f"exec {line}",
                shell=True, cwd=self.folder, env=environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._started.append(process)
        return process

    def close(self) -> None:
        """End what was started, the first process last: it is the server, from which the nodes sign off."""
        end_groups(self._started[1:])
        end_groups(self._started[:1])


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    home = tmp_path / "home"
    (home / ".flwr").mkdir(parents=True)
    opened = Terminal(tmp_path, home)
    yield opened
    opened.close()


def images_of(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Thirty images uint8 ``[30, 8, 8, 3]`` and their classes; in those of a class, one colour is dark."""
    pixels, labels = drawn(30, height=8, width=8, seed=seed)
    pixels[np.arange(30), :, :, labels] //= 8
    return pixels, labels


def test_from_three_folders_to_a_model_that_answers(terminal: Terminal, tmp_path: Path) -> None:
    for seed, node in enumerate(NODES):
        write_folders(tmp_path / "photos" / node / "train", *images_of(seed))
    terminal.run("fedapps new pets --recipe images-digits --deployment")
    project = terminal.folder = tmp_path / "pets"
    port = free_port()
    page = (project / "README.md").read_text().partition("## Deploy")[2]
    for example, value in {
        "fl.example.org:9092": f"127.0.0.1:{port}",
        "127.0.0.1:8000": f"127.0.0.1:{port}",
        "fl.example.org 10.0.0.7": "127.0.0.1",
        "/data": "../photos",
        "/path/to/pets": str(project),
        "car-7": "NODE",
    }.items():
        assert example in page
        page = page.replace(example, value)
    block, settings = re.findall(r"```(?:toml)?\n(.*?)```", page, re.DOTALL)
    check, rehearse, serve, join, register, deploy, predict = (line.split("  #")[0] for line in block.splitlines())

    # docs/data.md: a name for the data set; `check-node` prints the other keys; without them, it refuses the node.
    assert "a name of your own for images.dataset" in terminal.run(check.replace("NODE", NODES[0]), status=1)
    recipe = {"base": "images-digits", **TRAINING, "images": {"dataset": "pets", "model": "mlp"}}
    (project / "pets.toml").write_text(tomli_w.dumps(recipe))
    printed = dict(re.findall(r"--set (images\.\w+)=(\S+)", terminal.run(check.replace("NODE", NODES[0]), status=2)))
    assert printed == {"images.labels": ",".join(CLASSES), "images.height": "8", "images.width": "8"}
    (project / "pets.toml").write_text(tomli_w.dumps(recipe | {"images": recipe["images"] | {
        name.removeprefix("images."): int(value) if value.isdigit() else value for name, value in printed.items()
    }}))  # fmt: skip
    fleet = project / "pets-fleet.toml"
    fleet.write_text(fleet.read_text().replace("num-nodes = 2", f"num-nodes = {len(NODES)}"))
    assert f"{len(NODES)} SuperNodes are connected" in terminal.run(rehearse)

    superlink = terminal.start(serve, CONTROL_PORT=port)
    while not (project / "certificates" / "ca.crt").exists() and superlink.poll() is None:
        time.sleep(0.1)
    assert wait_until_healthy(superlink, port, project / "certificates" / "ca.crt")
    (tmp_path / "home" / ".flwr" / "config.toml").write_text(settings)
    for node in NODES:
        assert "this node can join" in terminal.run(join.replace("NODE", node))
        terminal.run(register.replace("NODE", node))
        terminal.start(join.replace("NODE", node), NODE_PORT=free_port())
    terminal.run(deploy)
    assert (tmp_path / "home" / "fedapps" / "runs" / "pets-fleet" / "report.html").exists()
    refused = terminal.run(deploy, status=1)  # the run has the name of the one before
    assert re.search(r"run \d+ did not complete \(finished:failed\): see its log above", refused), refused
    stopped = terminal.start(f"{deploy} --set name=stopped --set rounds=1000")
    while not (run := started_run(terminal.last_log.read_text())):
        assert stopped.poll() is None, terminal.last_log.read_text()
        time.sleep(0.1)
    terminal.run(f"flwr stop {run} fleet")
    assert stopped.wait() == 1
    assert f"run {run} did not complete (finished:stopped)" in terminal.last_log.read_text()

    pixels, labels = images_of(seed=9)
    (project / "new.png").write_bytes(png(pixels[1]))
    assert json.loads(terminal.run(predict.replace("FILE", "new.png")))["label"] == CLASSES[labels[1]]
    terminal.run("fedapps export ~/fedapps/runs/pets-fleet --method fedavg --format onnx --output exported")
    session = onnxruntime.InferenceSession(project / "exported" / "model.onnx")
    (logits,) = session.run(None, {"images": pixels.transpose(0, 3, 1, 2)})
    assert (logits.argmax(axis=1) == labels).all()
