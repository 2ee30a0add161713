"""Search ranges of options."""

import pytest

from fedapps.base.options import Around, Choices, Range, parse_options, range_at
from fedapps.config.keys import all_keys


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
