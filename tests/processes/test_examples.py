"""The projects in ``examples/`` run to their ends and show what their pages say, on every engine."""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from example_apps import EXAMPLES, load_example, told
from extension_packages import environment_with, install_examples
from fedapps.sim.inprocess import run_inprocess
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from lean_environment import make_environment, run_example, run_tool
from toys import same_bits

from fedapps.runs.checkpoints import read_snapshot

PROJECT = EXAMPLES.parent
#: The in-process engine; no strategy is among these modules.
_ENGINE = (
    *("sim/inprocess.py", "sim/joint_work.py", "sim/flower_internals.py"),
    *(f"fedapps/base/{name}.py" for name in ("seeding", "atomic", "errors", "processes")),
    *("strategies/arrays.py", "strategies/wire.py"),
)


def rounds(log: pytest.LogCaptureFixture, metric: str, folder: str, nodes: int, **settings: Any) -> list[float]:
    """The metric of an example's rounds in one process."""
    server_app, client_app, config = load_example(EXAMPLES / folder)
    log.clear()
    run_inprocess(server_app, client_app, num_nodes=nodes, run_config=config | settings, errors="reply")
    return told(log.text, metric)


def test_fedcurv_comes_near_to_what_all_data_together_say(caplog: pytest.LogCaptureFixture) -> None:
    fedcurv = rounds(caplog, "eval_error", "fedcurv-toy", 3)
    fedavg = rounds(caplog, "eval_error", "fedcurv-toy", 3, **{"others-now": 0.0})
    assert fedcurv[0] == fedavg[0], "nobody has published anything yet"
    assert fedcurv[-1] < 0.2 * fedavg[-1]

    from fedcurv_toy.task import TRUTH, load_data

    x, y = (np.concatenate(parts) for parts in zip(*map(load_data, range(3)), strict=True))
    together = np.linalg.lstsq(x, y)[0]
    assert fedcurv[-1] < 2 * np.sum((together - TRUTH) ** 2)


def test_secure_aggregation_in_seven_lines_learns_what_all_nodes_have_in_common(
    capsys: pytest.CaptureFixture[str],
) -> None:
    server_app, client_app, config = load_example(EXAMPLES / "secure-sum")
    sent: list[list[str]] = []

    def watched(message: Message, context: Context) -> Message:
        reply = client_app(message, context)
        sent.append(list(reply.content))
        return reply

    run_inprocess(server_app, watched, num_nodes=5, run_config=config, errors="reply")  # type: ignore[arg-type]
    text = re.search(r"weights: \[(.*)\]; train_loss: (\S+)", capsys.readouterr().out)
    assert text
    np.testing.assert_allclose(np.array(text[1].split(), float), [1.0, -2.0, 0.5], atol=0.03)
    assert float(text[2]) < 0.02
    assert {tuple(names) for names in sent} == {("secagg",), ("secagg.masked",)}


def test_private_heads_differ_and_classify_where_a_common_head_cannot(caplog: pytest.LogCaptureFixture) -> None:
    server_app, client_app, config = load_example(EXAMPLES / "pytorch-partial")
    sent: list[set[str]] = []
    states: dict[int, Context] = {}

    def watched(message: Message, context: Context) -> Message:
        reply = client_app(message, context)
        sent.extend(set(record) for record in reply.content.array_records.values())
        states[int(context.node_config["partition-id"])] = context
        return reply

    run_inprocess(server_app, watched, num_nodes=5, run_config=config, errors="reply")  # type: ignore[arg-type]
    accuracy = told(caplog.text, "eval_acc")
    assert accuracy[-1] > 0.9
    assert sent
    assert not any(name.startswith("head.") for names in sent for name in names)
    records = [next(reversed(context.state.array_records.values())) for _, context in sorted(states.items())]
    heads = [record["head.weight"].numpy() for record in records]
    assert len(heads) == 5
    assert all((first != second).any() for i, first in enumerate(heads) for second in heads[:i])

    from pytorch_partial.client_app import evaluate, train
    from pytorch_partial.task import Net

    unguarded, common = ClientApp(), ServerApp()
    unguarded.train()(train)
    unguarded.evaluate()(evaluate)

    @common.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg()
        result = strategy.start(grid, ArrayRecord(Net().state_dict()), 10, train_config=ConfigRecord({"lr": 0.1}))
        accuracy.append(float(result.evaluate_metrics_clientapp[10]["eval_acc"]))

    run_inprocess(common, unguarded, num_nodes=5, run_config=config)
    assert accuracy[-1] < 0.6


def test_a_copy_of_strategies_runs_where_this_project_is_not_installed(tmp_path: Path) -> None:
    app = shutil.copytree(EXAMPLES / "vendored", tmp_path / "vendored")
    run_tool("sh", app / "vendor.sh", PROJECT / "strategies")
    engine = tmp_path / "engine"
    for module in _ENGINE:
        copy = engine / "fedapps" / module if module.startswith(("sim/", "strategies/")) else engine / module
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROJECT / module, copy)
    python = make_environment(tmp_path / "environment", "flwr")
    losses = told(run_example(python, engine, app, 3), "eval_loss")
    assert len(losses) == 10
    assert losses[-1] < 0.2 * losses[0]


def run_extended(command: list[str], packages: Path, folder: Path) -> Path:
    """Run a command of fedapps on methods and a task of other packages; the run's folder."""
    methods = ["fedsam(radius=0.1)", "fedbn"]
    given = {"methods": ",".join(methods), "num-nodes": 2, "rounds": 2, "epochs": 1, "evaluate-every": 2, "name": "run"}
    given |= {"tabular.dataset": "breast-cancer", "tabular.alpha": 5.0, "tabular.batch-norm": True}
    pairs = [f"--set={key}={json.dumps(value)}" for key, value in given.items()]
    places = [f"--set=cache-dir={folder / 'worlds'}", "--output-dir", str(folder)]
    recipe = EXAMPLES / "tabular-task" / "recipes" / "digits.toml"
    line = [sys.executable, "-m", "fedapps", command[0], recipe, *command[1:], *pairs, *places]
    output = run_tool(*line, environment=environment_with(packages), folder=packages)
    for method in methods:
        assert f"{method}: " in output, output
    return folder / "run"


@pytest.mark.slow
@pytest.mark.processes
def test_methods_and_tasks_of_other_packages_give_the_same_bits_on_a_fleet(tmp_path: Path) -> None:
    packages = install_examples(tmp_path / "packages")
    for name in ("strategies", "clients", "tasks", "sim"):  # of a project: no process may take them for ours
        (packages / f"{name}.py").write_text("raise ImportError('theirs')\n")
    run = run_extended(["fleet"], packages, tmp_path / "fleet")
    inline = run_extended(["run", "--engine", "inline"], packages, tmp_path / "inline")
    for method in json.loads((inline / "summary.json").read_text())["methods"]:
        name = Path("checkpoints") / method / "round-000002.safetensors"
        found, expected = (read_snapshot(folder / name).arrays for folder in (run, inline))
        assert same_bits(dict(found), dict(expected)), method
