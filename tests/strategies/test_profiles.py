"""Profiles: what is read of what nodes say of themselves, and keys that are claimed twice."""

import time

import pytest
from fedapps.strategies.profiles import Profile, in_key_order, with_distinct_keys
from fedapps.strategies.registry import ProfileQueries
from flwr.app import ConfigRecord, Error, RecordDict
from flwr.common.constant import ErrorCode
from hypothesis import given
from hypothesis import strategies as st
from profile_grid import ProfileGrid


def query(grid, nodes):
    """The profiles that nodes send to one query."""
    queries = ProfileQueries()
    queries.ask(nodes)
    return queries.receive(grid)


def test_profiles_are_read():
    grid = ProfileGrid(
        {
            7: {"key": "car-2", "num-examples": 40, "group.city": "oslo", "group.seen": "no", "colour": "red"},
            9: {"key": "car-1"},
        }
    )
    assert query(grid, [9, 7]) == [Profile(7, "car-2", 40, {"city": "oslo", "seen": "no"}), Profile(9, "car-1")]


@pytest.mark.parametrize(
    "answer",
    [Error(0, "no query"), RecordDict(), RecordDict({"other": ConfigRecord({"key": "a"})}), {"key": ""}, {"key": 3}],
    ids=["error", "nothing", "other record", "empty key", "number"],
)
def test_a_node_without_a_profile_takes_part_under_its_id(answer, warnings):
    assert query(ProfileGrid({12: answer}), [12]) == [Profile(12, "node-12")]
    assert len(warnings) == 1
    assert "node 12" in warnings[0]


def test_who_is_silent_or_gone_tells_nothing(warnings):
    grid = ProfileGrid({2: Error(ErrorCode.NODE_UNAVAILABLE, "gone"), 3: {"key": "a"}})
    assert query(grid, [1, 2, 3]) == [Profile(3, "a")]
    assert warnings == ["node 2 sent no profile and takes no part: gone"]


@pytest.mark.parametrize("examples", [-1, True, 2.5, "9"])
def test_a_number_of_examples_that_is_none_is_unknown(examples):
    (profile,) = query(ProfileGrid({1: {"key": "a", "num-examples": examples}}), [1])
    assert profile == Profile(1, "a", None)


def test_a_node_says_why_it_has_no_data(warnings):
    grid = ProfileGrid({1: {"key": "a", "num-examples": 0, "no-data": "no such folder"}, 2: {"key": "b", "no-data": 3}})
    assert query(grid, [1, 2]) == [Profile(1, "a", 0, {}, "no such folder"), Profile(2, "b")]
    assert warnings == ["node a has no data for this run and is left out: no such folder"]


@pytest.mark.parametrize(("stated", "own"), [(True, True), (False, False), (1, False), ("yes", False)])
def test_a_node_says_that_its_data_are_its_own(stated, own):
    (profile,) = query(ProfileGrid({1: {"key": "car", "own-data": stated}}), [1])
    assert profile.own_data == own


@pytest.mark.parametrize(("stated", "why"), [("it drives", "it drives"), ("", ""), (3, None)])
def test_a_node_says_whether_it_may_work_now(stated, why):
    (profile,) = query(ProfileGrid({1: {"key": "car", "ineligible": stated}}), [1])
    assert profile.ineligible == why


@pytest.mark.parametrize(("stated", "metric"), [("test.loss", "test.loss"), (3, ""), ("two\nlines", "")])
def test_a_node_says_which_tracked_metric_it_cannot_report(stated, metric):
    (profile,) = query(ProfileGrid({1: {"key": "car", "unreported": stated}}), [1])
    assert profile.unreported == metric


def test_groups_are_kept_without_a_key():
    (profile,) = query(ProfileGrid({1: {"group.city": "lima", "group.size": 3}}), [1])
    assert profile == Profile(1, "node-1", None, {"city": "lima"})


def test_a_key_claimed_twice_is_told_apart():
    claims = [Profile(1, "a"), Profile(2, "a#2"), Profile(3, "a"), Profile(4, "b")]
    assert with_distinct_keys(claims) == [Profile(1, "a"), Profile(2, "a#2"), Profile(3, "a#3"), Profile(4, "b")]


@given(st.lists(st.sampled_from(["a", "b", "a#2", "node-1"]), min_size=1, max_size=8))
def test_keys_are_always_distinct(claims):
    profiles = with_distinct_keys([Profile(node, key) for node, key in enumerate(claims, 1)])
    assert len({profile.key for profile in profiles}) == len(profiles) == len(claims)
    assert profiles == in_key_order(profiles[::-1])


def test_nobody_is_asked_where_there_is_nobody():
    assert query(None, []) == []


def test_profiles_can_stand_in_sets():
    assert len({Profile(1, "a", 3, {"x": "y"}), Profile(1, "a", 3, {"x": "y"})}) == 1


@pytest.mark.parametrize(
    "key", ["a" * 201, "a\nb", "a\x1b[2J", "a\u202eb"], ids=["long", "lines", "escape", "backwards"]
)
def test_a_key_that_is_no_name_is_not_used(key, warnings):
    assert query(ProfileGrid({1: {"key": key}}), [1]) == [Profile(1, "node-1")]
    assert warnings == ["node 1 answered without a valid key in the record 'profile'"]


