"""Recipes are found by name or path, read, and based on each other."""

import re
from pathlib import Path

import pytest
from recipe_runs import recipe_runs

from fedapps.comparison.matrix import Vary
from fedapps.config.parsing import parse
from fedapps.config.recipe_files import (
    RECIPES,
    StageRun,
    read_pipeline,
    read_recipe,
    recipe_comparison,
    recipe_name,
    recipes,
)


def test_recipes_are_listed_with_their_first_line():
    found = recipes()
    assert list(found) == sorted(path.stem for path in RECIPES.glob("*.toml"))
    assert found["lqr"].startswith("APFL, LQR toy")
    assert all(line and not line.startswith("#") for line in found.values())


def test_the_recipe_of_make_run_compares_a_federation_with_nodes_alone_and_needs_no_data():
    makefile = (Path(__file__).parents[3] / "Makefile").read_text()
    (name,) = re.findall(r"^run:.*\n\t\S+ -m fedapps run (.+)$", makefile, re.MULTILINE)
    config = parse(read_recipe(Path(name)))
    assert {"alone", "federated"} <= {method.role for method in config.methods.values()}
    assert any(method.private(config.task).patterns for method in config.methods.values() if method.role != "alone")
    assert config.task.has_world
    assert not config.run.data_dir


@pytest.mark.parametrize("given", [Path("lqr"), Path("lqr.toml"), Path("somewhere/lqr.toml"), RECIPES / "lqr.toml"])
def test_a_recipe_is_found_by_name_and_by_path(given):
    assert read_recipe(given)["task"] == "lqr"


def test_an_existing_file_comes_before_a_recipe_of_the_same_name(tmp_path):
    own = tmp_path / "lqr.toml"
    own.write_text("seed = 5\n[lqr]\nhorizon = 3\n[lqr.deep]\nkey = true\n")
    assert read_recipe(own) == {"seed": 5, "lqr.horizon": 3, "lqr.deep.key": True}


def test_a_missing_file_names_the_recipes(tmp_path):
    with pytest.raises(ValueError, match=r"no recipe .*nothing\.toml: give a run-config file or one of") as caught:
        read_recipe(tmp_path / "nothing.toml")
    assert all(name in str(caught.value) for name in recipes())


def test_what_is_no_text_is_refused(tmp_path):
    (tmp_path / "odd.toml").write_bytes(b"\xe9")
    for path in (tmp_path / "odd.toml", tmp_path):
        with pytest.raises(ValueError, match=rf"recipe {path} cannot be read: "):
            read_recipe(path)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_recipe_as_windows_writes_it(tmp_path, encoding):
    (tmp_path / "own.toml").write_text("# é\r\nseed = 5\r\n", encoding=encoding, newline="")
    assert read_recipe(tmp_path / "own.toml") == {"seed": 5}


# -- bases and studies -----------------------------------------------------------------------------------------


def write(folder, **texts):
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text)
    return folder / f"{next(iter(texts))}.toml"


def test_the_keys_of_a_base_are_the_defaults_of_a_recipe(tmp_path):
    path = write(
        tmp_path,
        study='base = "middle"\nseed = 1\n[lqr]\nhorizon = 3\n[compare]\nvary = "seed=1,2"\n',
        middle='base = "lqr"\nseed = 2\nrounds = 5\n',
    )
    expected = read_recipe(Path("lqr")) | {"seed": 1, "rounds": 5, "lqr.horizon": 3}
    assert read_recipe(path) == expected
    assert recipe_comparison(path, "vary") == "seed=1,2"
    assert recipe_comparison(tmp_path / "middle.toml", "vary") == ""


def test_a_missing_base_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"base = 'nothing' of .*study\.toml: no recipe"):
        read_recipe(write(tmp_path, study='base = "nothing"\n'))


def test_a_recipe_cannot_be_its_own_base(tmp_path):
    path = write(tmp_path, one='base = "two"\n', two='base = "one"\n')
    with pytest.raises(ValueError, match=r"one\.toml: its chain of bases leads back to it: .*one\.toml -> .*two\.toml"):
        read_recipe(path)


