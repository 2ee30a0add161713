"""The command line: what it prints, what it refuses, and its exit status."""

import ast
import io
import os
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapps.base.errors import accept_all_text, text_environment
from fedapps.base.processes import flower_environment, free_port
from fedapps.cli.commands import main
from fedapps.cli.parser import command_parser
from fedapps.comparison.matrix import assignments


def said(capsys):
    """The text on stderr; nothing may be on stdout."""
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_run_reports_every_error_and_writes_nothing(tmp_path, capsys):
    given = ["run", "lqr", "--engine", "inline", "--output-dir", str(tmp_path / "runs")]
    assert main([*given, "--set", "seeed=1", "--set", "rounds=none", "--set", "lqr.horizon=0"]) == 2
    head, *lines = said(capsys).splitlines()
    assert head == "fedapps: the run config has 3 errors:"
    assert lines[0].startswith("  rounds = 'none': must be a whole number at least 1")
    assert lines[1] == "  seeed: unknown key; did you mean 'seed'?"
    assert lines[2] == "  lqr.horizon = 0: must be a whole number at least 1"
    assert not (tmp_path / "runs").exists()


def test_a_run_without_the_main_metrics_of_its_task_says_which_there_are(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("fedapps.tasks.lqr.task.LqrTask.headline", ("test.gone",))
    quick = ["methods=fedavg", "rounds=1", "epochs=1", "lqr.trajectories=2", f"cache-dir={tmp_path / 'worlds'}"]
    assert (
        main(["run", "lqr", "--engine", "inline", "--output-dir", str(tmp_path), *(f"--set={k}" for k in quick)]) == 0
    )
    assert "no main metric of the task (test.gone): evaluate gives test.control_loss, " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("compare lqr --methods sfl,magic --json json/c.json", "methods: 'magic' is unknown; known methods: apd, "),
        ("compare lqr --seeds 0", "fedapps: --seeds 0: must be at least 1\n"),
        ("compare lqr --set rounds=0", "rounds = 0: must be a whole number"),
        *(
            (f"compare lqr --vary {text}", f"fedapps: --vary {text!r}: write it as key=value,value,...\n")
            for text in ("rounds", "=1", "rounds=", "rounds=,")
        ),
        ("compare lqr --vary roundz=1,2", "  roundz: unknown key; did you mean 'rounds'?"),
        ("compare lqr --vary rounds=20,0", "rounds = 0: must be a whole number"),
        ("compare lqr --vary driving.horizon=5,10", "--vary driving.horizon: no run uses the key; name one of the run"),
        (
            "compare lqr --vary fedprox.mu=5,10",
            "fedprox.mu: no run uses the key; name one of the run or of lqr, local,",
        ),
        ("compare lqr --vary seed=1,2", "--vary seed: this command sets the key"),
        ("compare lqr --vary rounds=20,20", "--vary rounds: 20 is given twice"),
        ("report nothing", "fedapps: nothing: no such run folder\n"),
        ("run lqr --set rounds", "fedapps: --set 'rounds': write it as key=value\n"),
        ("run lqr --set =3", "fedapps: --set '=3': write it as key=value\n"),
        ("run lane-swop", "did you mean 'lane-swap'?\n"),
        ("run lqr --set methods=fedprx", "did you mean 'fedprox'?\n"),
    ],
)
def test_bad_input_is_told_before_any_work(given, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(given.split()) == 2
    assert told in said(capsys)
    assert list(tmp_path.iterdir()) == []


def test_resume_refuses_a_folder_without_a_valid_plan(tmp_path, capsys):
    assert main(["compare", "--resume", str(tmp_path)]) == 2
    assert said(capsys) == f"fedapps: --resume {tmp_path}: not the folder of a comparison (it has no plan.json)\n"
    (tmp_path / "plan.json").write_text('{"recipe": "lqr"}')
    assert main(["compare", "--resume", str(tmp_path)]) == 2
    problem = "plan.json is damaged or not the plan of a comparison (config: Field required); start a new comparison"
    assert problem in said(capsys)


def test_an_output_folder_that_cannot_be_created_is_named(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["compare", "lqr", "--output-dir", str(tmp_path / "file")]) == 2
    assert str(tmp_path / "file") in said(capsys)


def test_every_command_of_the_parser_has_a_function():
    (commands,) = (action for action in command_parser()._actions if action.dest == "command")
    functions = [command.get_default("function") for command in commands.choices.values()]
    assert len(functions) == 23
    assert all(callable(resolve_name(f"fedapps.cli.{function}")) for function in functions)


def test_an_interruption_prints_no_traceback(capsys, monkeypatch):
    def interrupted(folder, formats):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedapps.report.paper.write_formats", interrupted)
    assert main(["report", "anywhere"]) == 130
    assert said(capsys).startswith("fedapps: interrupted; the folder of the run has everything that was trained")


@pytest.mark.parametrize(
    "given",
    [
        [],
        ["dance"],
        ["compare"],
        ["compare", "lqr", "--resume", "runs"],
        ["run", "lqr", "--engine", "steam"],
        ["list", "fedprox", "--keys"],
        ["compare", "lqr", "--jobs", "-1"],
        ["compare", "lqr", "--json", "."],
    ],
)
def test_a_malformed_command_line_has_status_2(given, capsys):
    with pytest.raises(SystemExit) as caught:
        main(given)
    assert caught.value.code == 2
    assert "usage: fedapps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "options"),
    [
        (["compare", "lqr", "--seeds", "20", "--engine", "ray", "--jobs", "2"], "recipe, --seeds, --engine"),
        (["compare", "--first-seed", "1", "--json", "x.json"], "--first-seed"),
        (["tune", "--finalists", "3", "--seed-keys", "text.partition-seed"], "--seed-keys, --finalists"),
    ],
)
def test_a_resumed_job_keeps_what_was_given_at_first(given, options, capsys):
    with pytest.raises(SystemExit):
        main([*given, "--resume", "runs/somewhere"])
    message = f"--resume: the folder has what was given at first; leave out {options}\n"
    assert capsys.readouterr().err.endswith(message)


