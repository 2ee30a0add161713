"""Recipes are found by name or path, read, and based on each other."""

from pathlib import Path

import pytest

from fedapps.comparison.matrix import Vary
from fedapps.config.recipe_files import RECIPES, read_recipe, recipe_vary, recipes


def test_recipes_are_listed_with_their_first_line():
    found = recipes()
    assert list(found) == sorted(path.stem for path in RECIPES.glob("*.toml"))
    assert found["lqr"].startswith("APFL, LQR toy")
    assert all(line and not line.startswith("#") for line in found.values())


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


@pytest.mark.parametrize("content", [b"seed = = 1\n", b"seed = 1\nseed = 2\n", b"\xff\xfe"])
def test_malformed_toml_names_the_file(tmp_path, content):
    path = tmp_path / "odd.toml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"recipe .*odd\.toml cannot be read: "):
        read_recipe(path)


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="cannot be read"):
        read_recipe(tmp_path)


def test_values_that_a_run_config_cannot_hold_are_named(tmp_path):
    path = tmp_path / "list.toml"
    path.write_text("[driving]\nscenario = ['lane-swap']\n")
    with pytest.raises(
        ValueError, match=r"list\.toml cannot be read: driving\.scenario = \['lane-swap'\]: must be a number, a string"
    ):
        read_recipe(path)


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
    assert recipe_vary(path) == "seed=1,2"
    assert recipe_vary(tmp_path / "middle.toml") == ""


def test_a_missing_base_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"base = 'nothing' of .*study\.toml: no recipe"):
        read_recipe(write(tmp_path, study='base = "nothing"\n'))


def test_a_recipe_cannot_be_its_own_base(tmp_path):
    path = write(tmp_path, one='base = "two"\n', two='base = "one"\n')
    with pytest.raises(ValueError, match=r"one\.toml: its chain of bases leads back to it: .*one\.toml -> .*two\.toml"):
        read_recipe(path)


def test_an_unknown_key_of_a_comparison_is_named(tmp_path):
    with pytest.raises(
        ValueError, match=r"study\.toml: compare\.seeds: unknown key; the table compare has only the key vary"
    ):
        read_recipe(write(tmp_path, study="[compare]\nseeds = 3\n"))


@pytest.mark.parametrize("name", sorted(recipes()))
def test_what_recipes_vary_can_be_read(name):
    vary = Vary.read(recipe_vary(Path(name)))
    assert vary is None or len(vary.values) > 1
