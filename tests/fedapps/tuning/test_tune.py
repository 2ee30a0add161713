"""Tuning as a whole, on robots that learn in milliseconds, with all runs in this process."""

import json
import math
import tomllib
from itertools import count
from pathlib import Path

import pytest
from fedapps.strategies import epsilon
from fedapps.tasks.lqr import world as lqr
from killed_processes import killed_in

import fedapps.tuning.trials
import fedapps.tuning.tune
from fedapps.base.errors import RunFailedError
from fedapps.cli.commands import main
from fedapps.comparison.compare import run_cell
from fedapps.config.parsing import parse
from fedapps.config.recipe_files import RECIPES, read_recipe
from fedapps.registry.expressions import labels, shown_names
from fedapps.runs.owner import owned
from fedapps.runs.run_folder import RunFolder
from fedapps.tuning.study import FEWEST
from fedapps.tuning.tune import tune_recipe, tuning_text

LQR = RECIPES / "lqr.toml"
METHODS = ("sfl", "fedprox", "untrained")
TRIALS = 4
TINY = {"rounds": 3, "epochs": 1, "evaluate-every": 1}


def in_this_process(chains, work, *, jobs, watch, log_of):
    for chain in chains:
        cell = next(chain, None)
        while cell is not None:
            try:
                cell = chain.send(work(**cell))
            except StopIteration:
                break


@pytest.fixture(autouse=True, scope="module")
def _in_this_process():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fedapps.tuning.tune, "run_chains", in_this_process)
        yield


@pytest.fixture(scope="module")
def robots(tmp_path_factory):
    folder = tmp_path_factory.mktemp("robots")
    lqr.write_world(folder, 3, seed=0, count=5, horizon=5)
    return folder


def tune(folder, robots, **changes):
    given = {
        "trials": TRIALS, "methods": METHODS, "overrides": TINY | {"data-dir": str(robots)}, "output_dir": str(folder)
    }  # fmt: skip
    return tune_recipe(LQR, **(given | changes))


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, robots):
    """The result and the folder of a tuning, and the file that --write names."""
    folder = tmp_path_factory.mktemp("tuned")
    recipe = folder / "recipes" / "lqr-tuned.toml"
    result = tune(folder, robots, write=recipe)
    (made,) = folder.glob("tune-lqr-*")
    return result, made, recipe


def test_methods_get_equally_many_trials_that_begin_with_the_current_settings(tuned):
    result, folder, _ = tuned
    assert json.loads((folder / "tune.json").read_text()) == json.loads(json.dumps(result))
    assert (result["metric"], result["mode"], result["seeds"]) == ("validation.total_loss", "min", [0])
    assert list(result["methods"]) == list(METHODS)
    for label, found in result["methods"].items():
        trials = found["trials"]
        assert len(trials) == (1 if label == "untrained" else TRIALS)
        assert sum(found["counts"].values()) == len(trials)
        assert (trials[0]["label"], trials[0]["state"]) == (label, "complete")
        assert found["current"] == trials[0]["value"]
        assert found["tuned"] == min(trial["value"] for trial in trials if trial["state"] == "complete")
    assert result["methods"]["sfl"]["trials"][0]["settings"] == {"run.learning-rate": 0.01}
    assert result["methods"]["fedprox"]["trials"][0]["settings"] == {"run.learning-rate": 0.01, "mu": 0.001}


def test_values_near_an_end_of_their_range_are_listed(tuned):
    result, _, _ = tuned
    found = {label: dict(of_method) for label, of_method in result["methods"].items()}
    found["sfl"] |= {"settings": {"run.learning-rate": 0.098}, "near_end": ["run.learning-rate"]}
    found["fedprox"] |= {"near_end": []}
    text = tuning_text(result | {"methods": found})
    assert text.endswith(
        "\n\nNear an end of the range; a better value may lie outside. Widen it with --range:\n"
        "  sfl: run.learning-rate = 0.098 of 0.001..0.1,log"
    )
    for of_method in result["methods"].values():
        for argument, value in of_method["settings"].items():
            low, interval, high = of_method["ranges"][argument].removesuffix(",log").partition("..")
            span = math.log(float(high) / float(low)) if interval else 0.0  # a list of values has no ends
            near = bool(span) and not 0.05 <= math.log(value / float(low)) / span <= 0.95
            assert near == (argument in of_method["near_end"])


