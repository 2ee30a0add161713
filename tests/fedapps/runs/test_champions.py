"""The rule of the gate on numbers, and the registry."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapps.runs.champions import Registry, decide, decision_text


def rule(champion, challenger, groups=None, *, mode="min", margin=0.0, group_margin=0.0):
    named = [{f"n{index}": value for index, value in enumerate(of)} for of in (champion, challenger)]
    return decide(*named, groups or {}, mode=mode, margin=margin, group_margin=group_margin)


def test_the_interval_of_the_paired_gain_decides():
    # gains 1, 2, 3: mean 2, standard error 1/sqrt(3), t(2, 97.5 %) = 4.303, so from -0.484 to 4.484
    decision = rule([5.0, 5.0, 5.0], [4.0, 3.0, 2.0])
    assert not decision["promote"]
    assert decision["gain"] == {
        "mean": 2.0,
        "nodes": 3,
        "low": pytest.approx(-0.4841, abs=1e-4),
        "high": pytest.approx(4.4841, abs=1e-4),
    }
    assert decision["reason"] == "the interval of the gain begins at -0.4841, not above 0"
    assert rule([5.0, 5.0, 5.0], [4.0, 3.0, 2.0], margin=0.49)["promote"]
    assert rule([4.0, 3.0, 2.0], [5.0, 5.0, 5.0], margin=0.49, mode="max")["promote"]


def test_one_very_high_gain_keeps_out_no_model_from_which_all_nodes_gain():
    # gains 0.1, 0.2, 0.3, 9: Student's interval begins at -4.60. Without the 9, h = 3 of n = 4: mean 0.2, Winsorized
    # 0.1, 0.2, 0.3, 0.3 with s_w = 0.0957, t(2, 97.5 %) = 4.303: 0.2 - 4.303 * sqrt(4) * 0.0957 / 3 = -0.0746
    decision = rule([9.0] * 4, [8.9, 8.8, 8.7, 0.0])
    assert decision["gain"]["low"] == pytest.approx(-4.6026, abs=1e-4)
    assert decision["without-best"] == pytest.approx(-0.0746, abs=1e-4)
    assert decision["reason"] == "the interval of the gain begins at -0.07463, not above 0"
    assert "without the tenth that gains most, from -0.07463" in decision_text(decision)
    assert rule([9.0] * 4, [8.9, 8.8, 8.7, 0.0], margin=0.08)["promote"]
    assert rule([9.0] * 20, [8.9] * 9 + [8.8] * 9 + [0.0] * 2)["promote"]  # two are a tenth of them
    assert not rule([9.0] * 20, [8.9] * 8 + [8.8] * 9 + [0.0] * 3)["promote"]
    of_two = rule([9.0] * 2, [8.9, 0.0])
    assert of_two["without-best"] is None
    assert "without the tenth" not in decision_text(of_two)


@given(st.lists(st.floats(-1, 1), min_size=3, max_size=12), st.floats(0, 1e6))
def test_a_higher_highest_gain_never_refuses(gains, more):
    losses, highest = [-gain for gain in gains], max(range(len(gains)), key=gains.__getitem__)
    higher = [loss - more * (node == highest) for node, loss in enumerate(losses)]
    first, second = (rule([0.0] * len(gains), of)["without-best"] for of in (losses, higher))
    assert second == pytest.approx(first)


def test_no_group_may_lose_more_than_its_own_margin():
    champion, challenger = [1.0] * 20, [0.5] * 18 + [1.1, 1.2]
    groups = {"city berlin": ["n18", "n0"], "city tokyo": ["n17"]}
    decision = rule(champion, challenger, groups)
    assert decision["gain"]["low"] > 0
    assert decision["groups"] == {
        "city berlin": pytest.approx(0.2), "city tokyo": 0.5, "worst tenth": pytest.approx(-0.15),
    }  # fmt: skip
    assert not decision["promote"]
    assert decision["reason"] == "worst tenth: the mean gain is below 0"
    assert rule(champion, challenger, groups, group_margin=0.16)["promote"]


def test_nodes_that_evaluated_one_model_alone_do_not_count_and_one_node_decides_nothing():
    decision = decide({"a": 1.0, "b": 1.0}, {"a": 0.0, "c": 0.0}, {}, mode="min", margin=9.0, group_margin=9.0)
    assert (decision["promote"], decision["reason"]) == (False, "1 nodes evaluated both models; an interval needs 2")
    assert decision_text(decision).endswith("kept the champion: 1 nodes evaluated both models; an interval needs 2")


def test_a_gain_that_is_no_number_promotes_nothing():
    assert not rule([1.0, 1.0], [float("nan"), 0.5], margin=9.0, group_margin=9.0)["promote"]
    infinite = float("inf")
    assert not rule([infinite, 1.0], [1.0, infinite], margin=9.0, group_margin=9.0)["promote"]


def test_the_registry_keeps_the_last_two_champions(tmp_path):
    registry = Registry.read(tmp_path)
    assert (registry.champion, registry.target("a")) == (0, 0)
    for week in (1, 2, 3):
        registry = registry.promoted(registry.challenger(tmp_path / f"week-{week}", "fedavg", week))
        registry.write()
    registry = Registry.read(tmp_path)
    assert [one.generation for one in registry.generations] == [2, 3]
    back = registry.rolled_back(["a"])
    assert (back.target("a"), back.target("b")) == (2, 3)
    back = registry.rolled_back()
    assert (back.champion, back.target("a")) == (2, 2)
    # the challenger after a rollback is a new generation, and the one that was taken back is forgotten
    again = back.promoted(back.challenger(tmp_path / "week-4", "fedavg", 4))
    assert [one.generation for one in again.generations] == [2, 4]


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("registry.json", "[1]", "is damaged"),
        ("registry.json", '{"champion": "2"}', "'champion' is '2'; it must be a valid integer"),
        ("registry.json", '{"champion": 2}', "generation 2 is in use, and is not among the generations"),
        ("registry.json", '{"generations": [{"generation": 1, "run": "w"}]}', "'generations.0.method' is missing"),
        ("decisions/000001.json", "{}", "'promote' is missing"),
        ("decisions/000001.json", '{"promote": true, "challenger": {}}', "'challenger.generation' is missing"),
    ],
)
def test_a_damaged_registry_is_named(tmp_path, file, text, problem):
    (tmp_path / "decisions").mkdir()
    (tmp_path / file).write_text(text)
    with pytest.raises(ValueError, match=rf"{tmp_path / file}.* {problem}"):
        Registry.read(tmp_path)
