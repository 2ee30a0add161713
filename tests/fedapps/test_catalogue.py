"""The names a user can say."""

from fedapps.catalogue import GRID, METHOD_LINES, METHODS, TASK_LINES, TASKS, task_class
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
