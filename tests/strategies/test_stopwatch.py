"""The stopwatch: exclusive times of nested phases, and nothing at all where none is running."""

import pytest
from fedapps.strategies import stopwatch
from fedapps.strategies.replies import read_timings
from fedapps.strategies.stopwatch import Stopwatch, measured, timed
from flwr.app import ConfigRecord, RecordDict


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: now[0])
    return now


def test_the_time_of_an_inner_phase_counts_for_it_alone(clock):
    watch = Stopwatch()
    with watch.phase("outer"):
        clock[0] = 1.0
        with watch.phase("inner"):
            clock[0] = 3.0
        clock[0] = 7.0
    clock[0] = 100.0
    with watch.phase("inner"):
        clock[0] = 101.0
    assert watch.seconds == {"outer": 5.0, "inner": 3.0}


def test_a_phase_that_fails_has_taken_its_time_too(clock):
    watch = Stopwatch()

    def fail():
        with watch.phase("failing"):
            clock[0] = 2.0
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert watch.seconds == {"failing": 2.0}


def test_a_stopwatch_rests_while_another_one_runs_as_a_node_in_the_process_of_the_server(clock):
    with measured() as server, timed("wait"):
        clock[0] = 1.0
        with measured() as node, timed("train"):
            clock[0] = 5.0
        with timed("decode"):
            clock[0] = 6.0
    assert (server.seconds, node.seconds) == ({"wait": 5.0, "decode": 1.0}, {"train": 4.0})
    with timed("afterwards"):
        clock[0] = 9.0
    assert server.seconds.keys() == {"wait", "decode"}


@pytest.mark.parametrize(
    "value", [-1.0, float("nan"), float("inf"), 3, "1.0", [1.0], True, b"1"], ids=lambda value: repr(value)
)
def test_of_what_a_node_sends_only_seconds_of_known_phases_count(value):
    record = ConfigRecord({"train": 1.5, "model": value, "<script>": 1.0})
    assert read_timings(RecordDict({"timings": record})) == {"train": 1.5}
    assert read_timings(RecordDict({})) == {}
