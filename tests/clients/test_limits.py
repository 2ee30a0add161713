"""The limits of a node: steps, seconds and memory of a message, whatever it asks for."""

from math import inf

import numpy as np
import pytest
from fedapps.clients import limits as module
from fedapps.clients.limits import LimitError, NodeLimits, check_length, limited_rank, spend_step

DEPLOYED = {"data-dir": "/data"}
SIMULATED = {"partition-id": 0, "num-partitions": 1}


def test_a_deployed_node_has_limits_and_a_simulated_one_those_that_are_set():
    assert NodeLimits.of(DEPLOYED) == NodeLimits(1_000_000, 86_400, 0)
    assert NodeLimits.of(SIMULATED) == NodeLimits(inf, inf, 0)
    keys = {"max-steps": 5, "max-seconds": 0.5, "max-memory": 2000}
    assert NodeLimits.of(DEPLOYED | keys) == NodeLimits.of(SIMULATED | keys) == NodeLimits(5, 0.5, 2000)


@pytest.mark.parametrize("key", ["max-steps", "max-seconds", "max-memory"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "5", True])
def test_a_limit_that_is_no_number_above_0_is_named(key, value):
    with pytest.raises(ValueError, match=f"node config {key} = {value!r}: must be a number above 0"):
        NodeLimits.of({key: value})


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
