import pytest

from fedapps.base.errors import listed


@pytest.mark.parametrize(
    ("names", "text"), [([], ""), (["a"], "a"), (["a", "b"], "a, b"), ([1, 2, 3], "1, 2 and 1 more")]
)
def test_names_beyond_the_largest_number_are_counted(names, text):
    assert listed(iter(names), 2) == text
