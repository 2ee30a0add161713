"""What is counted in instructions: words, sentences and verbs of a worked case."""

import pytest

from benchmarks.descriptions import VERBS, apart, statistics


def test_words_sentences_and_verbs_by_hand() -> None:
    texts = ["Walk past the door. Turn left, and stop!", "turn right . wait by the sofa", ""]
    known = statistics(texts)
    assert known["length"] == pytest.approx((11 + 7 + 0) / 3)
    assert known["length_variance"] == pytest.approx((121 + 49) / 3 - 6**2)
    assert known["sentences"] == pytest.approx((2 + 2 + 0) / 3)  # "wait by the sofa" has no full stop
    assert known["sentences_variance"] == pytest.approx(8 / 3 - (4 / 3) ** 2)
    assert {verb: share for verb, share in known["verbs"].items() if share} == {
        "walk": 0.2,
        "turn": 0.4,
        "stop": 0.2,
        "wait": 0.2,
    }


def test_verbs_are_apart_by_what_would_have_to_move() -> None:
    nothing = dict.fromkeys(VERBS, 0.0)
    assert apart(nothing | {"walk": 1.0}, nothing | {"walk": 0.25, "turn": 0.75}) == 0.75
    assert apart(nothing | {"walk": 1.0}, nothing | {"walk": 1.0}) == 0
    assert statistics([""])["verbs"] == nothing
