"""The run config: defaults, and every error told at once with key, value and what is allowed."""

import tomllib
from pathlib import Path

import pytest

from fedapps.catalogue import METHOD_LINES
from fedapps.config.parsing import ConfigError, defaults, parse
from fedapps.config.recipe_files import read_recipe, recipes
from fedapps.config.run_config import RunConfig
from tasks.driving.options import Options
from tasks.lqr.task import LqrOptions

ROOT = Path(__file__).parents[2]
LQR = {"task": "lqr", "collect-after": 0}
TEXT = {"task": "text", "collect-after": 0}


def errors(given):
    """The lines of the error, without the one that counts them."""
    with pytest.raises(ConfigError) as caught:
        parse(given)
    head, *lines = str(caught.value).split("\n  ")
    assert head == f"the run config has {len(lines)} errors:" or (len(lines) == 1 and "an error" in head)
    return lines


def flat(table, prefix=""):
    found = {}
    for key, value in table.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


# -- defaults --------------------------------------------------------------------------------------------------


def test_the_apps_config_in_pyproject_holds_the_defaults():
    written = flat(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"])
    expected = defaults()
    wrong = [
        f"{key}: pyproject.toml {written.get(key, 'lacks it')!r}, code {expected.get(key, 'lacks it')!r}"
        for key in sorted(written.keys() | expected.keys())
        if key not in written or key not in expected or repr(written[key]) != repr(expected[key])
    ]
    assert not wrong, (
        "Flower refuses keys that [tool.flwr.app.config] lacks; write these defaults of RunConfig and "
        "of the tasks' options there:\n" + "\n".join(wrong)
    )


def test_nothing_given_gives_the_defaults():
    config = parse({})
    assert config.run == RunConfig()
    assert config.options == Options()
    assert parse(defaults()) == config
    assert parse(config.flat()) == config


def test_only_the_tasks_own_options_are_kept():
    config = parse(LQR | {"lqr.horizon": 5, "driving.latent": 3})
    assert config.options == LqrOptions(horizon=5)
    assert {key for key in config.flat() if "." in key} == {
        "lqr.start-range", "lqr.trajectories", "lqr.horizon", "lqr.test-fraction", "lqr.noise-variance",
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(recipes()))
def test_every_recipe_parses(name):
    given = read_recipe(Path(name))
    config = parse(given)
    assert given.items() <= config.flat().items()
    assert config.run.method_names()


def test_method_names_lose_spaces_and_empty_names():
    assert parse({"methods": " sfl, apfl,,"}).run.method_names() == ["sfl", "apfl"]


# -- errors ----------------------------------------------------------------------------------------------------


def test_errors_of_all_kinds_come_at_once():
    found = errors(
        {
            "task": "chess",
            "methods": "sfl,magic,sfl",
            "learnig-rate": 0.1,
            "seed": "seven",
            "rounds": 0,
            "fraction-train": 1.5,
            "optimizer": "sgdd",
            "lqr.horizon": 0,
            "driving.colour": "red",
            "driving.scenario": "moon",
            "min-replies": 8,
        }
    )
    for start, *parts in (
        ("task = 'chess'", "must be one of 'driving', 'lqr'"),
        ("methods: 'magic' is unknown", *METHOD_LINES),
        ("methods: 'sfl' is given twice",),
        ("learnig-rate: unknown key", "learning-rate"),
        ("seed = 'seven'", "must be a whole number at least 0"),
        ("rounds = 0", "must be a whole number at least 1"),
        ("fraction-train = 1.5", "must be a number above 0 and at most 1"),
        ("optimizer = 'sgdd'", "must be one of 'adam', 'adamw', 'sgd'"),
        ("lqr.horizon = 0", "must be a whole number at least 1"),
        ("driving.colour: unknown key", "driving.scenario"),
        ("driving.scenario = 'moon'", "'lane-swap', 'three-cars', 'trials'"),
    ):
        (line,) = [line for line in found if line.startswith(start)]
        assert all(part in line for part in parts), line
    # min-replies = 8 of 7 nodes is no error of its own here: the fraction beside it is not known
    assert len(found) == 11


def test_no_method_is_an_error():
    (line,) = errors({"methods": " , "})
    assert line.startswith("methods = ' , ': names no method; known methods: local, cloud, sfl")


def test_whole_numbers_are_numbers_but_truth_values_are_not():
    assert repr(parse({"learning-rate": 1}).run.learning_rate) == "1.0"
    assert errors({"learning-rate": True, "rounds": True, "resume": 1, "seed": 1.0}) == [
        "learning-rate = True: must be a number above 0",
        "rounds = True: must be a whole number at least 1",
        "resume = 1: must be true or false",
        "seed = 1.0: must be a whole number at least 0",
    ]


@pytest.mark.parametrize("key", ["learning-rate", "fedprox-mu", "timeout", "fraction-train"])
def test_nan_is_refused(key):
    (line,) = errors({key: float("nan")})
    assert line.startswith(f"{key} = nan: must be a number")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rounds": 6}, "collect-after = 6: must be below rounds = 6"),
        ({"evaluate-every": 4}, "evaluate-every = 4: must divide collect-after = 6"),
        ({"fraction-evaluate": 0.5}, "fraction-evaluate = 0.5: must be 1 with collect-after = 6"),
        ({"task": "lqr"}, "collect-after = 6: must be 0, because this only learns from given data"),
        ({"driving.scenario": "trials"}, "collect-after = 6: must be 0, because this only learns from given data"),
        (
            {"methods": "sfl,cloud", "state-backend": "context"},
            "state-backend = 'context': must be 'disk' with collect-after = 6 and methods = 'cloud'",
        ),
        ({"total-steps": 100}, "total-steps = 100: needs steps"),
        ({"methods": "h-fl", "cluster-intervals": "5,x"}, "cluster-intervals = '5,x': must be whole numbers"),
        ({"methods": "h-fl", "cluster-groups": "city,continent"}, "cluster-groups = 'city,continent', cluster-inte"),
        ({"methods": "h-fl", "cluster-groups": ""}, "cluster-groups = '', cluster-intervals = '15': "),
        ({"methods": "clustered", "num-clusters": 8}, "num-clusters = 8: must be at most num-nodes = 7"),
        ({"methods": "fedvc", "drop-nodes": True}, "drop-nodes = true: must be false with methods = 'fedvc'"),
        (
            {"methods": "h-fl", "drop-nodes": True, "cluster-cohort": 2},
            "drop-nodes = true: must be false with methods = 'h-fl'",
        ),
        (
            {
                "methods": "fedvc",
                "task": "vpr",
                "collect-after": 0,
                "virtual-examples": 60,
                "vpr.queries-per-epoch": 50,
            },
            "virtual-examples = 60: must be at most 50, the most examples of an epoch of task 'vpr'",
        ),
        ({"min-replies": 8}, "min-replies = 8: must be at most 7, the nodes that train in a round"),
        ({"min-replies": 5, "fraction-train": 0.6}, "min-replies = 5: must be at most 4"),
        ({"patience": 2}, "patience = 2: needs a track-metric"),
        ({"target": 0.8}, "target = 0.8: needs a track-metric"),
        ({"methods": "sfl,fedvocab"}, "methods: 'fedvocab' is for task 'text', not 'driving': leave it out"),
        (
            TEXT | {"methods": "fedvocab,fedavg", "text.vocabulary": "own"},
            "text.vocabulary = 'own': nodes with different words cannot share the parameter embedding.weight",
        ),
    ],
)
def test_settings_that_cannot_work_together(given, said):
    (line,) = errors(given)
    assert line.startswith(said)