def test_the_value_of_a_trial_is_that_of_a_run_with_its_settings(tuned, robots, tmp_path):
    result, _, _ = tuned
    trial = result["methods"]["fedprox"]["trials"][-1]
    keys = {"learning-rate": trial["settings"]["run.learning-rate"], "fedprox.mu": trial["settings"]["mu"]}
    plain = read_recipe(LQR) | TINY | keys | {
        "data-dir": str(robots), "output-dir": str(tmp_path), "name": "plain", "methods": "fedprox",
        "lqr.validation-share": 0.2,
    }  # fmt: skip
    metrics = run_cell("fedprox", 0, plain, "inline")["metrics"]
    assert metrics["validation.total_loss"] == trial["value"]
    assert {"total_loss", "state_loss"} <= metrics.keys()  # a run that is no trial has its test data


def test_trials_measure_nothing_on_test_data_and_keep_no_models(tuned):
    _, folder, _ = tuned
    runs = sorted((folder / "trials").iterdir())
    assert len(runs) == 2 * TRIALS + 1
    for path in runs:
        for name in ("metrics.jsonl", "nodes.jsonl", "summary.json", "config.toml"):
            assert '"test.' not in (path / name).read_text()
        assert not (path / "checkpoints").exists()
        assert not (path / "nodes").exists()


@pytest.mark.slow
def test_other_test_data_change_nothing(tuned, robots, tmp_path):
    result, _, _ = tuned
    for path in robots.iterdir():
        head, *rows = path.read_text().splitlines()
        fields = [row.split(",") for row in rows]
        spoilt = [[*row[:5], *["1e30"] * 5] if row[2] == "test" else row for row in fields]
        assert spoilt != fields
        (tmp_path / path.name).write_text("\n".join([head, *map(",".join, spoilt), ""]))
    assert tune(tmp_path / "runs", tmp_path)["methods"] == result["methods"]


def test_the_written_recipe_runs_with_the_settings_of_each_method(tuned, tmp_path):
    result, folder, recipe = tuned
    assert recipe.read_text() == (folder / "tuned.toml").read_text()
    assert recipe.read_text().startswith("# lqr, tuned: 4 trials per method on validation.total_loss, seeds 0\n# sfl: ")
    flat = read_recipe(recipe)
    config = parse(flat)
    assert list(config.methods) == [found["label"] for found in result["methods"].values()]
    assert (config.run.rounds, config.run.withhold_test, config.run.track_metric) == (3, False, "")
    assert config.options.validation_share == 0  # a comparison trains on all training data again
    for found in result["methods"].values():
        settings = found["settings"]
        assert config.run_of(found["label"]).training.learning_rate == settings.get("run.learning-rate", 0.01)
    label = result["methods"]["fedprox"]["label"]
    one = flat | {"methods": label, "output-dir": str(tmp_path), "name": "tuned"}
    assert run_cell(label, 0, one, "inline")["metrics"]["total_loss"] > 0


@pytest.mark.slow
def test_an_interrupted_tuning_ends_as_if_it_had_not_been(tuned, robots, tmp_path, capsys):
    whole, _, _ = tuned
    runs = count(1)
    with killed_in("tuning.trials.run_cell", when=lambda *given: next(runs) == 6):
        tune(tmp_path, robots)
    (folder,) = tmp_path.glob("tune-lqr-*")
    assert not (folder / "tune.json").exists()
    capsys.readouterr()
    assert main(["tune", "--resume", str(folder)]) == 0
    assert capsys.readouterr().out.startswith(f"at most 4 runs in {folder}; ")
    assert json.loads((folder / "tune.json").read_text()) == json.loads(json.dumps(whole))


