import pytest
from fedapps.strategies.replies import weighting


def test_by_examples():
    assert [weighting("num-examples")(examples) for examples in (1, 7.5)] == [1.0, 7.5]


def test_uniform():
    assert [weighting("uniform")(examples) for examples in (1, 7.5)] == [1.0, 1.0]


def test_unknown_names_are_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="weighting = 'size': must be one of num-examples, uniform"):
        weighting("size")
