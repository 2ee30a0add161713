"""The plan of a comparison: its runs, their folders and its file."""

from dataclasses import replace
from pathlib import Path

import pytest
from full_disk import ROOM, full_disk

from fedapps.base.atomic import UnwritableError
from fedapps.comparison.matrix import Plan, Vary
from fedapps.config.parsing import ConfigError
from fedapps.launch import plan as plans
from fedapps.launch.inputs import resolve

CONFIG = {"task": "lqr", "rounds": 4, "collect-after": 0, "methods": "local", "output-dir": "anywhere"}
PLAN = Plan("lqr", CONFIG, ("sfl", "apfl"), (3, 4), "inline")
GRID = replace(PLAN, vary=(Vary("epochs", (1, 5)), Vary("server-optimizer", ("sgd", "yogi"))))


def with_values(key, *values):
    return Plan("lqr", CONFIG, ("sfl", "apfl"), (3,), "inline", (Vary(key, values),))


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
    assert (plan.own_point, with_values("rounds", 2).own_point, PLAN.own_point) == (
        {"server-optimizer": "sgd"}, {"rounds": 20}, {}
    )  # fmt: skip


def test_several_varied_keys_are_a_grid():
    plan = replace(GRID, seeds=(3,))
    cells = plan.cells(Path("here"))
    assert [(cell["config"]["epochs"], cell["config"]["server-optimizer"]) for cell in cells[::2]] == [
        (1, "sgd"), (1, "yogi"), (5, "sgd"), (5, "yogi"),
    ]  # fmt: skip
    assert [cell["config"]["name"] for cell in cells[-2:]] == ["sfl-3-5,yogi", "apfl-3-5,yogi"]
    assert cells[-1]["at"] == "epochs = 5, server-optimizer = yogi"
    assert [config.run.training.epochs for config in plan.configs()] == [1, 1, 5, 5]
    assert plan.outline == "epochs = 1, 5 x server-optimizer = sgd, yogi x 2 methods x 1 seed: 8 runs"


def test_a_plan_knows_names_and_a_baseline():
    methods = ["fedavg(run.learning-rate=0.1) as FedAvg", "spfl as Ours"]
    for against in ("Ours", "spfl"):
        plan = Plan.of(Path("lqr"), CONFIG, methods, (0,), "inline", against=against)
        assert plan.methods == ("fedavg(run.learning-rate=0.1)", "spfl")
        assert plan.names == {"fedavg(run.learning-rate=0.1)": "FedAvg", "spfl": "Ours"}
        assert plan.against == "spfl"
    with pytest.raises(ValueError, match="--against 'sfl': must be one of the methods, which are FedAvg, Ours"):
        Plan.of(Path("lqr"), CONFIG, methods, (0,), "inline", against="sfl")


def test_a_recipe_names_its_grid_unless_another_is_given(tmp_path):
    recipe = tmp_path / "study.toml"
    recipe.write_text('task = "lqr"\n[compare]\nvary = ["epochs=1,5", "server-optimizer=sgd,yogi"]\n')
    assert Plan.of(recipe, CONFIG, (), (0,), "inline").vary == GRID.vary
    assert Plan.of(recipe, CONFIG, (), (0,), "inline", [Vary("rounds", (2,))]).vary == (Vary("rounds", (2,)),)


def test_a_key_is_varied_once():
    plan = replace(PLAN, vary=(Vary("epochs", (1,)), Vary("epochs", (5,))))
    with pytest.raises(ValueError, match="--vary epochs: the key is given twice; give all its values at once"):
        plan.configs()


@pytest.mark.parametrize("plan", [PLAN, with_values("proximal", 0, 0.5), with_values("server-optimizer", "sgd"), GRID])
def test_a_saved_plan_is_loaded_unchanged(plan, tmp_path):
    plan.save(tmp_path)
    assert Plan.load(tmp_path) == plan


def test_a_plan_that_the_disk_has_no_room_for_leaves_the_last_one_whole(tmp_path):
    PLAN.save(tmp_path)
    with full_disk(), pytest.raises(UnwritableError, match=r"plan\.json cannot be written"):
        replace(PLAN, recipe="x" * ROOM).save(tmp_path)
    assert Plan.load(tmp_path) == PLAN


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


# -- keys that take the value of the seed ----------------------------------------------------------------------------

TEXT = {"task": "text", "methods": "fedavg", "num-nodes": 3, "collect-after": 0}


def following(*keys, vary=()):
    return Plan("quickstart", TEXT, ("fedavg",), (3, 4), "inline", vary, seed_keys=keys)


def test_seed_keys_take_the_value_of_the_seed(tmp_path):
    plan = following("text.partition-seed", vary=(Vary("text.alpha", (1, 10)),))
    assert [(cell["config"]["seed"], cell["config"]["text.partition-seed"]) for cell in plan.cells(tmp_path)] == [
        (3, 3), (4, 4), (3, 3), (4, 4)
    ]  # fmt: skip
    assert plan.configs()[0].flat()["text.partition-seed"] == 3
    plan.save(tmp_path)
    assert Plan.load(tmp_path) == plan


