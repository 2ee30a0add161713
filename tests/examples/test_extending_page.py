"""docs/extending.md: its commands make, install and run a project, and what the page shows of its files is there."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from extension_packages import ROOT, environment_with, install
from lean_environment import run_tool

from fedapps.cli.commands import main

PAGE = (ROOT / "docs" / "extending.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
SHELL = [line for language, text in BLOCKS if language == "sh" for line in text.splitlines()]


TRACKER = ROOT / "examples" / "csv-tracker"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project that the first command of the page writes."""
    folder = tmp_path_factory.mktemp("page")
    program, command, name, *options = shlex.split(SHELL[0])
    assert (program, command, name) == ("fedapps", "new", "blobs")
    assert main(["new", str(folder / name), *options]) == 0
    return folder / name


@pytest.mark.parametrize("block", [text for language, text in BLOCKS if language in ("toml", "python")])
def test_the_page_shows_lines_of_the_project(block: str, project: Path) -> None:
    sources = [path.read_text() for path in project.rglob("*.*") if path.suffix in (".py", ".toml")]
    shown = [line.partition("  # ")[0] for line in block.splitlines()]
    assert any(all(line in source.splitlines() for line in shown) for source in sources)


@pytest.mark.slow
@pytest.mark.subprocesses
def test_the_commands_of_the_page_make_a_comparison(project: Path, tmp_path: Path) -> None:
    assert SHELL[1] == "pip install ."
    for source in (project, TRACKER):
        install(source, tmp_path, tmp_path / "target")
    environment = environment_with(tmp_path / "target") | {"HOME": str(tmp_path / "home")}
    outputs = []
    for command in SHELL[2:]:
        program, *rest = shlex.split(command)
        assert program == "fedapps"
        more = ["--set", "trackers=csv"] if rest[0] == "run" else []
        outputs.append(run_tool(sys.executable, "-m", program, *rest, *more, folder=project, environment=environment))
    listed, ran, compared = outputs
    assert re.search(r"^  l2-init +FedAvg with a penalty", listed, re.MULTILINE)
    assert re.search(r"^  blobs +Tell two classes of points apart", listed, re.MULTILINE)
    assert re.search(r"^  csv +CSV files in the run folder", listed, re.MULTILINE)
    assert re.search(r"^l2-init +0\.\d+ ", ran, re.MULTILINE)
    report = (project / "runs" / "first" / "report.html").read_text()
    assert re.search(r"<h2>Worst node</h2><ul><li>local: blobs-00\d, accuracy \d\.\d\d</li><li>fedavg: ", report)
    tracked = (project / "runs" / "first" / "l2-init.csv").read_text().splitlines()
    rounds = [line.split(",")[0] for line in tracked if ",round/seconds," in line]
    assert rounds == ["1", "2", "3", "4", "5"]
    for method in ("fedavg", "l2-init", r"l2-init\(weight=1\)", r"fedprox\(mu=0.1\)"):
        assert re.search(rf"^{method} +0\.\d+ ± ", compared, re.MULTILINE), compared


def test_the_run_config_for_flower_is_what_the_command_line_packs() -> None:
    from flwr.common.config import parse_config_args

    from fedapps.config.keys import for_flower

    (line,) = (line for line in PAGE.splitlines() if line.startswith("flwr run ."))
    given = parse_config_args([shlex.split(line)[-1]])
    keys = {"blobs.examples": 90, "blobs.rotation": 20.0}
    run = {"task": "blobs", "methods": "l2-init(weight=1)", "collect-after": 0}
    assert given == for_flower(run | keys)
