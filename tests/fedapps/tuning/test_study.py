"""Studies: suggestions, storage, and the best trial."""

import math

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapps.base.options import Choices, Range
from fedapps.cli.commands import main
from fedapps.config.parsing import parse
from fedapps.config.run_config import read_limits, written_limits
from fedapps.tuning.plan import GivenRange, current_settings, search_spaces, tuned_label
from fedapps.tuning.study import FEWEST, RANDOM_TRIALS, Final, Study, Trial, best_trial, finalists, median_limits

SPACE = {"rate": Range(0.0001, 1.0, log=True), "steps": Range(1, 9), "kind": Choices(("a", "b"))}
CURRENT = {"rate": 0.5, "steps": 9, "kind": "b"}


def objective(settings):
    """Lowest, 0, at rate 0.01, 3 steps and kind a."""
    kind = 0.0 if settings["kind"] == "a" else 1.0
    return math.log10(settings["rate"] / 0.01) ** 2 + ((settings["steps"] - 3) / 4) ** 2 + kind


def advance(study, count, space=SPACE):
    """Add this number of complete trials, the first with the current settings."""
    for number in range(len(study.trials()), len(study.trials()) + count):
        settings = study.suggest(space) if number else CURRENT
        study.add(Trial(settings, "complete", f"trial {number}", objective(settings), {1: float(number)}), space)


def study_in(folder, label="fedavg", seed=0, mode="min"):
    return Study(folder / "study.db", label, mode=mode, seed=seed)


@pytest.mark.slow
def test_a_known_best_is_approached(tmp_path):
    study = study_in(tmp_path)
    advance(study, 40)
    trials = study.trials()
    best = trials[best_trial(trials, [], "min")]
    assert trials[0].settings == CURRENT
    assert objective(CURRENT) > 6
    assert best.value < 0.2
    assert best.settings["kind"] == "a"
    # Later settings follow from results: they are better than random ones.
    random = [trial.value for trial in trials[1:RANDOM_TRIALS]]
    assert sum(trial.value for trial in trials[-20:]) / 20 < sum(random) / len(random)


@pytest.mark.slow
def test_an_interrupted_study_continues_as_if_it_had_not_been(tmp_path):
    (tmp_path / "whole").mkdir()
    whole = study_in(tmp_path / "whole")
    advance(whole, 12)
    for count in (3, 4, 5):
        advance(study_in(tmp_path), count)  # opened again each time
    assert study_in(tmp_path).trials() == whole.trials()


@pytest.mark.slow
def test_random_settings_are_the_same_for_all_methods_and_others_with_another_seed(tmp_path):
    def first(label, seed):
        study = study_in(tmp_path, label, seed)
        advance(study, RANDOM_TRIALS)
        return [trial.settings for trial in study.trials()]

    assert first("fedavg", 0) == first("fedprox", 0)
    assert first("apfl", 1) != first("fedavg", 0)


@pytest.mark.slow
def test_settings_lie_in_the_space_with_four_digits(tmp_path):
    study = study_in(tmp_path)
    advance(study, 15)
    for trial in study.trials()[1:]:
        assert all(trial.settings[key] in SPACE[key] for key in SPACE)
        assert float(f"{trial.settings['rate']:.4g}") == trial.settings["rate"]


def test_current_settings_outside_the_space_and_trials_that_failed_do_no_harm(tmp_path):
    study, space = study_in(tmp_path), {"mu": Range(0.001, 1.0, log=True)}
    study.add(Trial({"mu": 0.0}, "complete", "fedprox", 3.0, {1: 4.0}), space)
    study.add(Trial({"mu": 0.9}, "failed", "fedprox(mu=0.9)", error="round 1: diverged"), space)
    study.add(Trial({"mu": 0.5}, "pruned", "fedprox(mu=0.5)", by_round={1: 7.0, 2: 9.0}), space)
    for _ in range(RANDOM_TRIALS):
        settings = study.suggest(space)
        study.add(Trial(settings, "complete", "fedprox", 5.0), space)
    trials = study_in(tmp_path).trials()
    assert trials[:3] == [
        Trial({"mu": 0.0}, "complete", "fedprox", 3.0, {1: 4.0}),
        Trial({"mu": 0.9}, "failed", "fedprox(mu=0.9)", error="round 1: diverged"),
        Trial({"mu": 0.5}, "pruned", "fedprox(mu=0.5)", by_round={1: 7.0, 2: 9.0}),
    ]
    assert best_trial(trials, [], "min") == 0
    assert best_trial(trials, [], "max") == 3