@pytest.mark.parametrize("name", sorted(recipe_runs()))
def test_what_recipes_vary_can_be_read(name):
    axes = [Vary.read(axis) for axis in recipe_comparison(Path(name), "vary").splitlines()]
    assert all(len(axis.values) > 1 for axis in axes)


# -- pipelines ---------------------------------------------------------------------------------------------------

PIPELINE = """
rounds = 5
methods = "fedavg"
[compare]
vary = "seed=1,2"
[pipeline.one]
[pipeline.two]
rounds = 6
[pipeline.two.vln]
agent-file = "{one}/checkpoints/fedavg/best.safetensors"
[pipeline.two.compare]
vary = "rounds=6,7"
[pipeline.three]
methods = "local"
vln = { agent-file = "{one}/a", speaker-file = "{two}/b,{one}/c" }
"""


def test_a_recipe_without_a_pipeline_has_none():
    assert read_pipeline(Path("lqr")) is None


def test_the_keys_of_a_stage_replace_those_of_the_recipe_and_placeholders_are_folders(tmp_path):
    found = read_pipeline(write(tmp_path, study=PIPELINE))
    one, two, three = found.runs({"seed": 4, "rounds": 7}, Path("/runs/name"))
    shared = {"rounds": 7, "seed": 4, "output-dir": "/runs/name"}
    assert one == StageRun("one", shared | {"name": "one", "methods": "fedavg"}, awaits=frozenset())
    agent = {"vln.agent-file": "/runs/name/one/checkpoints/fedavg/best.safetensors"}
    assert two == StageRun("two", shared | {"name": "two", "methods": "fedavg"} | agent, awaits=frozenset(agent))
    files = {"vln.agent-file": "/runs/name/one/a", "vln.speaker-file": "/runs/name/two/b,/runs/name/one/c"}
    assert three == StageRun("three", shared | {"name": "three", "methods": "local"} | files, awaits=frozenset(files))
    assert found.runs({}, Path("/runs/name"))[1].config["rounds"] == 6


def test_a_stage_is_read_as_a_recipe_with_one_run(tmp_path):
    path = write(tmp_path, study=PIPELINE)
    assert read_recipe(Path(f"{path}:one")) == {"rounds": 5, "methods": "fedavg"}
    given = {"vln.agent-file": "agent.safetensors"}
    assert read_recipe(Path(f"{path}:two"), given) == {"rounds": 6, "methods": "fedavg"} | given
    assert read_pipeline(Path(f"{path}:one")) is None
    assert [recipe_comparison(Path(f"{path}{stage}"), "vary") for stage in ("", ":one", ":two")] == ["seed=1,2"] * 2 + [
        "rounds=6,7"
    ]
    assert [recipe_name(Path(f"{path}{stage}")) for stage in ("", ":one")] == ["study", "study:one"]


def test_a_file_with_a_colon_in_its_name_is_no_stage(tmp_path):
    path = write(tmp_path, **{"study:one": "seed = 3\n"})
    assert read_recipe(path) == {"seed": 3}
    assert recipe_name(path) == "study:one"


def test_a_recipe_changes_single_keys_of_the_stages_of_its_base(tmp_path):
    path = write(
        tmp_path,
        small='base = "study"\nrounds = 1\n[pipeline.two]\nrounds = 2\n[pipeline.four]\nseed = 9\n',
        study=PIPELINE,
    )
    runs = read_pipeline(path).runs({}, Path("/runs"))
    assert [run.stage for run in runs] == ["one", "two", "three", "four"]
    assert [run.config["rounds"] for run in runs] == [1, 2, 1, 1]
    assert [run.config.get("seed") for run in runs] == [None, None, None, 9]
    assert runs[1].config["vln.agent-file"].startswith("/runs/one/")
    assert read_recipe(Path(f"{path}:four"))["seed"] == 9


