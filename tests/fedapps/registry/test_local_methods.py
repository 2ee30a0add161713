"""Methods that a file or a script defines, without a package."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedapps.cli.commands import main
from fedapps.methods.fedprox import FedProx
from fedapps.registry.methods import method_class, method_names, named, use_file

METHOD = """
from dataclasses import dataclass

from fedapps.methods.base import Method
from fedapps.base.options import option


@dataclass(frozen=True)
class BriefOptions:
    epochs: int = option(2, "local epochs", minimum=1)


class Brief(Method):
    name = "brief"
    summary = "FedAvg with few local epochs"
    Options = BriefOptions

    def training(self, training):
        return training.for_epochs(self.options.epochs)
"""
TINY = {"rounds": 1, "num-nodes": 2, "epochs": 1, "lqr.trajectories": 4, "lqr.horizon": 5}


@pytest.fixture(autouse=True)
def _no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDAPPS_METHODS", "")


@pytest.fixture
def method_file(tmp_path: Path) -> Path:
    path = tmp_path / "brief.py"
    path.write_text(METHOD)
    return path


def test_the_method_of_a_file_is_known_by_its_name(method_file: Path) -> None:
    use_file(method_file)
    assert "brief" in method_names()
    assert method_class("brief")(epochs=3).options.epochs == 3


def test_a_command_runs_the_method_of_a_file(method_file: Path, tmp_path: Path) -> None:
    given = [f"--set={key}={value}" for key, value in TINY.items()] + [f"--set=cache-dir={tmp_path / 'worlds'}"]
    where = ["--output-dir", str(tmp_path), "--engine", "inline", "--method-file", str(method_file)]
    assert main(["run", "lqr", "--set", "methods=brief(epochs=1)", "--set", "name=r", *given, *where]) == 0
    assert "brief(epochs=1)" in json.loads((tmp_path / "r" / "summary.json").read_text())["methods"]


@pytest.mark.slow
@pytest.mark.subprocesses
def test_a_script_compares_its_own_class(tmp_path: Path) -> None:
    """The runs are other processes, which do not import the script."""
    script = tmp_path / "script.py"
    body = (
        f"fedapps.compare('lqr', {TINY!r}, methods=['fedavg', Brief(epochs=1)], seeds=1, output_dir={str(tmp_path)!r})"
    )
    script.write_text(f"import fedapps\n{METHOD}\nif __name__ == '__main__':\n    print({body}.methods)\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "('fedavg', 'brief(epochs=1)')"


def test_an_instance_is_written_with_the_options_that_differ() -> None:
    assert named(["fedavg", FedProx, FedProx(mu=0.25)]) == "fedavg,fedprox,fedprox(mu=0.25)"
    assert named("fedavg, local") == "fedavg, local"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no subclass of fedapps.methods.base.Method with a name"),
        ("import nothing_of_this_name", "cannot be imported (ModuleNotFoundError: No module named"),
    ],
)
def test_a_file_without_a_method_is_refused_and_not_kept(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "empty.py").write_text(text)
    with pytest.raises(ValueError, match=re.escape(said)):
        use_file(tmp_path / "empty.py")
    assert os.environ["FEDAPPS_METHODS"] == ""


def test_a_missing_file_and_a_name_that_is_taken_twice_are_refused(method_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere\.py: no such file; give a Python file"):
        use_file(tmp_path / "nowhere.py")
    use_file(method_file)
    (tmp_path / "other.py").write_text(METHOD)
    with pytest.raises(ValueError, match="the method 'brief' is also in another file"):
        use_file(tmp_path / "other.py")
