"""What hooks of a method return is checked before a run begins."""

import pytest

from fedapps.config.run_config import RunConfig
from fedapps.methods.base import Method
from fedapps.methods.checks import check_method
from fedapps.methods.fedprox import FedProx
from fedapps.registry.methods import METHODS


@pytest.mark.parametrize("name", METHODS.own)
def test_the_methods_of_the_package_pass(name):
    check_method(METHODS.own[name](), RunConfig())


@pytest.mark.parametrize(
    ("hook", "returned", "said"),
    [
        ("round_config", None, "round_config of the method 'mine' returned None: it must return a dictionary"),
        ("round_config", {"proximal": [1]}, r"gives 'proximal' = \[1\]: must be a string with a number"),
        ("round_config", {"proximl": 1.0}, "'proximl', which none of its local parts reads.*did you mean 'proximal'"),
        ("local_parts", None, r"local_parts\(\) returned None"),
    ],
)
def test_a_wrong_result_is_named(hook, returned, said):
    mine: type[Method] = type("Mine", (FedProx,), {"name": "mine", hook: lambda *_: returned})
    with pytest.raises(ValueError, match=said):
        check_method(mine(), RunConfig())
