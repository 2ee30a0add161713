"""The names a user can say, and how recipes are found and read."""

from pathlib import Path

import pytest

from fedapps.catalogue import GRID, METHOD_LINES, METHODS, RECIPES, TASK_LINES, TASKS, read_recipe, recipes, task_class
from tasks.base import Task


def test_every_task_has_a_line_and_an_importable_class():
    assert TASK_LINES.keys() == TASKS.keys()
    for name, line in TASK_LINES.items():
        assert line
        assert issubclass(task_class(name), Task)
        assert task_class(name).name == name
        assert task_class(name)(task_class(name).Options()).options == task_class(name).Options()


def test_every_method_has_a_line():
    assert list(METHODS)[:7] == ["local", "cloud", "sfl", "spfl", "spfl-low", "apfl", "apfl-sqrt"]
    assert len(GRID) == 27
    assert METHODS.keys() >= set(GRID)
    assert [*METHOD_LINES][:-1] == [name for name in METHODS if name not in GRID]
    assert all(method.line and "\n" not in method.line for method in METHODS.values())
    assert len({method.line for method in METHODS.values()}) == len(METHODS)


def test_recipes_are_listed_with_their_first_line():
    found = recipes()
    assert list(found) == sorted(path.stem for path in RECIPES.glob("*.toml"))
    assert found["lqr"].startswith("LQR toy of APFL")
    assert all(line and not line.startswith("#") for line in found.values())


@pytest.mark.parametrize("given", [Path("lqr"), Path("lqr.toml"), Path("somewhere/lqr.toml"), RECIPES / "lqr.toml"])
def test_a_recipe_is_found_by_name_and_by_path(given):
    assert read_recipe(given)["task"] == "lqr"


def test_a_users_own_file_comes_before_a_recipe_of_its_name(tmp_path):
    own = tmp_path / "lqr.toml"
    own.write_text("seed = 5\n[lqr]\nhorizon = 3\n[lqr.deep]\nkey = true\n")
    assert read_recipe(own) == {"seed": 5, "lqr.horizon": 3, "lqr.deep.key": True}


def test_a_missing_file_names_the_recipes(tmp_path):
    with pytest.raises(ValueError, match=r"no recipe .*nothing\.toml: give a run-config file, or one of") as caught:
        read_recipe(tmp_path / "nothing.toml")
    assert all(name in str(caught.value) for name in recipes())


@pytest.mark.parametrize("content", [b"seed = = 1\n", b"seed = 1\nseed = 2\n", b"\xff\xfe"])
def test_malformed_toml_names_the_file(tmp_path, content):
    path = tmp_path / "odd.toml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"recipe .*odd\.toml cannot be read: "):
        read_recipe(path)


def test_a_folder_is_no_recipe(tmp_path):
    with pytest.raises(ValueError, match="cannot be read"):
        read_recipe(tmp_path)


def test_values_that_a_run_config_cannot_hold_are_named(tmp_path):
    path = tmp_path / "list.toml"
    path.write_text("[driving]\nscenario = ['lane-swap']\n")
    with pytest.raises(
        ValueError, match=r"list\.toml cannot be read: driving\.scenario = \['lane-swap'\]: must be a number, a string"
    ):
        read_recipe(path)
