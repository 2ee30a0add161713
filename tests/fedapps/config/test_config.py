"""The run config: defaults, and every error told at once with key, value and what is allowed."""

import tomllib
from pathlib import Path

import pytest
from fedapps.tasks.driving.options import Options
from fedapps.tasks.lqr.task import LqrOptions
from recipe_runs import recipe_runs

from fedapps.base.text_files import flattened
from fedapps.config import parsing
from fedapps.config.keys import defaults, described, for_flower, updated, with_extra
from fedapps.config.parsing import ConfigError, parse
from fedapps.config.run_config import RunConfig, read_allowed_groups
from fedapps.registry.methods import method_names

ROOT = Path(__file__).parents[3]
LQR = {"task": "lqr", "collect-after": 0}
TEXT = {"task": "text", "collect-after": 0}


def errors(given):
    """The lines of the error, without the one that counts them."""
    with pytest.raises(ConfigError) as caught:
        parse(given)
    head, *lines = str(caught.value).split("\n  ")
    assert head == f"the run config has {len(lines)} errors:" or (len(lines) == 1 and "an error" in head)
    return lines


# -- defaults --------------------------------------------------------------------------------------------------


def test_the_apps_config_in_pyproject_is_the_generated_one():
    text = (ROOT / "pyproject.toml").read_text()
    assert text == updated(text), "the keys or defaults have changed: run `make config`"
    written = flattened(tomllib.loads(text)["tool"]["flwr"]["app"]["config"])
    assert repr(written) == repr(defaults())


def test_nothing_given_gives_the_defaults():
    config = parse({})
    assert config.run == RunConfig()
    assert config.options == Options()
    assert parse(defaults()) == config
    assert parse(config.flat()) == config


def test_only_the_tasks_own_options_are_kept():
    config = parse(LQR | {"lqr.horizon": 5, "driving.latent": 3})
    assert config.options == LqrOptions(horizon=5)
    assert {key for key in config.flat() if key.startswith(("lqr.", "driving."))} == {
        "lqr.start-range", "lqr.trajectories", "lqr.horizon", "lqr.test-fraction", "lqr.validation-share",
        "lqr.noise-variance",
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(recipe_runs()))
def test_every_recipe_parses(name):
    given = recipe_runs()[name]
    config = parse(given, files_exist=False)
    of_others = {key for key in given if key.partition(".")[0] in method_names()} - config.flat().keys()
    assert {key: value for key, value in given.items() if key not in of_others}.items() <= config.flat().items()
    assert config.methods


def test_labels_of_methods_lose_spaces_and_empty_names():
    assert list(parse({"methods": " sfl, apfl( power = 0.5 ),,"}).methods) == ["sfl", "apfl(power=0.5)"]


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
        ("task = 'chess'", "must be one of driving, images, lqr, social, text, vln, vpr"),
        ("methods: 'magic' is unknown", *method_names()),
        ("methods: 'sfl' is given twice",),
        ("learnig-rate: unknown key", "learning-rate"),
        ("seed = 'seven'", "must be a whole number at least 0"),
        ("rounds = 0", "must be a whole number at least 1"),
        ("fraction-train = 1.5", "must be a number above 0 and at most 1"),
        ("optimizer = 'sgdd'", "must be one of 'adam', 'adamw', 'rmsprop', 'sgd'"),
        ("lqr.horizon = 0", "must be a whole number at least 1"),
        ("driving.colour: unknown key", "driving.scenario"),
        ("driving.scenario = 'moon'", "'lane-swap', 'three-cars', 'trials'"),
    ):
        (line,) = [line for line in found if line.startswith(start)]
        assert all(part in line for part in parts), line
    # min-replies = 8 of 7 nodes is no error of its own here: the fraction beside it is not known
    assert len(found) == 11


@pytest.mark.parametrize("methods", ["apfl", "fedavg", "fedavg,apfl,apfl(epochs=2)"])
def test_a_wrong_option_is_told_once_whoever_uses_it(methods):
    assert errors({"methods": methods, "apfl.power": "x"}) == ["apfl.power = 'x': must be a number above 0"]


def test_no_method_is_an_error():
    (line,) = errors({"methods": " , "})
    assert line.startswith("methods = ' , ': names no method; known methods: apd, apfl, apfl-deng, centralized")


def test_whole_numbers_are_numbers_but_truth_values_are_not():
    assert repr(parse({"learning-rate": 1}).run.training.learning_rate) == "1.0"
    assert errors({"learning-rate": True, "rounds": True, "resume": 1, "seed": 1.0}) == [
        "learning-rate = True: must be a number above 0",
        "rounds = True: must be a whole number at least 1 and at most 999999",
        "resume = 1: must be true or false",
        "seed = 1.0: must be a whole number at least 0",
    ]


