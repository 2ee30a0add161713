"""Values of a message's config in dataclasses, by type."""

from dataclasses import dataclass, field, fields

import numpy as np
import pytest
from fedapps.clients.settings import LocalTraining, RoundSettings, with_config
from flwr.app import RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedapps.base.options import option, option_fields, option_values
from fedapps.methods.fedvc import FedVcPart
from fedapps.registry.methods import METHODS


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


VALUES = {int: st.integers(-2, 2**62), float: st.floats(), bool: st.booleans(), str: st.sampled_from(["name", "sgd"])}
CONFIGS = {
    key: VALUES[type(default)]
    for key, default in option_values(RoundSettings()).items()
    if key not in ("held-out-epochs", "untrained", "lineage", "champions")  # stands for epochs; lists
}


@pytest.mark.parametrize("names", ["a", [1]])
def test_what_is_not_trained_is_a_list_of_names(names):
    assert RoundSettings().with_config({"untrained": ["a", "b"]}).untrained == ("a", "b")
    with pytest.raises(ValueError, match=r"config untrained = .*: must be a list of names of arrays"):
        RoundSettings().with_config({"untrained": names})


def is_declared(value, field):
    limits = {"minimum": None, "maximum": None, "above": None, "choices": None, **field.metadata}
    if limits["choices"]:
        return value in limits["choices"]
    return isinstance(value, str) or (
        abs(value) < float("inf")
        and (limits["minimum"] is None or value >= limits["minimum"])
        and (limits["maximum"] is None or value <= limits["maximum"])
        and (limits["above"] is None or value > limits["above"])
    )


@given(st.fixed_dictionaries({}, optional=CONFIGS))
def test_every_setting_can_be_in_the_config_within_its_range_and_the_others_stay(config):
    declared = option_fields(RoundSettings)
    wrong = [key for key, value in config.items() if not is_declared(value, declared[key])]
    if wrong:
        with pytest.raises(ValueError, match=f"config ({'|'.join(wrong)}) = .*: must be"):
            RoundSettings().with_config(config)
    else:
        assert option_values(RoundSettings().with_config(config)) == option_values(RoundSettings()) | config


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"epochs": 0}, "config epochs = 0: must be a whole number at least 1"),
        ({"batch-size": -1}, "config batch-size = -1: must be a whole number at least 1"),
        ({"learning-rate": float("nan")}, "config learning-rate = nan: must be finite"),
        ({"weight-decay": float("inf")}, "config weight-decay = inf: must be finite"),
        ({"optimizer": "lion"}, "config optimizer = 'lion': must be one of 'adam'"),
        ({"stage": -1}, "config stage = -1: must be a whole number at least 0 and at most 999"),
        ({"server-round": 0}, "config server-round = 0: must be a whole number at least 1 and at most 999999"),
        ({"server-round": 2**62}, "config server-round = 4611686018427387904: must be"),
        ({"durable-round": -1}, "config durable-round = -1: must be"),
    ],
)
def test_a_value_out_of_the_declared_range_is_an_error(config, message):
    with pytest.raises(ValueError, match=message):
        RoundSettings().with_config(config)


def test_a_new_node_may_train_no_epoch():
    assert RoundSettings().with_config({"held-out-epochs": 0, "steps": 7}).training == LocalTraining(epochs=0)
    assert RoundSettings().with_config({"held-out-epochs": -1, "epochs": 3}).training == LocalTraining(epochs=3)


def test_every_number_that_a_node_reads_has_a_declared_range():
    for kind in (FedVcPart, LocalTraining, RoundSettings):
        for number in fields(kind):
            if type(number.default) in (int, float):
                declared = {limit for limit, value in number.metadata.items() if value is not None}
                assert declared & {"minimum", "above"}, (kind.__name__, number.name)


@pytest.mark.parametrize("name", METHODS.own)
def test_a_part_reads_a_value_of_the_config_only_where_the_field_declares_its_range(name):
    """Whatever a server names, the options of the run config stay."""
    for part in METHODS.own[name]().local_parts():
        config = {field.name.replace("_", "-"): 7 for field in fields(part)}
        assert part.read(config, RecordDict()) == part or isinstance(part, FedVcPart)


def test_the_ranges_of_own_fields_count():
    @dataclass(frozen=True)
    class Own:
        share: float = option(0.5, "a share", above=0, maximum=1)

    assert with_config(Own(), {"share": 1}) == Own(1.0)
    for share in (0.0, 1.5, float("nan")):
        with pytest.raises(ValueError, match=f"config share = {share}: must be"):
            with_config(Own(), {"share": share})
