"""The rules of a node's operator, as keys of the node config."""

from pathlib import Path

import pytest
from fedapps.clients.rules import NodeRules, RulesError

from fedapps.base.options import option_fields


def test_without_keys_any_run_may_come_and_a_deployed_node_sends_no_mean_of_one_or_two_examples():
    rules = NodeRules.of({"data-dir": "there", "private": "x", "partition-id": 1})
    rules.check_run("none", 0.0, 1e9, seeded=True)
    assert (rules, rules.min_count) == (NodeRules(), 3)
    assert NodeRules.of({"partition-id": 1}).min_count == 1
    assert NodeRules.of({"partition-id": 1, "min-count": 5}).min_count == 5


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"dp": "lokal"}, "node config dp = 'lokal': must be one of 'none', 'local'"),
        ({"dp": "local", "dp-noise": 0.0}, "node config dp-noise = 0.0: must be a number above 0"),
        ({"dp": "local", "max-epsilon": "8"}, "node config max-epsilon = '8': must be a number at least 0"),
        ({"min-count": 0}, "node config min-count = 0: must be a whole number at least 1"),
        ({"max-epsilon": 8.0}, 'node config max-epsilon: needs dp = "local"'),
        ({"dp-noise": 1.0, "max-releases": 2}, 'node config dp-noise, max-releases: needs dp = "local"'),
    ],
)
def test_a_rule_that_would_protect_nothing_stops_the_node(config, said):
    with pytest.raises(ValueError, match=said):
        NodeRules.of(config)


def test_the_operator_names_what_may_leave():
    rules = NodeRules.of({"may-leave": "fedproto.*, loss"})
    assert [rules.lets_out(name, otherwise=True) for name in ("fedproto.local", "loss", "steps")] == [True, True, False]
    assert [NodeRules().lets_out("loss", otherwise=otherwise) for otherwise in (True, False)] == [True, False]


def test_all_that_a_run_lacks_is_named_at_once():
    with pytest.raises(RulesError, match=r"dp-noise = 0\.5: must be at least 1; dp-clip = 3: must be at most 2; dp"):
        NodeRules.of({"dp": "local", "dp-clip": 2}).check_run("local", 0.5, 3.0, seeded=True)


def test_the_reference_of_the_node_config_lists_every_rule():
    table = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text().partition("## State of a node")[0]
    first_cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert not [key for key in option_fields(NodeRules) if not any(f"`{key}`" in cell for cell in first_cells)]
