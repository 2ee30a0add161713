"""The median stopping rule."""

import optuna
from hypothesis import given
from hypothesis import strategies as st

from fedapps.config.run_config import read_limits, written_limits
from fedapps.tuning.study import FEWEST, median_limits


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
