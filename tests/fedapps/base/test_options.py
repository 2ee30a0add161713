"""Options: dataclass fields that say what they mean and what they allow."""

from dataclasses import dataclass, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapps.base.options import Around, Choices, Range, allowed, key_of, option, parse_options, range_at
from fedapps.config.keys import all_keys


@dataclass(frozen=True)
class Sample:
    count: int = option(3, "how many", minimum=1, maximum=9)
    step_size: float = option(0.5, "how far", above=0, maximum=2)
    offset: float = option(0.0, "from where")
    fast: bool = option(False, "or not")
    mood: str = option("calm", "which", choices=["calm", "wild"])
    title: str = option("", "any")


def test_a_field_keeps_its_default_and_its_documentation():
    assert Sample() == Sample(3, 0.5, 0.0, False, "calm", "")
    assert [f.metadata["doc"] for f in fields(Sample)] == [
        "how many",
        "how far",
        "from where",
        "or not",
        "which",
        "any",
    ]


def test_keys_are_written_with_hyphens():
    assert key_of("rate_power") == "rate-power"
    assert parse_options(Sample, {"step-size": 1.5}) == ({"step_size": 1.5}, [])
    assert parse_options(Sample, {"step_size": 1.5})[0] == {}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("count", "a whole number at least 1 and at most 9"),
        ("step_size", "a number above 0 and at most 2"),
        ("offset", "a number"),
        ("fast", "true or false"),
        ("mood", "one of 'calm', 'wild'"),
        ("title", "a string"),
    ],
)
def test_what_is_allowed_in_words(name, words):
    (found,) = [f for f in fields(Sample) if f.name == name]
    assert allowed(found.metadata, type(found.default)) == words


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("count", 1),
        ("count", 9),
        ("step-size", 1e-300),
        ("step-size", 2.0),
        ("offset", -1e9),
        ("fast", True),
        ("mood", "wild"),
        ("title", "7"),
    ],
)
def test_values_at_the_edge_are_taken(key, value):
    assert parse_options(Sample, {key: value}) == ({key.replace("-", "_"): value}, [])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("count", 0),
        ("count", 10),
        ("count", 2.0),
        ("count", "2"),
        ("count", True),
        ("step-size", 0.0),
        ("step-size", 2.1),
        ("step-size", float("nan")),
        ("offset", float("nan")),
        ("offset", False),
        ("offset", 10**400),
        ("offset", None),
        ("fast", 0),
        ("fast", "true"),
        ("mood", "sad"),
        ("mood", ["calm"]),
        ("title", 7),
    ],
)
def test_every_other_value_is_refused_with_what_is_allowed(key, value):
    (found,) = [f for f in fields(Sample) if key_of(f.name) == key]
    words = allowed(found.metadata, type(found.default))
    assert parse_options(Sample, {key: value}, "toy.") == ({}, [f"toy.{key} = {value!r}: must be {words}"])


def test_a_whole_number_becomes_a_float():
    arguments, _ = parse_options(Sample, {"step-size": 2})
    assert repr(arguments) == "{'step_size': 2.0}"


def test_all_errors_come_together_and_good_values_stay():
    arguments, errors = parse_options(
        Sample, {"count": 0, "moood": "calm", "magic": 1, "mood": "calm", "fast": 1}, "toy."
    )
    assert arguments == {"mood": "calm"}
    assert errors == [
        "toy.count = 0: must be a whole number at least 1 and at most 9",
        "toy.moood: unknown key; did you mean 'toy.mood'?",
        "toy.magic: unknown key; known keys: toy.count, toy.fast, toy.mood, toy.offset, toy.step-size, toy.title",
        "toy.fast = 1: must be true or false",
    ]


@given(st.dictionaries(st.sampled_from(["count", "step-size", "fast", "mood", "odd"]), st.one_of(
    st.integers(-2, 12), st.floats(-1, 3), st.booleans(), st.sampled_from(["calm", "wild", "odd"]), st.none(),
)))  # fmt: skip
def test_each_value_is_either_taken_or_explained(values):
    arguments, errors = parse_options(Sample, values)
    assert len(arguments) + len(errors) == len(values)
    made = Sample(**arguments)
    assert 1 <= made.count <= 9
    assert 0 < made.step_size <= 2
    assert type(made.fast) is bool
    assert made.mood in ("calm", "wild")
    for key, value in values.items():
        assert (key.replace("-", "_") in arguments) != any(error.startswith((f"{key} = {value!r}", f"{key}: "))
                                                           for error in errors)  # fmt: skip


def test_an_option_has_a_type():
    with pytest.raises(TypeError, match=r"option\(None\): the default must be a number, a string or a bool"):
        option(None, "help")


# -- search ranges -------------------------------------------------------------------------------------------------


def test_a_range_has_its_bounds():
    assert all(value in Range(1, 3) for value in (1, 2.5, 3))
    assert not any(value in Range(1, 3) for value in (0.9, 3.1, "2"))
    assert str(Range(0.001, 10, log=True)) == "0.001..10,log"


def test_the_ends_of_a_range_by_hand():
    # A twentieth of 0..10 is 0.5, and one of 0.01..100 on a logarithmic scale is a factor of 10 ** 0.2 = 1.58.
    assert [Range(0, 10).is_near_end(value) for value in (0, 0.4, 0.6, 9.4, 9.6, 10)] == [
        *(True, True, False, False, True, True)
    ]
    assert [Range(0.01, 100, log=True).is_near_end(value) for value in (0.015, 0.016, 63, 64)] == [
        *(True, False, False, True)
    ]
    assert not Range(0.01, 100, log=True).is_near_end(0.0)  # a default that stands for the value of another key


@pytest.mark.parametrize(
    ("low", "high", "log", "message"),
    [(2, 2, False, "lower bound must be below"), (0, 1, True, "must be above 0"), (-1, 1, True, "must be above 0")],
)
def test_bounds_that_make_no_range(low, high, log, message):
    with pytest.raises(ValueError, match=message):
        Range(low, high, log)


def test_a_range_around_the_present_value_stays_within_the_limits():
    assert range_at(Around(10), 0.02, {}) == Range(0.02 / 10, 0.02 * 10, log=True)
    assert range_at(Around(10), 0.5, {"minimum": 0, "maximum": 1}) == Range(0.05, 1, log=True)
    assert range_at(Around(10), 0.0, {}) is None  # an option that is switched off stays so
    assert range_at(Choices((1, 2)), 5, {}) == Choices((1, 2))


def test_every_declared_range_has_allowed_values_only():
    found = {key: setting for key, setting in all_keys().items() if setting.metadata.get("search")}
    assert {"learning-rate", "fedprox.mu", "fedadam.learning-rate", "ewc.lambda", "apfl.power"} <= found.keys()
    for key, setting in found.items():
        domain = range_at(setting.metadata["search"], setting.default, setting.metadata)
        values = domain.values if isinstance(domain, Choices) else (domain.low, domain.high)
        for value in values:
            options = type("Options", (), {"__dataclass_fields__": {setting.name: setting}})
            typed = type(setting.default)(value)
            assert parse_options(options, {key.rpartition(".")[2]: typed}) == ({setting.name: typed}, [])