@pytest.mark.parametrize(("mode", "best"), [("min", "b"), ("max", "c")])
def test_the_first_of_several_best_trials_is_the_best(mode, best):
    values = {"a": 2.0, "b": 1.0, "c": 3.0, "d": 1.0, "e": 3.0}
    trials = [Trial({}, "complete", label, value) for label, value in values.items()]
    assert trials[best_trial([*trials, Trial({}, "pruned", "f")], [], mode)].label == best


def test_finalists_and_the_best_of_them():
    values = [3.0, 2.0, None, 1.0, 2.0]
    trials = [Trial({}, "failed" if value is None else "complete", "", value) for value in values]
    assert finalists(trials, "min", 3) == [0, 3, 1]
    assert finalists(trials, "max", 2) == [0, 1]
    assert finalists([trials[2], *trials[3:]], "min", 2) == [1, 2]  # the current settings failed
    assert finalists(trials, "min", 0) == []
    assert best_trial(trials, [Final(0, 5.0), Final(3, None, "diverged"), Final(1, 4.0)], "min") == 1
    assert best_trial(trials, [Final(0, None), Final(3, None)], "min") == 3
    assert best_trial(trials[2:3], [], "min") is None


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "study.db").write_bytes(b"no database" * 1000)
    with pytest.raises(ValueError, match=r"study\.db cannot be read \(file is not a database\): restore"):
        study_in(tmp_path)


def test_limits_by_hand():
    complete = [{2: 1.0, 4: 9.0}, {2: 5.0, 4: 8.0}, {2: 3.0, 4: 7.0}, {2: 4.0, 4: 6.0}, {2: 2.0, 4: 5.0, 6: 0.0}]
    # Round 2: the median of 1, 5, 3, 4, 2. Round 4 is the last. Round 6 is beyond the end.
    assert median_limits(complete, rounds=4) == {2: 3.0}
    assert median_limits(complete, rounds=5) == {2: 3.0, 4: 7.0}
    assert median_limits(complete[:4], rounds=5) == {}  # too few complete trials
    assert median_limits([*complete, {2: float("nan")}, {2: 9.0}], rounds=4) == {2: 3.5}


@given(st.lists(st.floats(-1e6, 1e6), min_size=FEWEST, max_size=9), st.floats(-1e6, 1e6), st.booleans())
def test_the_first_value_is_pruned_as_by_optuna(earlier, value, lower):
    direction = "minimize" if lower else "maximize"
    study = optuna.create_study(direction=direction)
    state = optuna.trial.TrialState.COMPLETE
    study.add_trials([optuna.trial.create_trial(state=state, value=v, intermediate_values={1: v}) for v in earlier])
    running = optuna.trial.create_trial(state=optuna.trial.TrialState.RUNNING, intermediate_values={1: value})
    pruner = optuna.pruners.MedianPruner(n_startup_trials=FEWEST, n_warmup_steps=0)
    limit = median_limits([{1: v} for v in earlier], rounds=2)[1]
    assert pruner.prune(study, running) == (value > limit if lower else value < limit)


@given(st.dictionaries(st.integers(1, 999), st.floats(allow_nan=False, allow_infinity=False)))
def test_limits_are_read_as_they_were_written(limits):
    assert read_limits(written_limits(limits)) == limits


# The search space of each method.


LQR = {"task": "lqr", "num-nodes": 3, "collect-after": 0, "learning-rate": 0.02}
RATE = Range(0.002, 0.2, log=True)


def spaces(methods, *given, **keys):
    config = parse(LQR | {"methods": methods} | keys)
    return search_spaces(config, [GivenRange.read(text) for text in given])


def test_a_method_tunes_its_learning_rate_and_its_own_options():
    assert spaces("fedavg,fedprox,untrained") == {
        "fedavg": {"run.learning-rate": RATE},
        "fedprox": {"run.learning-rate": RATE, "mu": Choices((0.0, 0.001, 0.01, 0.1, 1.0))},
        "untrained": {},
    }


