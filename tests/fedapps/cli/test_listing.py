"""``fedapps list``: tasks, methods, recipes, keys and single methods."""

import os
import subprocess
import sys

import pytest

from fedapps import methods
from fedapps.cli.commands import main
from fedapps.cli.descriptions import keys_text, task_text
from fedapps.config.keys import all_keys, described
from fedapps.config.recipe_files import recipes
from fedapps.registry import TRACKERS, stated
from fedapps.registry.methods import METHODS, method_names
from fedapps.registry.tasks import own_tasks, task_class, task_names


def printed(capsys, *given):
    assert main(["list", *given]) == 0
    return capsys.readouterr().out.splitlines()


def titles(lines):
    return [line for line in lines if not line.startswith(" ")]


def test_the_overview_names_everything_in_aligned_columns(capsys):
    lines = printed(capsys)
    assert titles(lines) == ["tasks:", "methods:", "trackers:", "recipes:"]
    entries = [line.split(maxsplit=1) for line in lines if line.startswith(" ")]
    names = [*task_names(), *method_names(), *TRACKERS.names(), *recipes()]
    assert [name for name, _ in entries] == names
    assert all(len(text.split()) > 2 for _, text in entries)
    column = 2 + max(map(len, names)) + 2
    assert all(line[column - 1] == " " != line[column] for line in lines if line.startswith(" "))


def test_the_line_of_a_pipeline_names_its_stages(capsys, monkeypatch, tmp_path):
    (tmp_path / "two.toml").write_text("# Two runs\n[pipeline.speaker]\n[pipeline.agent]\nrounds = 3\n")
    (tmp_path / "one.toml").write_text("# A single run\n")
    for module in ("fedapps.cli.listing", "fedapps.config.recipe_files"):
        monkeypatch.setattr(f"{module}.RECIPES", tmp_path)
    lines = [line.split(maxsplit=1) for line in printed(capsys)]
    assert lines[-2:] == [["one", "A single run"], ["two", "Two runs (stages: speaker, agent)"]]


def test_a_terminal_gets_wrapped_lines(capsys, monkeypatch):
    whole = " ".join(" ".join(printed(capsys)).split())
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((90, 24)))
    lines = printed(capsys)
    assert max(map(len, lines)) <= 90
    assert " ".join(" ".join(lines).split()) == whole


def test_keys_are_grouped_by_run_task_and_method(capsys):
    head, *lines = printed(capsys, "--keys")
    assert head == "keys of the run config, with (default; allowed values; search range of `fedapps tune`)"
    assert titles(lines) == [f"{group}:" for group in described()]
    assert {line.split()[0] for line in lines if line.startswith(" ")} == {
        key for keys in described().values() for key in keys
    }


def test_keys_of_one_run_are_those_of_its_task_and_its_methods(capsys):
    """Aliases and arguments do not matter, and a method without options has no group."""
    _, *lines = printed(capsys, "--keys", "--task", "driving", "--methods", "sfl,fedsgd,spfl(rate-scale=0.2),spfl")
    assert titles(lines) == ["run:", "task driving:", "method fedavg:", "method spfl:"]
    dotted = {line.split()[0].partition(".")[0] for line in lines if "." in line.split()[0]}
    assert dotted == {"driving", "fedavg", "spfl"}


def test_a_method_is_described_with_paper_aliases_and_options(capsys):
    lines = printed(capsys, "fedprox-ewc")
    assert lines[0].startswith("method ewc: EWC")
    assert lines[1].startswith("  paper     Kirkpatrick et al.")
    assert "  data      in stages (continual learning)" in lines
    assert "  aliases   fedavg-ewc = ewc(mu=0), local-ewc = ewc(local=true), fedprox-ewc = ewc(mu=0.05)" in lines
    assert "options, written ewc(mu=VALUE) or --set ewc.mu=VALUE" in lines
    assert [line.split()[0] for line in lines[5:]] == list(described(methods=["ewc"])["method ewc"])


@pytest.mark.parametrize("name", method_names())
def test_every_method_can_be_described(name, capsys):
    assert any(line.startswith(f"method {name}: ") for line in printed(capsys, name))


def test_a_recipe_is_described_with_the_keys_that_it_sets(capsys):
    lines = printed(capsys, "lane-swap")
    assert lines[0].startswith("recipe lane-swap: APFL, lane swap")
    assert ["methods", "local,cloud,sfl,spfl,spfl(rate-scale=0.2),apfl"] in [line.split() for line in lines]
    assert lines[-1] == "run it: python -m fedapps run lane-swap"