def test_supernode_passes_flowers_options_on(monkeypatch, capsys, tmp_path):
    started = []
    monkeypatch.setattr("os.execv", lambda program, command: started.append((program, command)))
    own = ["--port", str(free_port()), "--node-config", f'data-dir="{tmp_path}"']
    flowers = ["--insecure", "--superlink", "HOST:9092", *own]
    main(["supernode", "--preload", "sklearn", *flowers, "--poll-interval", "0.5"])
    ((program, command),) = started
    assert program == command[0] == sys.executable
    assert command[-len(flowers) - 2 :] == ["0.5", "sklearn", *flowers]
    assert main(["supernode", "--poll-interval", "10"]) == 2
    assert said(capsys) == "fedapps: poll interval = 10 s: must be above 0 and at most Flower's 3 s\n"
    assert len(started) == 1


def test_options_of_flower_are_unknown_to_other_commands(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["nodes", "lqr", "--superlink", "HOST:9092"])
    assert caught.value.code == 2
    assert "unrecognized arguments: --superlink HOST:9092" in capsys.readouterr().err


# -- --set -----------------------------------------------------------------------------------------------------


def test_set_reads_numbers_truth_values_and_strings():
    pairs = ["a=1", "b=1.5", "c=1e-3", "d=true", "e=false", "f=adam", "g='7'", 'h="true"', "i=", "j=x=y", " k = -2 "]
    expected = {"a": 1, "b": 1.5, "c": 0.001, "d": True, "e": False, "f": "adam", "g": "7", "h": "true", "i": "",
                "j": "x=y", "k": -2}  # fmt: skip
    assert repr(assignments(pairs)) == repr(expected)
    assert assignments(["a=1", "a=2"]) == {"a": 2}, "the last one holds"