def test_other_braces_are_no_placeholders(tmp_path):
    path = write(tmp_path, study='extra = "blobs = {a = 1}"\n[pipeline.one]\nmethods = "{ }{}"\n')
    (run,) = read_pipeline(path).runs({}, Path("/runs"))
    assert (run.config["extra"], run.config["methods"], run.awaits) == ("blobs = {a = 1}", "{ }{}", frozenset())
    path = write(tmp_path, single='name = "{one}"\n')
    assert read_recipe(path) == {"name": "{one}"}, "a recipe without stages"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seed = = 1", "study.toml cannot be read: "),
        ("seed = 1\nseed = 2", "study.toml cannot be read: "),
        ('"lqr.horizon" = 3\n[lqr]\nhorizon = 4', "cannot be read: lqr.horizon: set twice; keep one"),
        ("a" + ".a" * 99 + " = 1", "a.a....: tables are nested in more than 20 others"),
        ("[lqr]\nhorizon = ['a']", "cannot be read: lqr.horizon = ['a']: must be a number, a string, true or false"),
        ("[compare]\nseeds = 3", "compare.seeds: unknown key; the table compare has only the keys vary and seed-keys"),
        ("pipeline = 3", "pipeline = 3: must be tables [pipeline.NAME], one for each stage"),
        ("[pipeline]", "pipeline: has no stages; add a table [pipeline.NAME] for each stage, or remove it"),
        ("[pipeline]\nrounds = 3", "pipeline.rounds = 3: must be a table [pipeline.rounds] with the keys of a stage"),
        ("[pipeline.'a b']", "pipeline.'a b': names a folder, so it must start with a letter or a digit and consist"),
        ("[pipeline.'../a']", "pipeline.'../a': names a folder"),
        ("[pipeline.-a]", "pipeline.'-a': names a folder"),
        ("[pipeline.a]\nname = 'x'", "pipeline.a.name: a stage cannot have this key; set it above the tables, for the"),
        ("[pipeline.a]\nresume = true", "pipeline.a.resume: a stage cannot have this key"),
        ("[pipeline.a]\noutput-dir = 'x'", "pipeline.a.output-dir: a stage cannot have this key"),
        ("[pipeline.a]\nbase = 'lqr'", "pipeline.a.base: a stage cannot have this key"),
        ("[pipeline.a.vln]\nlanguages = ['en']", "pipeline.a.vln.languages = ['en']: must be a number, a string"),
        ("[pipeline.a.compare]\nseeds = 3", "pipeline.a.compare.seeds: unknown key; the table compare has only"),
    ],
)
def test_what_a_recipe_cannot_be_is_named_with_the_file(tmp_path, text, said):
    path = write(tmp_path, study=text)
    for read in (read_pipeline, read_recipe):
        with pytest.raises(ValueError, match=re.escape(said)) as caught:
            read(path)
        assert str(caught.value).startswith(f"recipe {path}")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("study", "study.toml: a pipeline of 3 runs; name one of its stages as RECIPE:STAGE: "),
        ("study:four", "study.toml: no stage 'four'; its stages are one, two, three"),
        ("study:two", "add --set vln.agent-file=FILE, or run the whole pipeline with `fedapps run "),
        ("lqr:one", "lqr.toml has no pipeline, so there is no stage 'one'; leave out :one"),
        ("nothing:one", "no recipe nothing.toml: give a run-config file or one of"),
    ],
)
def test_a_stage_that_cannot_be_read_is_named(tmp_path, monkeypatch, name, said):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, study=PIPELINE)
    recipe, _, stage = name.partition(":")
    with pytest.raises(ValueError, match=re.escape(said)):
        read_recipe(Path(f"{recipe}.toml:{stage}" if stage else f"{recipe}.toml"))


def test_the_recipes_of_the_page_on_recipes_are_valid(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "recipes.md").read_text()
    study, pipeline = re.findall(r"^```toml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    path = write(tmp_path, study=study, pipeline=pipeline)
    assert parse(read_recipe(path)).run.rounds == 50
    assert Vary.read(recipe_comparison(path, "vary")).values == (2, 5)
    speaker, agent = read_pipeline(tmp_path / "pipeline.toml").runs({}, Path("/runs"))
    assert parse(speaker.config).run.rounds == 20
    config = parse(agent.config, files_exist=False)
    assert (config.run.rounds, config.options.stage) == (40, "augmented")
    assert config.options.speaker_file == "/runs/speaker/checkpoints/fedavg/round-000020.safetensors"
