"""The key ``extra``: keys of other packages come through Flower as they went in."""

from pathlib import Path
from typing import Any

import pytest
from flwr.common.config import parse_config_args
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapps.config.keys import defaults, for_flower, with_extra
from fedapps.config.parsing import parse
from fedapps.deployment.submission import submission

KEYS = st.from_regex(r"[a-z][a-z0-9-]{0,8}\.[a-z][a-z0-9-]{0,8}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))  # TOML has no lone surrogates
VALUES = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXTS


@settings(deadline=None)
@given(st.dictionaries(KEYS.filter(lambda key: key not in defaults()), VALUES, max_size=5))
def test_what_is_packed_is_unpacked_with_its_values_and_types(others: dict[str, Any]) -> None:
    flat = {"rounds": 3, "fedprox.mu": 0.1} | others
    packed = for_flower(flat)
    assert packed.keys() <= {"rounds", "fedprox.mu", "extra"}
    found = with_extra(packed)
    found.pop("extra", None)
    assert found == flat
    assert [type(found[key]) for key in flat] == [type(value) for value in flat.values()]


def test_flower_hands_on_what_was_packed(tmp_path: Path) -> None:
    others = {
        "tabular.dataset": 'it\'s "digits", {really} = # \\n\n\tü',
        "tabular.alpha": 0.3,
        "tabular.hidden": 12,
        "tabular.batch-norm": False,
        "tabular.shift": 1e-12,
    }
    overrides = submission(tmp_path, tmp_path, for_flower(others))[-1]
    received = defaults() | parse_config_args([overrides])
    assert others.items() <= with_extra(received).items()


@pytest.mark.parametrize("text", ["tabular.alpha", "tabular.alpha = ", "a.b = 1}\nc = {d = 2", "a.b = 1, a.b = 2"])
def test_what_is_no_inline_table_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be keys of a TOML inline table"):
        with_extra({"extra": text})


def test_a_key_of_ours_must_stand_beside_extra() -> None:
    with pytest.raises(ValueError, match=r"extra: fedprox.mu, rounds: set this beside extra"):
        parse({"extra": "rounds = 3, fedprox.mu = 1.0"})


def test_a_key_of_nobody_is_unknown_in_extra_too() -> None:
    with pytest.raises(ValueError, match=r"nobody\.knows: unknown key; 'nobody' is neither a task"):
        parse({"extra": "nobody.knows = 1"})
