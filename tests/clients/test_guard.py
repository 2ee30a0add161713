"""The parameters that stay on a node, whatever a message asks for."""

from fnmatch import fnmatchcase

import numpy as np
import pytest
from fedapps.clients.guard import Guard, PrivateParametersError
from flwr.app import Array, ArrayRecord
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

NAMES = ["embedding.weight", "encoder.weight", "encoder.bias", "head.weight"]
PATTERNS = ["*", "embedding.*", "enc*", "head.weight", "*.bias"]


def test_a_request_for_a_private_name_is_refused_and_named_without_its_shape():
    guard = Guard((("embedding.*",),))
    guard.check_names(["encoder.weight"])
    with pytest.raises(PrivateParametersError, match=r"^embedding\.weight: private on this node"):
        guard.check_names(["encoder.weight", "embedding.weight"])


def test_what_one_of_the_possible_methods_shares_may_leave():
    guard = Guard((("embedding.*", "head.*"), ("embedding.*",)))
    assert [name for name in NAMES if guard.stays(name)] == ["embedding.weight"]


def test_without_patterns_nothing_is_refused():
    Guard().check_names(NAMES)
    Guard.of({}).check_names(NAMES)


def test_the_operators_patterns_hold_for_every_method():
    guard = Guard.of({"private": "embedding.*, head.*"}, [(), ("encoder.*",)])
    assert [name for name in NAMES if guard.stays(name)] == ["embedding.weight", "head.weight"]


@given(
    st.lists(st.lists(st.sampled_from(PATTERNS)).map(tuple), min_size=1, max_size=3),
    st.lists(st.sampled_from(PATTERNS)),
    st.sampled_from(NAMES),
)
def test_the_operators_patterns_only_add(methods, node, name):
    guard = Guard.of({"private": ",".join(node)}, methods)
    by_operator = any(fnmatchcase(name, pattern) for pattern in node)
    by_methods = all(any(fnmatchcase(name, pattern) for pattern in patterns) for patterns in methods)
    assert guard.stays(name) == (by_operator or by_methods)


class Tied(nn.Module):
    """The embedding is also the output layer."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.output = nn.Linear(3, 5)
        self.output.weight = self.embedding.weight


def test_a_second_name_of_a_private_tensor_is_refused():
    guard = Guard((("embedding.*",),))
    guard.check_model(Tied(), ["output.bias"])
    with pytest.raises(PrivateParametersError, match=r"^output\.weight: the same numbers as a private parameter"):
        guard.check_model(Tied(), ["output.weight", "output.bias"])


@pytest.mark.parametrize("patterns", ["embeding.*", "embedding.*,decoder.*", "True"])
def test_a_misspelt_pattern_is_an_error_and_not_ignored(patterns):
    with pytest.raises(ValueError, match=r"private = .*: no parameter of the model matches; it has embedding\.weight"):
        Guard.of({"private": patterns}).check_model(Tied(), [])


def test_no_record_takes_a_private_parameter_out():
    guard, record = Guard.of({"private": "embedding.*"}), ArrayRecord({"embedding.weight": Array(np.ones(2))})
    guard.check_records({"fisher.precision": ArrayRecord({"head.weight": Array(np.ones(2))})})
    with pytest.raises(PrivateParametersError):
        guard.check_records({"fisher.precision": record})