@pytest.mark.slow
def test_a_trial_that_is_worse_than_the_median_is_pruned_and_one_that_diverges_fails(robots, tmp_path, monkeypatch):
    """Rates from good to useless: the last ones stop after the first round."""
    rates = iter([0.02, 0.03, 0.04, 0.05, 1e-6, 0.06, 0.03])

    def suggest(study, space):
        return {"run.learning-rate": next(rates)}

    def diverging(method, *given):
        if method == "sfl(run.learning-rate=0.06)":
            raise RunFailedError("round 1: no reply can be used")
        return run_cell(method, *given)

    monkeypatch.setattr("fedapps.tuning.study.Study.suggest", suggest)
    monkeypatch.setattr(fedapps.tuning.trials, "run_cell", diverging)
    given = ["learning-rate=1e-6..1,log"]
    result = tune(tmp_path, robots, methods=["sfl"], trials=8, seeds=2, ranges=given)["methods"]["sfl"]
    states = [trial["state"] for trial in result["trials"]]
    assert states[:FEWEST] == ["complete"] * FEWEST
    assert states[FEWEST:7] == ["pruned", "failed"]
    pruned, failed = result["trials"][FEWEST:7]
    assert (list(pruned["by_round"]), pruned["value"]) == ([1], None)
    assert failed["error"] == "round 1: no reply can be used"
    assert result["counts"]["failed"] == 1
    (folder,) = tmp_path.glob("tune-lqr-*")
    # A pruned trial runs with its first seed only. Without limits for the second, complete trials run to the end.
    runs = {path.name for path in (folder / "trials").iterdir()}
    assert {"sfl-trial-6-seed-0", "sfl-trial-5-seed-1"} <= runs
    assert "sfl-trial-6-seed-1" not in runs
    complete = [RunFolder(folder / "trials" / f"sfl-trial-5-seed-{seed}", "") for seed in (0, 1)]
    finals = [run.summary()["methods"]["sfl(run.learning-rate=0.05)"]["final"] for run in complete]
    values = [final["validation.total_loss"] for final in finals]
    assert result["trials"][4]["value"] == pytest.approx(sum(values) / 2)


def test_settings_that_do_not_go_together_fail_without_a_run(robots, tmp_path, monkeypatch):
    monkeypatch.setattr("fedapps.tuning.study.Study.suggest", lambda study, space: {"clusters": 9})
    result = tune(tmp_path, robots, methods=["clustered"], trials=2, ranges=["clustered.clusters=2..9"])
    failed = result["methods"]["clustered"]["trials"][1]
    assert failed["state"] == "failed"
    assert "clustered.clusters = 9: must be at most num-nodes = 3" in failed["error"]


def measured(monkeypatch, value_of):
    """Runs whose validation loss is ``value_of(method, seed, config)``; ``None`` diverges. Returns their configs."""
    configs = []

    def run(method, seed, config, engine):
        configs.append(config)
        value = value_of(method, seed, config)
        if value is None:
            raise RunFailedError("round 1: no reply can be used")
        return {"metrics": {"validation.total_loss": value}}

    monkeypatch.setattr(fedapps.tuning.trials, "run_cell", run)
    return configs


def test_a_method_whose_trials_all_diverge_is_left_out_of_the_recipe(robots, tmp_path, monkeypatch, capsys):
    measured(monkeypatch, lambda method, seed, config: 2.0 if method.startswith("sfl") else None)
    result = tune(tmp_path, robots, methods=["sfl", "fedprox"], trials=2)["methods"]
    assert (result["sfl"]["tuned"], result["fedprox"]["tuned"], result["fedprox"]["label"]) == (2.0, None, "")
    assert result["fedprox"]["counts"] == {"complete": 0, "pruned": 0, "failed": 2}
    said = "fedprox: all trials failed, so the tuned recipe leaves it out; the first: round 1: no reply can be used"
    assert said in capsys.readouterr().out
    (folder,) = tmp_path.glob("tune-lqr-*")
    assert list(parse(read_recipe(folder / "tuned.toml")).methods) == ["sfl"]