@pytest.mark.parametrize("name", ["a" * 256, "ü" * 128, "a\nb"])
def test_a_name_that_no_folder_can_have_is_an_error(name):
    (line,) = errors({"name": name})
    assert line.startswith("name = '")
    assert line.endswith(": must have at most 255 bytes and no control characters, because it names a folder")


@pytest.mark.parametrize("key", ["learning-rate", "fedprox.mu", "timeout", "fraction-train"])
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
            "state-backend = 'context': must be 'disk' with collect-after = 6 and the method centralized",
        ),
        ({"total-steps": 100}, "total-steps = 100: needs steps"),
        ({"total-steps": 401, "steps": 10}, "total-steps = 401: must be a multiple of steps = 10"),
        ({"total-steps": 2_000_000, "steps": 2}, "total-steps = 2000000: would be 1000000 rounds of steps = 2"),
        (
            {"total-steps": 400, "steps": 10, "methods": "fedavg,fedavg(run.steps=40)"},
            "methods: 'fedavg(run.steps=40)': steps must be 10, those of the run, with total-steps = 400",
        ),
        ({"methods": "h-fl", "h-fl.intervals": "5,x"}, "h-fl.intervals = '5,x': must be whole numbers"),
        ({"methods": "h-fl", "h-fl.groups": "city,continent"}, "h-fl.groups = 'city,continent', h-fl.intervals"),
        ({"methods": "h-fl", "h-fl.groups": ""}, "h-fl.groups = '', h-fl.intervals = '15': "),
        ({"methods": "clustered", "clustered.clusters": 8}, "clustered.clusters = 8: must be at most num-nodes = 7"),
        ({"fraction-train": 0.5, "drop-nodes": True}, "fraction-train = 0.5: must be 1 with drop-nodes = true"),
        ({"num-nodes": 3, "min-replies": 3, "drop-nodes": True}, "min-replies = 3: must be at most 2"),
        ({"sampling": "poisson", "drop-nodes": True}, "drop-nodes = true: must be false with sampling = 'poisson'"),
        (
            {"methods": "fedvc", "sampling": "poisson"},
            "sampling = 'poisson': must be 'fixed' with the method fedvc, which draws its nodes in proportion",
        ),
        (
            {"methods": "h-fl", "sampling": "poisson", "h-fl.cohort": 2},
            "sampling = 'poisson': must be 'fixed' with h-fl.cohort = 2",
        ),
        ({"methods": "fedvc", "drop-nodes": True}, "drop-nodes = true: must be false with the method fedvc"),
        (
            {"methods": "fedvc", "plateau-patience": 3},
            "plateau-patience = 3: must be 0 with the method fedvc, because a node that is drawn several times in a "
            "round has no single learning rate; or set fedvc.draws = 'without-replacement'",
        ),
        (
            {"methods": "h-fl", "drop-nodes": True, "h-fl.cohort": 2},
            "drop-nodes = true: must be false with h-fl.cohort = 2",
        ),
        (
            {"methods": "fedvc", "task": "vpr", "collect-after": 0, "fedvc.examples": 60, "vpr.queries-per-epoch": 50},
            "fedvc.examples = 60: must be at most 50, the most examples of an epoch of task 'vpr'",
        ),
        ({"min-replies": 8}, "min-replies = 8: must be at most 7, the nodes that train in a round"),
        ({"min-replies": 5, "fraction-train": 0.6}, "min-replies = 5: must be at most 4"),
        (
            {"min-replies": 6, "held-out-nodes": "0.3"},
            "min-replies = 6: must be at most 5, the nodes that train in a round (fraction-train = 1 of num-nodes = 7 "
            "without held-out-nodes = 0.3)",
        ),
        (
            {"methods": "clustered", "clustered.clusters": 7, "held-out-nodes": "a"},
            "clustered.clusters = 7: must be at most num-nodes = 7 without held-out-nodes = a",
        ),
        ({"held-out-nodes": "1"}, "held-out-nodes = '1': a number must be a share above 0 and below 1, such as 0.2"),
        ({"held-out-nodes": "-0.1"}, "held-out-nodes = '-0.1': a number must be a share above 0 and below 1"),
        ({"held-out-nodes": "nan"}, "held-out-nodes = 'nan': a number must be a share above 0 and below 1"),
        ({"held-out-nodes": "0.95"}, "held-out-nodes = '0.95': holds out 7 of num-nodes = 7; leave at least one"),
        ({"held-out-nodes": "a,b", "num-nodes": 2}, "held-out-nodes = 'a,b': holds out 2 of num-nodes = 2"),
        (
            {"held-out-nodes": "0.3", "methods": "fedavg,cloud"},
            "held-out-nodes = '0.3': leave out of methods cloud, which trains on the data of all nodes",
        ),
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
        {"name": "a" * 255},
        {"evaluate-every": 4, "collect-after": 0},
        {"evaluate-every": 3},
        {"fraction-evaluate": 0.5, "collect-after": 0},
        {"task": "lqr", "collect-after": 0},
        {"methods": "sfl,cloud", "state-backend": "context", "collect-after": 0},
        {"methods": "sfl", "state-backend": "context"},
        {"methods": "cloud"},
        {"min-replies": 7},
        {"min-replies": 0},
        {"methods": "h-fl", "sampling": "poisson"},
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
    assert errors({"rounds": "three", "collect-after": 20}) == [
        "rounds = 'three': must be a whole number at least 1 and at most 999999"
    ]
    staged = {"task": "social", "collect-after": 0, "methods": "fedavg-ewc"}  # its stages must divide the rounds
    assert errors(staged | {"rounds": 0}) == ["rounds = 0: must be a whole number at least 1 and at most 999999"]


