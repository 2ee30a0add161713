"""Keys of the run that a method sets for itself: ``fedavg(run.learning-rate=0.01)``."""

import pytest
from fedapps.strategies.replies import weighting_of
from small_runs import run_inline

from fedapps.app.strategy import build_strategy
from fedapps.config.parsing import ConfigError, parse
from fedapps.config.run_config import read_limits
from fedapps.registry.methods import canonical

LQR = {"task": "lqr", "num-nodes": 3, "collect-after": 0, "rounds": 2, "epochs": 2, "evaluate-every": 1}


def config_of(methods, **keys):
    return parse(LQR | {"methods": methods} | {key.replace("_", "-"): value for key, value in keys.items()})


def test_only_the_method_itself_sees_them():
    config = config_of("fedavg,fedadam(run.learning-rate=0.5,learning-rate=0.2,run.epochs=7)", learning_rate=0.3)
    first, second = config.methods
    assert config.run_of(first) == config.run
    assert (config.run_of(second).training.learning_rate, config.run_of(second).training.epochs) == (0.5, 7)
    assert config.methods[second].options.learning_rate == 0.2  # its own option of that name, the server's rate
    assert parse(config.flat()) == config


def test_they_are_part_of_the_name_under_which_papers_know_a_method():
    assert canonical("sfl(run.learning-rate=0.5)") == "fedavg(run.learning-rate=0.5)"
    assert canonical("fedprox(mu=0.001,run.epochs=3,run.batch-size=8)") == "fedprox(run.batch-size=8,run.epochs=3)"


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ("fedavg(run.rounds=5)", "run.rounds = 5: a method can set epochs, steps, learning-rate, "),
        ("fedavg(run.learning-rate=0)", "run.learning-rate = 0.0: must be a number above 0"),
        ("fedavg(run.learning-rate=fast)", "run.learning-rate = 'fast': must be a number above 0"),
        ("fedavg(run.optimizer=lion)", "run.optimizer = 'lion': must be one of 'adam', "),
        ("fedavg(learning-rate=0.1)", "fedavg.learning-rate: unknown key"),
    ],
)
def test_bad_keys_are_named(methods, message):
    with pytest.raises(ConfigError) as error:
        config_of(methods)
    assert message in str(error.value)


def test_settings_that_do_not_go_together_are_found_in_the_keys_of_a_method():
    with pytest.raises(ConfigError, match=r"linear-decay = true: must be false with plateau-patience = 3"):
        config_of("fedavg,fedprox(run.linear-decay=true)", plateau_patience=3)


def test_a_method_that_needs_plain_means_stands_beside_one_that_weights_by_examples():
    methods = "fedavg,scaffold(run.weighting=uniform)"
    config = config_of(methods, weighting="num-examples", optimizer="sgd")
    assert [config.run_of(label).weighting for label in config.methods] == ["num-examples", "uniform"]
    assert [build_strategy(config, label).weight_of for label in config.methods] == [
        weighting_of("num-examples"), weighting_of("uniform"),
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="weighting = 'num-examples': must be 'uniform' with scaffold"):
        config_of("fedavg,scaffold", weighting="num-examples", optimizer="sgd")
    with pytest.raises(ConfigError, match="weighting = 'num-examples': must be 'uniform' with dp = 'local'"):
        config_of("fedavg(run.weighting=num-examples)", dp="local", dp_clip=1.0)


def test_a_run_with_a_key_of_its_own_has_the_bits_of_a_run_with_that_key(tmp_path):
    tiny = LQR | {"lqr.trajectories": 4, "lqr.horizon": 5, "cache-dir": str(tmp_path / "worlds")}
    own = "fedavg(run.learning-rate=0.05,run.batch-size=4,run.server-learning-rate=0.7)"
    together = tiny | {"learning-rate": 0.05, "batch-size": 4, "server-learning-rate": 0.7, "methods": "fedavg"}
    outputs = [
        run_inline(given | {"name": name}, tmp_path)
        for name, given in (("own", tiny | {"methods": own}), ("together", together))
    ]
    rows = [[(row["round"], row["evaluate"], row["train"]) for row in run.lines("metrics.jsonl")] for run in outputs]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 2


@pytest.mark.parametrize("text", ["5", "5:", "0: 1", "1: 2, 1: 3", "1: nan", "a: 1", "1: 2; 2: 3"])
def test_limits_that_cannot_be_read(text):
    with pytest.raises(ValueError, match=r"stop-beyond = .* is no round with its limit; write ROUND: VALUE"):
        read_limits(text)
    with pytest.raises(ConfigError, match="is no round with its limit"):
        config_of("fedavg", stop_beyond=text, track_metric="test.total_loss")


def test_limits_need_a_metric():
    assert read_limits(" 5: 0.31, 10: 0.27,") == {5: 0.31, 10: 0.27}
    with pytest.raises(ConfigError, match=r"stop-beyond = '5: 1': needs a track-metric"):
        config_of("fedavg", stop_beyond="5: 1")