def test_current_settings_that_diverge_are_a_bad_trial(robots, tmp_path, monkeypatch):
    measured(monkeypatch, lambda method, seed, config: None if method == "sfl" else 3.0)
    found = tune(tmp_path, robots, methods=["sfl"], trials=3, finalists=2)["methods"]["sfl"]
    assert (found["current"], found["tuned"]) == (None, 3.0)
    assert [final["trial"] for final in found["finals"]] == [1, 2]


def test_a_tuning_of_which_everything_diverges_fails(robots, tmp_path, monkeypatch):
    measured(monkeypatch, lambda method, seed, config: None)
    with pytest.raises(RunFailedError, match=r"nothing to write:(?s:.*)sfl: all trials failed"):
        tune(tmp_path, robots, methods=["sfl"], trials=2)


def test_finalists_are_the_current_settings_and_the_best_others_over_all_seeds(robots, tmp_path, monkeypatch):
    """Trial 2 has luck with the first seed; over three seeds, trial 3 is better: (2 + 2 · 2) / 3 < (1 + 2 · 6) / 3."""
    rates, first = iter((0.02, 0.03, 0.04)), {0.01: 5.0, 0.02: 1.0, 0.03: 2.0, 0.04: 3.0}
    seen = []

    def value(method, seed, config):
        rate = float(method.partition("run.learning-rate=")[2].rstrip(")") or 0.01)
        seen.append((rate, seed))
        return first[rate] if seed == 7 else {0.01: 5.0, 0.02: 6.0, 0.03: 2.0}[rate]

    monkeypatch.setattr("fedapps.tuning.study.Study.suggest", lambda study, space: {"run.learning-rate": next(rates)})
    measured(monkeypatch, value)
    result = tune(tmp_path, robots, methods=["sfl"], trials=4, first_seed=7, finalists=3, finalist_seeds=2)
    found = result["methods"]["sfl"]
    assert seen[4:] == [(rate, seed) for rate in (0.01, 0.02, 0.03) for seed in (8, 9)]
    assert (result["seeds"], result["final_seeds"]) == ([7], [8, 9])
    assert [final["value"] for final in found["finals"]] == pytest.approx([5, 13 / 3, 2])
    assert (found["settings"], found["current"], found["tuned"]) == ({"run.learning-rate": 0.03}, 5.0, 2.0)


@pytest.mark.slow
def test_a_resumed_tuning_reads_its_finals_again(robots, tmp_path):
    given = {"methods": ["sfl"], "trials": 2, "finalists": 2, "finalist_seeds": 1}
    whole = tune(tmp_path, robots, **given)
    (folder,) = tmp_path.glob("tune-lqr-*")
    again = fedapps.tuning.tune.resume_tuning(folder)
    assert json.loads(json.dumps(again)) == json.loads(json.dumps(whole))
    assert len(again["methods"]["sfl"]["finals"]) == 2


def test_seed_keys_follow_the_seed_of_each_run_and_reach_the_tuned_recipe(robots, tmp_path, monkeypatch):
    configs = measured(monkeypatch, lambda method, seed, config: 1.0)
    tune(tmp_path, robots, methods=["sfl"], trials=2, first_seed=3, seeds=2, seed_keys=["batch-size"])
    assert [(config["seed"], config["batch-size"]) for config in configs] == [(3, 3), (4, 4)] * 2
    (folder,) = tmp_path.glob("tune-lqr-*")
    assert '[compare]\nseed-keys = "batch-size"' in (folder / "tuned.toml").read_text()


