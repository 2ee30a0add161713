"""The plan of a comparison: its runs, their folders and its file."""

from pathlib import Path

import pytest

from fedapps.comparison.matrix import Plan, Vary
from fedapps.config.parsing import ConfigError

CONFIG = {"task": "lqr", "rounds": 4, "collect-after": 0, "methods": "local", "output-dir": "anywhere"}
PLAN = Plan("lqr", CONFIG, ("sfl", "apfl"), (3, 4), "inline")


def with_values(key, *values):
    return Plan("lqr", CONFIG, ("sfl", "apfl"), (3,), "inline", Vary(key, values))


def test_a_cell_per_seed_and_method():
    cells = PLAN.cells(Path("here"))
    assert [cell["config"]["name"] for cell in cells] == ["sfl-3", "apfl-3", "sfl-4", "apfl-4"]
    own = {"output-dir": "here", "name": "sfl-3", "methods": "sfl", "seed": 3}
    assert cells[0] == {"method": "sfl", "seed": 3, "config": CONFIG | own, "engine": "inline"}


def test_a_cell_per_value_too():
    plan = with_values("server-optimizer", "sgd", "yogi")
    cells = plan.cells(Path("here"))
    assert [cell["config"]["name"] for cell in cells] == ["sfl-3-sgd", "apfl-3-sgd", "sfl-3-yogi", "apfl-3-yogi"]
    assert [cell["config"]["server-optimizer"] for cell in cells] == ["sgd", "sgd", "yogi", "yogi"]
    assert cells[3]["at"] == "server-optimizer = yogi"
    assert (plan.own_value, with_values("rounds", 2).own_value, PLAN.own_value) == ("sgd", 4, None)


@pytest.mark.parametrize("plan", [PLAN, with_values("proximal", 0, 0.5), with_values("server-optimizer", "sgd")])
def test_a_saved_plan_is_loaded_unchanged(plan, tmp_path):
    plan.save(tmp_path)
    assert Plan.load(tmp_path) == plan


def test_every_value_is_checked():
    assert [config.run.rounds for config in with_values("rounds", 2, 8).configs()] == [2, 8]
    assert [config.run.rounds for config in PLAN.configs()] == [4]
    with pytest.raises(ConfigError, match=r"rounds = 2\.5: must be a whole number"):
        with_values("rounds", 2, 2.5).configs()


def test_values_that_would_share_a_folder_are_refused():
    with pytest.raises(
        ValueError, match="--vary data-dir: 'a/b' is given twice, or has the folder name of another value"
    ):
        with_values("data-dir", "a/b", "c", "a:b").configs()