# -- keys of methods and of other packages -----------------------------------------------------------------------


def test_the_config_has_the_keys_of_its_task_and_its_methods_alone():
    keys = parse({"methods": "fedavg,spfl", "fedprox.mu": 0.3}).flat()
    owners = {key.partition(".")[0] for key in keys if "." in key}
    assert owners == {"driving", "fedavg", "spfl"}


def test_keys_that_flower_knows_do_not_belong_into_extra():
    (line,) = errors({"methods": "fedprox", "extra": "fedprox.mu = 0.7, driving.scenario = 'three-cars'"})
    assert line.startswith("extra: driving.scenario, fedprox.mu: set this beside extra")


@pytest.mark.parametrize("text", ["fedprox.mu", "fedprox.mu =", "a = 1, a = 2"])
def test_a_malformed_extra_says_how_to_write_it(text):
    (line,) = errors({"extra": text})
    assert line.startswith(f"extra = {text!r}: must be keys of a TOML inline table")


def test_keys_that_flower_does_not_know_travel_in_extra():
    known = {"rounds": 3, "fedprox.mu": 0.5}
    others = {"tabular.dataset": "dig'its, all", "tabular.alpha": 0.3, "tabular.even": True, "fedsam.rate": 2}
    sent = for_flower(known | others)
    assert sent.keys() == {*known, "extra"}
    assert {key: value for key, value in with_extra(sent).items() if key != "extra"} == known | others


def test_keys_are_described_by_run_task_and_method():
    groups = described(task="driving", methods=["fedprox"])
    assert list(groups) == ["run", "task driving", "method fedprox"]
    assert groups["method fedprox"] == {
        "fedprox.mu": "weight µ of the proximal term; 0 = FedAvg; the authors tune from 0.001 to 1 (0.001; a number at "
        "least 0; tuned over 0.0,0.001,0.01,0.1,1.0)"
    }
    assert set(described()) >= {"run", "task text", "method fedweit", "method h-fl"}


def test_allowed_groups_are_read_by_kind():
    assert read_allowed_groups("") == {}
    assert read_allowed_groups(" city: berlin, new york ;continent:europe") == {
        "city": {"berlin", "new york"},
        "continent": {"europe"},
    }


@pytest.mark.parametrize("text", ["berlin", "city:", ": berlin", "city: a; city: b", "city: ,"])
def test_malformed_allowed_groups_say_how_to_write_them(text):
    with pytest.raises(ConfigError, match=r"allowed-groups = .*: must be a kind of group, a colon and its labels"):
        parse({"allowed-groups": text})


def test_a_node_reads_the_options_of_its_task_alone_and_checks_combinations_once(monkeypatch):
    asked, checks = [], []
    own, conflicts = parsing.task_class, parsing.conflicts
    monkeypatch.setattr(parsing, "task_class", lambda name: asked.append(name) or own(name))
    monkeypatch.setattr(parsing, "conflicts", lambda *args, **more: checks.append(args) or conflicts(*args, **more))
    config = parsing.read({"task": "lqr", "collect-after": 0, "text.model": "bert", "driving.hidden": 8})
    assert set(asked) == {"lqr"}
    assert not checks
    assert config.checked is config.checked
    assert len(checks) == 1


def test_a_config_that_cannot_work_is_refused_when_it_is_checked():
    config = parsing.read({"task": "lqr", "collect-after": 0, "methods": "fedbn"})
    for _ in range(2):
        with pytest.raises(ConfigError, match="'fedbn' has no meaning for task 'lqr'"):
            _ = config.checked


def test_a_linear_decay_needs_the_number_of_steps_where_examples_are_mined():
    keys = {"task": "vpr", "methods": "fedavg", "linear-decay": True, "collect-after": 0}
    with pytest.raises(ConfigError, match="linear-decay = true: needs steps"):
        parse(keys)
    assert parse(keys | {"steps": 5}).run.training.linear_decay