def test_what_the_recipe_compares_reaches_the_tuned_recipe(robots, tmp_path, monkeypatch):
    configs = measured(monkeypatch, lambda method, seed, config: 1.0)
    recipe = tmp_path / "own.toml"
    recipe.write_text('base = "lqr"\n[compare]\nvary = "batch-size=16,32"\nseed-keys = "epochs"\n')
    keys = {"rounds": 1, "evaluate-every": 1, "data-dir": str(robots)}
    tune_recipe(
        recipe, trials=2, methods=["sfl"], overrides=keys, trial_overrides={"epochs": 2}, output_dir=str(tmp_path)
    )
    (folder,) = tmp_path.glob("tune-own-*")
    assert [config["epochs"] for config in configs] == [2, 2], "trials keep what they are given"
    compare = tomllib.loads((folder / "tuned.toml").read_text())["compare"]
    assert compare == {"seed-keys": "epochs", "vary": "batch-size=16,32"}


def test_a_display_name_reaches_the_tuned_recipe(robots, tmp_path):
    methods = ["sfl as FedAvg", "untrained as 'No, none'", "fedprox"]
    result = tune(tmp_path, robots, methods=methods, trials=2)["methods"]
    (folder,) = tmp_path.glob("tune-lqr-*")
    named = read_recipe(folder / "tuned.toml")["methods"]
    assert labels(named) == [tuned["label"] for tuned in result.values()]
    assert [*shown_names(named).values()] == ["FedAvg", "No, none"]


def test_keys_of_trials_do_not_reach_the_tuned_recipe(robots, tmp_path, capsys):
    keys = {"rounds": 1, "lqr.validation-share": 0.5, "dp": "local"}
    tune(tmp_path, robots, methods=["sfl"], trials=2, trial_overrides=keys)
    (folder,) = tmp_path.glob("tune-lqr-*")
    flat = read_recipe(folder / "tuned.toml")
    assert flat["rounds"] == TINY["rounds"]
    assert "lqr.validation-share" not in flat
    (rounds,) = RunFolder(folder / "trials" / "sfl-trial-1-seed-0", "").lines("metrics.jsonl")
    assert rounds["round"] == 1
    together = f"epsilon = {epsilon(1.0, 2, 1e-5, sensitivity=2.0):.3g} at delta = 1e-05 after 2 releases"
    assert f"all 2 runs together, if nodes have the same data in each: {together}; neig" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"seed": 3}, "--set-trials seed: this command sets the key"),
        ({"learning-rate": 0.1}, "--set-trials learning-rate: is tuned for sfl; use --range, or --set"),
    ],
)
def test_trials_cannot_fix_what_is_tuned(robots, tmp_path, keys, message):
    with pytest.raises(ValueError, match=message):
        tune(tmp_path, robots, methods=["sfl"], trial_overrides=keys, ranges=["learning-rate=0.001..0.1"])


# -- bad input -------------------------------------------------------------------------------------------------


def test_an_existing_folder_is_resumed_only_on_demand(tuned, robots, tmp_path, capsys):
    _, folder, _ = tuned
    given = TINY | {"data-dir": str(robots), "name": folder.name}
    with pytest.raises(ValueError, match=rf"exists: resume it with fedapps tune --resume {folder}, or choose"):
        tune(folder.parent, robots, overrides=given)
    assert main(["tune", "--resume", str(tmp_path)]) == 2
    assert "not the folder of a tuning (it has no plan.json)" in capsys.readouterr().err
    with owned(folder):
        assert main(["tune", "--resume", str(folder)]) == 2
    assert f"{folder} is in use by process" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["tune", "lqr", "--resume", str(folder)])
    assert "leave out recipe" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["tune", "lqr"])
    assert "give the number of trials of each method: --trials N" in capsys.readouterr().err


def test_without_optuna_it_says_what_to_install(robots, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(ValueError, match=r"pip install 'fedapps\[tune\]'"):
        tune(tmp_path, robots)
    assert not list(Path(tmp_path).iterdir())
