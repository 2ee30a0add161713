"""Values of a message's config in dataclasses, by type."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from fedapps.clients.settings import RoundSettings, check_choice, with_config
from fedapps.tasks.options import option_values
from hypothesis import given
from hypothesis import strategies as st


@dataclass(frozen=True)
class Options:
    whole: int = 1
    number: float = 0.5
    a_name: str = "a"
    switch: bool = False
    lambda_: float = 0.1
    arrays: dict[str, np.ndarray] | None = None
    names: tuple[str, ...] = field(default=())


def test_without_a_key_nothing_changes():
    assert with_config(Options(), {"other": 3}) == Options()
    assert RoundSettings().with_config({}) == RoundSettings()


def test_keys_are_the_names_with_hyphens():
    assert with_config(Options(), {"a-name": "b", "whole": 2, "switch": True, "lambda": 0.7}) == Options(
        whole=2, a_name="b", switch=True, lambda_=0.7
    )
    assert with_config(Options(), {"a_name": "b"}) == Options()


def test_a_whole_number_is_a_float_too():
    found = with_config(Options(), {"number": 3})
    assert found.number == 3.0
    assert type(found.number) is float


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("whole", 1.0, "int"),
        ("whole", True, "int"),
        ("whole", "1", "int"),
        ("number", "0.5", "float"),
        ("number", True, "float"),
        ("a-name", 1, "str"),
        ("switch", 1, "bool"),
        ("switch", "true", "bool"),
    ],
)
def test_a_value_of_another_type_is_an_error_that_names_the_key(key, value, kind):
    with pytest.raises(ValueError, match=rf"config {key} = {value!r}: must be of type {kind}"):
        with_config(Options(), {key: value})


def test_fields_of_other_types_come_from_records_and_not_from_the_config():
    assert with_config(Options(), {"arrays": 3, "names": "x"}) == Options()


VALUES = {int: st.integers(), float: st.floats(allow_nan=False), bool: st.booleans(), str: st.just("name")}
CONFIGS = {key: VALUES[type(default)] for key, default in option_values(RoundSettings()).items()}


@given(st.fixed_dictionaries({}, optional=CONFIGS))
def test_every_setting_can_be_in_the_config_and_the_others_stay(config):
    assert option_values(RoundSettings().with_config(config)) == option_values(RoundSettings()) | config


def test_a_choice_is_checked():
    check_choice("kind", "b", ["a", "b"])
    with pytest.raises(ValueError, match="config kind = 'c': must be one of 'a', 'b'"):
        check_choice("kind", "c", ["a", "b"])
