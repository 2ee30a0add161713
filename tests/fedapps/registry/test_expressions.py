"""Methods as they are written in a run config."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapps.registry.expressions import (
    Expression,
    labels,
    read_expression,
    read_expressions,
    shown_names,
    split_expressions,
)

NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True)
TEXTS = st.text(st.characters(whitelist_categories=("L", "N"), whitelist_characters=".,-() "), max_size=8).map(
    str.strip
)


def test_commas_inside_parentheses_and_quotes_separate_nothing():
    text = "fedavg, fedprox(mu=0.1, x=2) ,, h-fl(groups='city,continent'),local"
    assert split_expressions(text) == ["fedavg", "fedprox(mu=0.1, x=2)", "h-fl(groups='city,continent')", "local"]


def test_an_expression_has_a_name_and_arguments():
    assert read_expression(" fedavg ") == Expression("fedavg")
    assert read_expression('h-fl( groups = "city,continent", intervals=5 )') == Expression(
        "h-fl", (("groups", "city,continent"), ("intervals", "5"))
    )
    assert read_expression("fedavg()") == Expression("fedavg")


def test_the_label_has_no_optional_spaces_and_quotes():
    assert labels("fedprox( mu = 0.1 ), h-fl(groups='city,continent')") == [
        "fedprox(mu=0.1)", "h-fl(groups='city,continent')",
    ]  # fmt: skip


def test_a_name_for_reports_stands_behind_as():
    text = "fedavg(run.learning-rate=0.2771) as FedAvg, spfl as 'Ours, tuned', x(path='a as b') as X (b), local"
    assert labels(text) == ["fedavg(run.learning-rate=0.2771)", "spfl", "x(path='a as b')", "local"]
    assert [read_expression(part).shown for part in split_expressions(text)] == [
        "FedAvg", "Ours, tuned", "X (b)", "local",
    ]  # fmt: skip
    assert shown_names(text) == {
        "fedavg(run.learning-rate=0.2771)": "FedAvg", "spfl": "Ours, tuned", "x(path='a as b')": "X (b)",
    }  # fmt: skip


@pytest.mark.parametrize("text", ["fedavg as A, spfl as A", "fedavg, spfl as fedavg"])
def test_a_name_belongs_to_one_method(text):
    with pytest.raises(ValueError, match=r"methods: '\w+' is the name of two methods; choose another behind 'as'"):
        shown_names(text)


@given(NAMES, st.dictionaries(NAMES, TEXTS.filter(lambda text: "'" not in text), max_size=3))
def test_a_label_can_be_read_again(name, arguments):
    expression = Expression(name, tuple(arguments.items()))
    assert read_expression(expression.label) == expression
    assert split_expressions(expression.label) == [expression.label]


@pytest.mark.parametrize("text", ["", "(", "fedprox(mu=0.1", "fedprox mu=0.1", "fedprox(mu)", "fedprox(=1)", "1prox"])
def test_other_forms_are_refused(text):
    with pytest.raises(ValueError, match=r"write methods as name or name\(key=value, key=value\)"):
        read_expression(text)


def test_an_argument_given_twice_is_refused():
    with pytest.raises(ValueError, match="mu is given twice"):
        read_expression("fedprox(mu=1,mu=2)")


def test_all_malformed_ones_are_told_at_once():
    found, errors = read_expressions("fedavg, fedprox(mu), x(")
    assert found == [Expression("fedavg")]
    assert len(errors) == 2
    assert all(error.startswith("methods: ") for error in errors)