def test_a_key_may_look_like_a_path_and_speak_any_language():
    keys = ["../etc/passwd", "a/b", "żółw", "東京 2", "🚗"]
    grid = ProfileGrid({node: {"key": key} for node, key in enumerate(keys, 1)})
    assert {profile.key for profile in query(grid, range(1, 6))} == set(keys)


def test_groups_are_few_and_short(warnings):
    many = {f"group.{index:04d}": "x" for index in range(1000)}
    odd = {"group.long": "x" * 201, "group." + "x" * 201: "a", "group.lines": "a\nb", "group.empty": ""}
    grid = ProfileGrid({1: {"key": "a", **many}, 2: {"key": "b", **odd}})
    first, second = query(grid, [1, 2])
    assert list(first.groups) == [f"{index:04d}" for index in range(32)]
    assert second.groups == {"empty": ""}
    assert warnings == ["node a reports 1000 groups: all but the first 32 are ignored"]


def test_words_of_a_megabyte_are_cut(warnings):
    grid = ProfileGrid({1: Error(0, "x" * 1_000_000), 2: {"key": "b", "no-data": "x" * 1_000_000}})
    profiles = query(grid, [1, 2])
    assert [len(profile.no_data) < 5000 for profile in profiles] == [True, True]
    assert [len(warning) < 5000 for warning in warnings] == [True, True]


# Profile queries: whom they ask, for how long there is hope, and how many work at a time.


@pytest.fixture
def grid():
    return ProfileGrid()


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def receive(queries, grid):
    return [profile.key for profile in queries.receive(grid)]


def test_each_is_asked_once_and_heard_whenever_it_answers(grid, clock):
    queries = ProfileQueries()
    for _ in range(3):
        queries.ask([3, 1])
        assert receive(queries, grid) == []
        clock[0] += 100
    assert grid.asked == [1, 3]
    grid.nodes |= {3: "c", 1: "a"}
    assert receive(queries, grid) == ["a", "c"]
    assert receive(queries, grid) == [], "and only once"


def test_there_is_hope_until_time_is_over(grid, clock, caplog):
    queries = ProfileQueries()
    queries.timeout = 50.0
    queries.ask([1, 2])
    assert queries.pending([1, 3]) == [1]
    assert queries.seconds_since(1) is None
    receive(queries, grid)
    clock[0] = 49.0
    receive(queries, grid)
    assert queries.pending([1, 2, 3]) == [1, 2]
    assert queries.seconds_since(1) == 49.0
    grid.nodes[2] = "b"
    for _ in range(3):
        clock[0] += 2.0
        receive(queries, grid)
        assert queries.pending([1, 2, 3]) == []
    assert [record.getMessage() for record in caplog.records] == [
        "node 1 sent no profile within 50 s; it takes part after its answer"
    ]
    grid.nodes[1] = "a"
    assert receive(queries, grid) == ["a"], "late, but not lost"
    assert queries.working == 0


def test_who_is_gone_can_be_asked_again(grid):
    queries = ProfileQueries()
    queries.ask([1])
    grid.nodes[1] = Error(ErrorCode.NODE_UNAVAILABLE, "gone")
    assert receive(queries, grid) == []
    assert queries.working == 0
    queries.ask([1])
    grid.nodes[1] = "a"
    assert receive(queries, grid) == ["a"]
    assert grid.asked == [1, 1]


def test_no_more_are_asked_at_a_time_than_may_be(grid, clock):
    queries = ProfileQueries(in_flight=2)
    queries.ask([1, 2, 3, 4])
    receive(queries, grid)
    assert grid.asked == [1, 2]
    grid.nodes[2] = "b"
    assert receive(queries, grid) == ["b"]
    receive(queries, grid)
    assert grid.asked == [1, 2, 3]
    assert queries.working == 2
    clock[0] = 3601.0  # who is late is not in the way of the others
    receive(queries, grid)
    receive(queries, grid)
    assert grid.asked == [1, 2, 3, 4]


def test_those_that_work_on_other_messages_count_too(grid):
    queries = ProfileQueries(in_flight=3)
    queries.ask([1, 2, 3])
    for busy, asked in ((3, []), (4, []), (2, [1]), (2, [1]), (0, [1, 2, 3])):
        queries.receive(grid, busy)
        assert grid.asked == asked


@given(
    in_flight=st.integers(1, 4),
    steps=st.lists(st.tuples(st.sampled_from(["ask", "answer", "gone", "pass"]), st.integers(1, 6), st.integers(0, 4))),
)
def test_there_are_never_more_at_work_than_may_be(in_flight, steps):
    grid, queries, answered = ProfileGrid(), ProfileQueries(in_flight), []
    for what, node, busy in steps:
        if what == "ask":
            queries.ask({*queries.pending(range(1, 7)), node} - set(answered))
        elif what != "pass":
            grid.nodes[node] = f"n{node}" if what == "answer" else Error(ErrorCode.NODE_UNAVAILABLE, "gone")
        before = queries.working
        answered += [profile.node_id for profile in queries.receive(grid, busy)]
        assert queries.working <= max(before, in_flight - busy)
    assert len(set(answered)) == len(answered), "each is heard once"