def test_a_recipe_names_its_seed_keys_unless_others_are_given_or_it_is_set(tmp_path):
    recipe = tmp_path / "study.toml"
    recipe.write_text('task = "text"\n[compare]\nseed-keys = "text.partition-seed, text.max-length"\n')
    assert plans.following(recipe, (), ()) == ("text.partition-seed", "text.max-length")
    assert plans.following(recipe, ("text.width",), ("text.alpha",)) == ("text.width",)
    assert plans.following(recipe, (), ("text.partition-seed",)) == ("text.max-length",)
    with pytest.raises(ValueError, match=r"--set text.width: each run gets its own value; leave it out, or out of --s"):
        plans.following(recipe, ("text.width",), ("text.width",))
    with pytest.raises(ValueError, match="--set seed: each run gets its own value; use --seeds and --first-seed"):
        plans.following(recipe, (), ("seed",))


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (following("seed"), "--seed-keys seed: this command sets the key"),
        (following("text.world-sed"), "text.world-sed: unknown key"),
        (following("lqr.horizon"), "--seed-keys lqr.horizon: no run uses the key"),
        (following("text.alpha"), "--seed-keys text.alpha: must be a key of whole numbers"),
        (following("text.partition-seed", vary=(Vary("text.partition-seed", (1, 2)),)), "this key is varied"),
    ],
)
def test_keys_that_cannot_be_the_seed_are_refused(plan, message):
    with pytest.raises(ValueError, match=message):
        plan.configs()


# -- files of each run -----------------------------------------------------------------------------------------------

OWN_FILE = {
    "task": "vln",
    "methods": "centralized,fedavg",
    "num-nodes": 5,
    "collect-after": 0,
    "vln.source": "simulated",
}


def with_own_files(folder, seeds=(3, 4), pattern="{method}-{seed}/agent-{seed}.safetensors"):
    config = OWN_FILE | {"vln.agent-file": f"{folder}/{pattern}"}
    return Plan("fedvln-houses", config, ("centralized", "fedavg"), seeds, "inline")


def make_files(folder):
    names = [f"{method}-{seed}/agent-{seed}.safetensors" for seed in (3, 4) for method in ("centralized", "fedavg")]
    for name in names:
        (folder / name).parent.mkdir()
        (folder / name).touch()
    return [str(folder / name) for name in names]


def test_each_run_reads_the_file_of_its_method_and_seed(tmp_path):
    files = make_files(tmp_path)
    plan = with_own_files(tmp_path)
    assert [cell["config"]["vln.agent-file"] for cell in plan.cells(Path("here"))] == files
    assert [config.flat()["vln.agent-file"] for config in plan.configs()] == files[:1]
    plan.save(tmp_path)
    assert Plan.load(tmp_path) == plan


def test_a_varied_file_may_differ_between_runs(tmp_path):
    files = make_files(tmp_path)
    varied = Vary("vln.agent-file", (f"{tmp_path}/fedavg-{{seed}}/agent-{{seed}}.safetensors", files[0]))
    plan = Plan("fedvln-houses", OWN_FILE, ("fedavg",), (3, 4), "inline", (varied,))
    found = [cell["config"]["vln.agent-file"] for cell in plan.cells(Path("here"))]
    assert found == [files[1], files[3], files[0], files[0]]
    assert len(plan.configs()) == 2


def test_a_run_without_its_file_is_refused_before_any_run(tmp_path):
    make_files(tmp_path)
    with pytest.raises(
        ValueError,
        match=r"vln\.agent-file = '.*\{method\}-\{seed\}.*': .*centralized-5/agent-5\.safetensors does not exist, "
        r"which centralized with seed 5 needs; compare methods and seeds that have this file, or correct the path",
    ):
        with_own_files(tmp_path, (3, 5)).configs()


def test_only_paths_of_files_have_placeholders(tmp_path):
    config = OWN_FILE | {"vln.languages": "{seed}"}
    cells = Plan("fedvln-houses", config, ("fedavg",), (3,), "inline").cells(tmp_path)
    assert cells[0]["config"]["vln.languages"] == "{seed}"


def test_a_relative_path_with_placeholders_becomes_absolute(tmp_path, monkeypatch):
    """The runs of a Ray cluster have other working directories."""
    monkeypatch.chdir(tmp_path)
    found = resolve({"task": "vln", "vln.agent-file": "{method}-{seed}/agent.safetensors"}, "runs")
    assert found["vln.agent-file"] == f"{tmp_path}/{{method}}-{{seed}}/agent.safetensors"


def test_a_label_of_any_length_is_the_name_of_a_folder():
    settings = ",".join(f"run.{key}=1" for key in ("learning-rate", "momentum", "weight-decay", "clip-norm") * 4)
    label = f"fedavg({settings})"
    (cell,) = Plan("lqr", {}, (label,), (0,), "inline").cells(Path("here"))
    assert len(cell["config"]["name"].encode()) < 220
    assert cell["config"]["methods"] == label
