"""Arguments of `fedapps tune` that are refused before any work."""

import pytest

from fedapps.cli.commands import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trials", "1"], "--trials 1: must be at least 2, the current settings of a method and others to compare"),
        (["--trials", "2", "--seeds", "0"], "--seeds 0: must be at least 1"),
        (["--trials", "4", "--finalists", "5"], "--finalists 5: must be 0, or from 2, the current settings and the"),
        (["--trials", "4", "--finalists", "2", "--finalist-seeds", "0"], "--finalist-seeds 0: must be at least 1"),
        (["--trials", "2", "--seed-keys", "text.partition-seed"], "--seed-keys text.partition-seed: no run uses the"),
        (["--trials", "2", "--methods", "magic"], "methods: 'magic' is unknown"),
        (["--trials", "2", "--methods", "untrained"], "nothing to tune in untrained: add a --range"),
        (["--trials", "2", "--range", "rounds=1..5"], "rounds is neither an option of a method"),
        (["--trials", "2", "--set-trials", "x"], "--set-trials 'x': write it as key=value"),
        (["--trials", "2", "--set", "lqr.validation-share=2.0"], "lqr.validation-share = 2.0: must be a number at "),
        (["--trials", "2", "--write", __file__], f"--write {__file__}: the file exists; choose another one"),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_any_work(arguments, message, tmp_path, capsys):
    assert main(["tune", "lqr", *arguments, "--output-dir", str(tmp_path / "runs")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("recipe", "keys", "message"),
    [
        ("fedvln-houses:agent", [], "task 'vln' has no validation data: settings cannot be tuned, because test data "),
        ("fedvpr-streets", [], "vpr.validation-clients = 0 and vpr.validation-cities = '': one of them must hold out "),
        ("fedvocab-small", ["text.validation-share=0.0"], "text.validation-share = 0.0: must be above 0 to choose "),
    ],
)
def test_a_task_without_validation_data_is_refused(recipe, keys, message, tmp_path, capsys):
    sets = [part for key in keys for part in ("--set", key)]
    given = ["tune", recipe, "--trials", "2", *sets, "--methods", "fedavg", "--output-dir", str(tmp_path / "runs")]
    assert main(given) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