@pytest.mark.parametrize(
    "given",
    [
        {"rounds": 7},
        {"evaluate-every": 4, "collect-after": 0},
        {"evaluate-every": 3},
        {"fraction-evaluate": 0.5, "collect-after": 0},
        {"task": "lqr", "collect-after": 0},
        {"methods": "sfl,cloud", "state-backend": "context", "collect-after": 0},
        {"methods": "sfl", "state-backend": "context"},
        {"methods": "cloud"},
        {"min-replies": 7},
        {"min-replies": 4, "fraction-train": 0.5},
        {"min-replies": 1, "fraction-train": 0.01},
        {"patience": 2, "track-metric": "test.elbo"},
        {"target": 0.5, "track-metric": "test.elbo"},
        TEXT | {"methods": "fedvocab,local,lg-fedavg", "text.vocabulary": "own"},
    ],
)
def test_and_those_that_can(given):
    assert given.items() <= parse(given).flat().items()


def test_conflicts_join_the_other_errors_but_not_where_one_side_is_unknown():
    assert len(errors({"evaluate-every": 4, "rounds": 5, "seed": -1})) == 3
    assert errors({"rounds": "three", "collect-after": 20}) == ["rounds = 'three': must be a whole number at least 1"]
    staged = {"task": "social", "collect-after": 0, "methods": "fedavg-ewc"}  # its stages must divide the rounds
    assert errors(staged | {"rounds": 0}) == ["rounds = 0: must be a whole number at least 1"]