def test_a_pipeline_is_described_by_its_stages(capsys):
    lines = printed(capsys, "fedvln-houses")
    assert "stage agent" in lines
    assert lines[-1] == "run it: python -m fedapps run fedvln-houses:agent"


def test_a_task_and_a_recipe_of_one_name_are_both_described(capsys):
    lines = printed(capsys, "lqr")
    assert [line.split()[0] for line in lines if line.startswith(("task ", "recipe ", "method "))] == ["task", "recipe"]
    assert any(line.split()[:1] == ["lqr.horizon"] for line in lines)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["magic"], "'magic' is no task, method or recipe; `fedapps list` lists all"),
        (["lane-swop"], "`fedapps list` lists all; did you mean 'lane-swap'?"),
        (["--keys", "--task", "chess"], "task = 'chess': must be one of driving, "),
        (["--keys", "--methods", "sfl,magic"], "'magic' is unknown"),
        (["--task", "driving"], "--task and --methods choose the keys to list: add --keys"),
        (["--for", "lqrr"], "did you mean 'lqr'"),
    ],
)
def test_unknown_names_are_refused(given, said, capsys):
    assert main(["list", *given]) == 2
    assert said in capsys.readouterr().err


def test_the_files_of_every_task_are_listed():
    """The page on data names the command for them."""
    for task in own_tasks():
        files = task_class(task).files
        assert files, task
        for name, content in files.items():
            assert f"  {name:<30}  {content}" in task_text(task)


def test_the_keys_of_all_tasks_are_listed():
    assert "vpr.backbone" in keys_text()
    assert "text.model" in all_keys()


def test_methods_for_a_task_with_costs_and_reasons(capsys):
    """LQR has 8 float32 parameters, of which the head has 2; SCAFFOLD sends down a control variate, too."""
    lines = printed(capsys, "--for", "lqr")
    rows = {line.split()[0]: line for line in lines}
    assert rows["fedavg"].split()[1:7] == ["nothing", "parameters", "32", "B", "32", "B"]
    assert "25% of the model" in rows["fedper"]
    assert "24 B" in rows["fedper"]
    assert (rows["scaffold"].count("64 B"), rows["scaffold"].count("32 B")) == (1, 1)
    needs, *refused = [line for line in lines if line.startswith(("with ", "not here, "))]
    assert needs.startswith("with optimizer = sgd: ")
    assert "scaffold" in needs
    assert "not here, its model has no normalisation layers: fedbn" in refused
    assert "fedvocab" not in rows
    assert rows["local"].split()[6:10] == ["0", "B", "0", "B"]
    assert max(map(len, lines)) < 150


@pytest.mark.slow
def test_the_share_of_private_words_is_that_of_the_model_with_all_words(capsys):
    """The server's model of FedVocab has no rows for private words; FedPer keeps a head of .02 % on the nodes."""
    rows = {line.split()[0]: line for line in printed(capsys, "--for", "text")}
    assert "86% of the model" in rows["fedvocab"]
    assert "< 1% of the model" in rows["fedper"]


def test_the_lines_of_methods_are_read_from_their_source_as_they_are():
    read = {
        name: (own["summary"], own.get("aliases", {})) for name, own in stated(methods, ("summary", "aliases")).items()
    }
    assert read == {name: (kind.summary, kind.aliases) for name, kind in METHODS.own.items()}


@pytest.mark.slow
@pytest.mark.subprocesses
def test_the_commands_that_run_import_what_only_audits_reports_and_other_engines_need_when_they_do():
    slow = {
        "datasets",
        "matplotlib",
        "flwr.simulation",
        *(f"scipy.{name}" for name in ("linalg", "optimize", "sparse", "special", "stats")),
    }
    code = (
        "import sys, fedapps.cli.run_commands; from fedapps.sim.flower_internals import fallback; "
        f"fallback('engine'); print(sorted({slow} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, encoding="utf-8")
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.subprocesses
@pytest.mark.parametrize("arguments", [["--help"], ["list"]])
def test_help_and_list_import_neither_flower_nor_torch(arguments):
    code = (
        "import atexit, sys; from fedapps.cli.commands import main\n"
        "atexit.register(lambda: print('imported', sorted({'flwr', 'torch'} & set(sys.modules))))\n"
        f"main({arguments})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, encoding="utf-8")
    assert done.stdout.splitlines()[-1] == "imported []"
