"""The rules of a node's operator, and the limits of the work of a message, as keys of the node config."""

import time
from math import inf
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fedapps.clients import rules as module
from fedapps.clients.rules import LimitError, NodeLimits, NodeRules, RulesError, check_length, limited_rank, spend_step

from fedapps.base.options import option_fields
from fedapps.base.processes import is_alive

DEPLOYED = {"data-dir": "/data"}
SIMULATED = {"partition-id": 0, "num-partitions": 1}


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


@pytest.mark.parametrize("hours", ["22", "22-25", "-1-6", "night"])
def test_hours_are_two_numbers(hours):
    with pytest.raises(ValueError, match=r"eligible-hours = .*: must be two hours of the day from 0 to 24"):
        NodeRules.of({"eligible-hours": hours})


@pytest.mark.parametrize(
    ("hours", "inside", "outside"),
    [("22-6", (22, 23, 0, 5), (6, 12, 21)), ("9-17", (9, 16), (8, 17)), ("0-24", (0, 23), ()), ("7-7", (6, 7), ())],
)
def test_a_node_works_in_its_hours(monkeypatch, hours, inside, outside):
    rules = NodeRules.of({"eligible-hours": hours})

    def at(hour):
        monkeypatch.setattr(module.time, "localtime", lambda: SimpleNamespace(tm_hour=hour))
        return rules.ineligible()

    assert {at(hour) for hour in inside} == {""}
    expected = [f"eligible-hours = {hours}: it is {of} o'clock on the node" for of in outside]
    assert [at(hour) for hour in outside] == expected


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("", None),
        ("true", ""),
        ("sh -c 'exit 3'", "eligible: the command ended with exit status 3"),
        ("/no/such/command", "eligible: the command gave no answer (FileNotFoundError)"),
        ("sh -c 'exit", "eligible: the command gave no answer (ValueError)"),
    ],
)
def test_a_command_says_whether_a_node_may_work(command, why):
    assert NodeRules.of({"eligible": command}).ineligible() == why


def test_a_command_that_takes_too_long_is_killed_with_all_that_it_has_started(tmp_path):
    child = tmp_path / "child"
    with pytest.raises(RulesError, match="the command gave no answer"):
        module.exit_status(f"sh -c 'sleep 60 & echo $! > {child}; wait'", seconds=1)
    while is_alive(int(child.read_text())):  # until the test times out
        time.sleep(0.01)


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


def test_a_deployed_node_has_limits_and_a_simulated_one_those_that_are_set():
    assert NodeLimits.of(DEPLOYED) == NodeLimits(1_000_000, 86_400, 0)
    assert NodeLimits.of(SIMULATED) == NodeLimits(inf, inf, 0)
    keys = {"max-steps": 5, "max-seconds": 0.5, "max-memory": 2000}
    assert NodeLimits.of(DEPLOYED | keys) == NodeLimits.of(SIMULATED | keys) == NodeLimits(5, 0.5, 2000)


@pytest.mark.parametrize(
    ("key", "bound"), [("max-steps", "above 0"), ("max-seconds", "above 0"), ("max-memory", "of at least 1")]
)
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "5", True])
def test_a_limit_that_is_no_number_above_0_is_named(key, bound, value):
    with pytest.raises(ValueError, match=f"node config {key} = {value!r}: must be a number {bound}"):
        NodeLimits.of({key: value})


@pytest.mark.parametrize("key", ["max-memory", "max-rank"])
def test_a_limit_below_1_is_not_taken_for_none(key):
    with pytest.raises(ValueError, match=f"node config {key} = 0.5: must be a number of at least 1"):
        NodeLimits.of({key: 0.5})


def test_steps_are_counted_over_all_phases_of_a_message():
    with NodeLimits(steps=3).applied():
        for _ in range(3):
            spend_step()
        with pytest.raises(LimitError, match="step 4: this node takes at most 3 optimizer steps for a message"):
            spend_step()
    with NodeLimits(steps=3).applied():
        spend_step()
        check_length("epochs", 2)
        with pytest.raises(LimitError, match=r"config epochs = 3: this node takes at most 3 .*\(max-steps in its node"):
            check_length("epochs", 3)
    check_length("epochs", 2**62)  # without limits
    spend_step()


def test_adapters_have_the_smaller_of_the_ranks_of_method_and_node():
    for config, ranks in (({"max-rank": 4}, [2, 4, 4]), ({}, [2, 4, 8])):
        with NodeLimits.of(config).applied():
            assert [limited_rank(rank) for rank in (2, 4, 8)] == ranks
    assert limited_rank(8) == 8


def test_no_step_is_taken_after_the_time_of_the_message(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    with NodeLimits(seconds=10).applied():
        now[0] = 110.0
        spend_step()
        now[0] = 110.1
        with pytest.raises(LimitError, match="step 2: this node works at most 10 s for a message"):
            spend_step()


def test_more_memory_than_the_limit_is_an_error_and_the_limit_ends_with_the_message():
    with NodeLimits(memory=100_000).applied():
        assert np.zeros(1000).size
        with pytest.raises(MemoryError):
            np.zeros(2**37, np.uint8)  # 137 GB
    assert module.resource.getrlimit(module.resource.RLIMIT_DATA)[0] == module.resource.RLIM_INFINITY
