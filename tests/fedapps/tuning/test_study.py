"""Studies: suggestions, storage, and the best trial."""

import math

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapps.base.options import Choices, Range
from fedapps.config.run_config import read_limits, written_limits
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