@pytest.mark.parametrize(
    ("arguments", "end"),
    [
        (["run", "lqr", "--rounds", "5"], "rounds is a key of the run config: write --set rounds=VALUE"),
        (["compare", "lqr", "--seds", "5"], "did you mean '--seeds'?"),
    ],
)
def test_an_unknown_option_is_explained(arguments, end, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert said(capsys).rstrip().endswith(end)


@pytest.mark.slow
@pytest.mark.subprocesses
def test_a_reader_that_ends_early_is_no_error():
    command = f"{sys.executable} -m fedapps list --keys | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


# No output fails for its characters, whatever the console's encoding, and no file depends on the locale's.


ROOT = Path(__file__).parents[3]
ENCODINGS = ["ascii", "cp437", "cp1252", "latin-1", "utf-8"]


@pytest.fixture
def console(monkeypatch):
    """Replace standard output and error by streams of an encoding; returns what was written to standard output."""
    monkeypatch.setenv("PYTHONIOENCODING", "")

    def replaced(encoding):
        written = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding, write_through=True))
        monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), encoding, write_through=True))
        return written

    return replaced


def test_an_ascii_console_gets_what_reads_alike(console):
    written = console("ascii")
    accept_all_text()
    print("τ = 0.5 ± 0.1 → 中 caf\udce9")
    assert written.getvalue().decode("ascii") == "tau = 0.5 +- 0.1 -> \\u4e2d caf\\udce9\n"


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_character_that_the_console_has_is_shown_as_it_is(console, encoding):
    written = console(encoding)
    accept_all_text()
    print("±")
    assert written.getvalue() == ("+-" if encoding == "ascii" else "±").encode(encoding) + b"\n"


@given(st.sampled_from(ENCODINGS), st.text(st.characters(exclude_categories=())))
def test_any_text_can_be_printed(encoding, text):
    stream = io.TextIOWrapper(io.BytesIO(), encoding, write_through=True)
    before, sys.stdout = sys.stdout, stream
    try:
        accept_all_text()
        print(text)
    finally:
        sys.stdout = before
    assert stream.buffer.getvalue().endswith(b"\n")


@pytest.mark.subprocesses
@pytest.mark.parametrize("given", ["ascii", "ascii:strict", ""])
def test_processes_that_are_started_keep_the_encoding_and_cannot_fail(given):
    environment = {**os.environ, **text_environment({"PYTHONIOENCODING": given})}
    assert environment["PYTHONIOENCODING"] == f"{given.partition(':')[0]}:backslashreplace"
    said = subprocess.run(
        [sys.executable, "-c", "print('\\u4e2d')"], env={**environment, "LC_ALL": "C"}, capture_output=True, check=True
    )
    assert said.stdout.strip() in (b"\\u4e2d", "中".encode())
    assert flower_environment(Path())["PYTHONIOENCODING"].endswith(":backslashreplace")


def test_a_command_ends_well_on_an_ascii_console(console, monkeypatch):
    written = console("ascii")
    monkeypatch.setattr("fedapps.cli.listing.list_names", lambda arguments: print("0.5 ± 0.1") or 0)
    assert main(["list"]) == 0
    assert written.getvalue() == b"0.5 +- 0.1\n"


def opens_text(call: ast.Call) -> bool:
    """Whether a call reads or writes a text file without saying in which encoding."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if any(keyword.arg in ("encoding", None) for keyword in call.keywords):
        return False
    return (name == "read_text" and not call.args) or (name == "write_text" and len(call.args) < 2)


def test_every_text_file_of_the_package_has_an_encoding():
    folders = ("fedapps", "strategies", "clients", "tasks", "sim")
    calls = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "_text(" in path.read_text("utf-8")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and opens_text(node)
    ]
    assert not calls