def test_arguments_are_fixed_and_keys_are_where_the_search_begins():
    assert spaces("fedprox(mu=0.1)") == {"fedprox(mu=0.1)": {"run.learning-rate": RATE}}
    assert spaces("fedavg(run.learning-rate=0.5)") == {"fedavg(run.learning-rate=0.5)": {}}
    of_spfl = spaces("spfl", **{"spfl.learning-rate": 0.3})["spfl"]
    assert of_spfl["learning-rate"] == Range(0.03, 3.0, log=True)
    config = parse(LQR | {"methods": "fedprox,sfl", "fedprox.mu": 0.7})
    of_methods = search_spaces(config)
    assert current_settings(config, "fedprox", of_methods["fedprox"]) == {"run.learning-rate": 0.02, "mu": 0.7}
    assert current_settings(config, "sfl", of_methods["sfl"]) == {"run.learning-rate": 0.02}


def test_given_ranges_replace_declared_ones_or_are_added():
    found = spaces("fedprox,sfl,untrained", "fedprox.mu=0,0.5", "epochs=1..5", "learning-rate=1e-3..1")
    assert found == {
        "fedprox": {"run.learning-rate": Range(0.001, 1.0), "mu": Choices((0.0, 0.5)), "run.epochs": Range(1, 5)},
        "sfl": {"run.learning-rate": Range(0.001, 1.0), "run.epochs": Range(1, 5)},
        "untrained": {},
    }
    assert isinstance(found["sfl"]["run.epochs"].low, int)
    assert spaces("apfl", "apfl.granularity=tensor")["apfl"]["granularity"] == Choices(("tensor",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs", r"--range 'epochs': write KEY=LOW..HIGH, KEY=LOW..HIGH,log or KEY=VALUE,VALUE,..."),
        ("epochs=,", "write KEY=LOW..HIGH"),
        (
            "rounds=1..5",
            "rounds is neither an option of a method, such as fedprox.mu, nor a key that a method can set for itself: ",
        ),
        ("magic.mu=1,2", "'magic' is no method; known methods: apd"),
        ("fedprox.nu=1..2", "fedprox.nu: unknown key"),
        ("fedprox.mu=-1..2", "fedprox.mu = -1.0: must be a number at least 0"),
        ("fedprox.mu=2..1", "the lower bound must be below the upper bound"),
        ("fedprox.mu=0..1,log", "must be above 0"),
        ("apfl.granularity=parameter..tensor", "apfl.granularity is not a number; list its values"),
        ("apfl.granularity=layer", "apfl.granularity = 'layer': must be one of 'tensor', 'parameter'"),
    ],
)
def test_ranges_that_cannot_be_used(text, message):
    with pytest.raises(ValueError, match="--range") as error:
        spaces("fedprox,apfl", text)
    assert message in str(error.value)


def test_a_range_that_no_method_tunes_is_refused():
    for methods in ("fedavg,apfl", "fedprox(mu=1)"):
        with pytest.raises(ValueError, match=r"--range fedprox\.mu: no method of this recipe tunes it \("):
            spaces(methods, "fedprox.mu=0..1")


def test_settings_become_arguments():
    settings = {"run.learning-rate": 0.001234, "mu": 2.0, "flag": True, "kind": "a", "number": 3}
    assert tuned_label("fedprox", settings) == "fedprox(run.learning-rate=0.001234,mu=2,flag=true,kind=a,number=3)"
    assert tuned_label("spfl(rate-scale=0.2)", {"learning-rate": 0.5}) == "spfl(rate-scale=0.2,learning-rate=0.5)"


# Arguments of `fedapps tune` that are refused before any work.


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


@pytest.mark.parametrize("name", ["a?b", "{a}", "%20#"])
def test_a_folder_can_have_any_name(tmp_path, name):
    (tmp_path / name).mkdir()
    other = tmp_path / name / "other?"
    other.mkdir()
    advance(study_in(tmp_path / name), 2)
    assert (tmp_path / name / "study.db").is_file()
    assert len(study_in(tmp_path / name).trials()) == 2
    assert study_in(other).trials() == []
