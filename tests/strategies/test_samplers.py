"""Samplers: cohorts that depend on keys, seed and round alone, their sizes and probabilities, and Poisson rounds."""

import re
from collections import Counter
from math import sqrt

import numpy as np
import pytest
from fedapps.strategies.algorithms.apfl import AdaptiveRates
from fedapps.strategies.algorithms.fedvc import IndependentDraws
from fedapps.strategies.algorithms.fedweit import FedWeIT
from fedapps.strategies.algorithms.fisher_exchange import FisherExchange
from fedapps.strategies.algorithms.h_fl import HierarchicalFedAvg
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.optimizers import Adam
from fedapps.strategies.profiles import Profile
from fedapps.strategies.records import TooFewRepliesError
from fedapps.strategies.samplers import (
    DropSchedule,
    FixedNodes,
    FixedPerCluster,
    InTurn,
    PoissonSampling,
    ProportionalToSize,
    StratifiedFraction,
    UniformFraction,
)
from grouped import grouped_app
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import arithmetic_app, arrays_of, federate, same_bits

ALL = [
    UniformFraction(0.4, seed=3),
    StratifiedFraction("city", {"lagos": 0.5}, default=0.3, seed=3),
    ProportionalToSize(3, seed=3),
    FixedPerCluster("city", 1, seed=3),
    DropSchedule(seed=3),
    FixedNodes(["car-1", "car-4"]),
    PoissonSampling(0.4, seed=3),
    InTurn(0.4, seed=3),
]
CITIES = ("lagos", "oslo", "lima")


def fleet(count, first_id=100):
    return [
        Profile(first_id + index, f"car-{index}", 10 * (index + 1), {"city": CITIES[index % 3]})
        for index in range(count)
    ]


def keys(profiles):
    return [profile.key for profile in profiles]


@pytest.mark.parametrize("sampler", ALL, ids=repr)
@settings(max_examples=25, deadline=None)
@given(order=st.permutations(range(9)), server_round=st.integers(0, 50), first_id=st.integers(0, 2**60))
def test_cohorts_depend_on_keys_seed_and_round_alone(sampler, order, server_round, first_id):
    reference = sampler.sample(fleet(9), server_round, "train")
    sampler.sample(fleet(9), server_round + 1, "train")
    renumbered = fleet(9, first_id)
    shuffled = sampler.sample([renumbered[index] for index in order], server_round, "train")
    assert keys(shuffled) == keys(reference) == sorted(set(keys(reference)))
    assert set(keys(reference)) <= set(keys(fleet(9)))


# The cohorts of four rounds of ``fleet(9)`` with seed 3: published results depend on them.
COHORTS = {
    UniformFraction: ["1345", "0456", "0128", "0468"],
    StratifiedFraction: ["0267", "3678", "0123", "1356"],
    ProportionalToSize: ["347", "458", "567", "368"],
    FixedPerCluster: ["027", "678", "123", "135"],
    DropSchedule: ["01234567", "01234568", "01345678", "12345678"],
}


@pytest.mark.parametrize("sampler", [sampler for sampler in ALL if type(sampler) in COHORTS], ids=repr)
def test_training_cohorts_are_those_of_published_results(sampler):
    cohorts = [keys(sampler.sample(fleet(9), r, "train")) for r in (1, 2, 3, 4)]
    assert cohorts == [[f"car-{number}" for number in cohort] for cohort in COHORTS[type(sampler)]]


@pytest.mark.parametrize("sampler", [sampler for sampler in ALL if type(sampler) in COHORTS], ids=repr)
def test_nodes_that_evaluate_are_drawn_independently_of_those_that_train(sampler):
    train, evaluate = (
        [keys(sampler.sample(fleet(9), server_round, purpose)) for server_round in range(1, 21)]
        for purpose in ("train", "evaluate")
    )
    different = [one != other for one, other in zip(train, evaluate, strict=True)]
    assert sum(different) >= 15  # equal cohorts can still occur by chance
    again = [keys(sampler.sample(fleet(9), server_round, "evaluate")) for server_round in range(1, 21)]
    assert again == evaluate


def test_the_overlap_of_both_cohorts_is_that_of_independent_draws():
    sampler, nodes, rounds = UniformFraction(0.5), fleet(10), 2000
    both = [
        len(set(keys(sampler.sample(nodes, r, "train"))) & set(keys(sampler.sample(nodes, r, "evaluate"))))
        for r in range(rounds)
    ]
    # Hypergeometric: 5 of 10 nodes, 5 of them marked, so 2.5 on average with variance 25/36.
    assert np.mean(both) == pytest.approx(2.5, abs=4 * (25 / 36 / rounds) ** 0.5)


@pytest.mark.parametrize("sampler", ALL, ids=repr)
def test_nobody_is_drawn_from_nobody(sampler):
    assert sampler.sample([], 1, "train") == []


@pytest.mark.parametrize("sampler", [sampler for sampler in ALL if hasattr(sampler, "seed")], ids=repr)
def test_rounds_and_seeds_differ(sampler):
    nodes = fleet(9)
    assert len({tuple(keys(sampler.sample(nodes, server_round, "train"))) for server_round in range(1, 21)}) > 1
    parameters = {**vars(sampler), "seed": 4}
    other = type(sampler)(**parameters)
    assert [keys(sampler.sample(nodes, r, "train")) for r in range(20)] != [
        keys(other.sample(nodes, r, "train")) for r in range(20)
    ]


@pytest.mark.parametrize(
    ("fraction", "minimum", "total", "expected"),
    [
        (1.0, 0, 7, 7),
        (0.2, 0, 61, 12),  # 12.2
        (0.5, 0, 5, 3),  # 2.5
        (0.29, 0, 100, 29),  # 28.999...6 in floating point
        (0.01, 0, 10, 1),
        (0.0, 0, 10, 0),
        (0.0, 2, 10, 2),
        (0.5, 4, 6, 4),
        (0.5, 9, 6, 6),
    ],
)
def test_the_size_of_a_uniform_cohort(fraction, minimum, total, expected):
    assert len(UniformFraction(fraction, minimum).sample(fleet(total), 1, "train")) == expected


def test_turns_by_hand():
    """Two of five nodes per round: places 0 and 1 of the order, then 2 and 3, then 4 and 0."""
    order = [key for r in range(1, 6) for key in keys(InTurn(0.2, seed=7).sample(fleet(5), r, "train"))]
    assert sorted(order) == keys(fleet(5))
    found = [keys(InTurn(0.4, seed=7).sample(fleet(5), r, "train")) for r in (1, 2, 3)]
    assert found == [sorted(order[:2]), sorted(order[2:4]), sorted([order[4], order[0]])]


@settings(max_examples=50, deadline=None)
@given(count=st.integers(1, 12), fraction=st.floats(0, 1), first=st.integers(1, 40), rounds=st.integers(1, 40))
def test_in_any_span_of_rounds_the_turns_of_two_nodes_differ_by_one_at_most(count, fraction, first, rounds):
    sampler, cohort = InTurn(fraction), len(UniformFraction(fraction).sample(fleet(count), 1, "train"))
    turns = Counter(keys(fleet(count)))  # each once, so that nodes without a turn count, too
    for r in range(first, first + rounds):
        chosen = keys(sampler.sample(fleet(count), r, "train"))
        assert len(set(chosen)) == cohort
        turns.update(chosen)
    assert max(turns.values()) - min(turns.values()) <= 1


@pytest.mark.parametrize("sampler", ALL, ids=repr)
def test_nobody_stands_in_for_a_node_of_a_whole_round(sampler):
    chosen = sampler.further(fleet(9), 9, 1, "train")
    assert (not chosen) == isinstance(sampler, DropSchedule | InTurn | PoissonSampling)


def test_all_nodes_in_turn_are_all_nodes():
    for server_round in range(4):
        assert InTurn().sample(fleet(5), server_round, "train") == UniformFraction().sample(fleet(5), 1, "train")


def test_each_stratum_has_its_fraction():
    nodes = [Profile(i, f"h{i:02}", None, {"seen": "yes" if i < 61 else "no"}) for i in range(72)]
    nodes.append(Profile(99, "h99"))
    chosen = keys(StratifiedFraction("seen", {"yes": 0.18, "no": 0.6}, default=0.0).sample(nodes, 1, "train"))
    assert sum(key < "h61" for key in chosen) == 11  # .18 · 61 = 10.98
    assert sum("h61" <= key < "h99" for key in chosen) == 7  # .6 · 11 = 6.6
    assert "h99" not in chosen
    assert "h99" in keys(StratifiedFraction("seen", {"yes": 0.18, "no": 0.6}).sample(nodes, 1, "train"))


def test_strata_that_no_node_names_are_an_error_before_the_first_round():
    sampler = StratifiedFraction("seen", {"yes": 0.5})
    nodes = [Profile(index, f"h{index}") for index in range(4)]
    with pytest.raises(ValueError, match=r"group 'seen': none of 4 nodes .*in its profile.*may-leave = \"groups\""):
        sampler.sample(nodes, 1, "train")
    assert len(sampler.sample(nodes, 2, "train")) == 4  # those that name it may be away


def test_the_first_round_warns_of_a_misspelt_label(caplog):
    for fractions in ({"lagoss": 0.5, "oslo": 1.0}, {"lagos": 0.5}, {"lagos": 0.5, "oslo": 1, "lima": 1, "rome": 0}):
        sampler = StratifiedFraction("city", fractions, default=0.25)
        for server_round in (1, 2):
            sampler.sample(fleet(9), server_round, "train")
    (warning,) = caplog.messages
    assert (
        warning
        == "fractions: no node has a city of 'lagoss'; nodes have 'lagos', 'lima', whose fraction is default = 0.25"
    )


def test_one_stratum_does_not_disturb_another():
    sampler = StratifiedFraction("city", {}, default=0.5)
    lagos = [node for node in fleet(12) if node.groups["city"] == "lagos"]
    for server_round in range(10):
        together = sampler.sample(fleet(12), server_round, "train")
        alone = sampler.sample(lagos, server_round, "train")
        assert [node for node in together if node in lagos] == alone


def test_large_nodes_are_drawn_in_proportion():
    nodes = [Profile(0, "a", 10), Profile(1, "b", 30), Profile(2, "c", 60), Profile(3, "d", 0)]
    counts = Counter(keys(ProportionalToSize(1).sample(nodes, r, "train"))[0] for r in range(4000))
    np.testing.assert_allclose([counts[key] / 4000 for key in "abc"], [0.1, 0.3, 0.6], atol=0.03)
    assert counts["d"] == 0
    assert keys(ProportionalToSize(9).sample(nodes, 1, "train")) == ["a", "b", "c"]


@pytest.mark.parametrize("sampler", [ProportionalToSize(1), IndependentDraws(1)], ids=repr)
def test_further_nodes_are_drawn_in_proportion_and_independently_of_those_of_the_round(sampler):
    nodes = [Profile(0, "a", 10), Profile(1, "b", 30), Profile(2, "c", 60), Profile(3, "d", 0)]
    counts = Counter(keys(sampler.further(nodes, 1, r, "train"))[0] for r in range(4000))
    np.testing.assert_allclose([counts[key] / 4000 for key in "abcd"], [0.1, 0.3, 0.6, 0.0], atol=0.03)
    assert sampler.further(nodes, 0, 1, "train") == []
    pairs = Counter()
    for r in range(4000):
        (first,) = sampler.sample(equal_fleet(3), r, "train")
        (other,) = sampler.further([node for node in equal_fleet(3) if node != first], 1, r, "train")
        pairs[first.key, other.key] += 1
    np.testing.assert_allclose(np.array(list(pairs.values())) / 4000, [1 / 6] * 6, atol=0.03)


def test_nodes_of_unknown_size_count_as_the_mean():
    nodes = [Profile(0, "a", 30), Profile(1, "b", 10), Profile(2, "c")]
    counts = Counter(keys(ProportionalToSize(1).sample(nodes, r, "train"))[0] for r in range(4000))
    np.testing.assert_allclose([counts[key] / 4000 for key in "abc"], [1 / 2, 1 / 6, 1 / 3], atol=0.03)
    nobody_told = [Profile(0, "a"), Profile(1, "b")]
    assert len(ProportionalToSize(2).sample(nobody_told, 1, "train")) == 2


def test_every_cluster_sends_the_same_number():
    nodes = [*fleet(8), Profile(7, "lost")]  # lagos 3, oslo 3, lima 2, none 1
    for server_round in range(5):
        chosen = FixedPerCluster("city", 2).sample(nodes, server_round, "train")
        assert Counter(node.groups.get("city", "") for node in chosen) == {"lagos": 2, "oslo": 2, "lima": 2, "": 1}


def test_one_node_sits_out_after_the_other():
    nodes, schedule = fleet(3), DropSchedule(["car-2", "car-0"])
    present = [keys(schedule.sample(nodes, r, "train")) for r in range(4)]
    assert present == [["car-0", "car-1", "car-2"], ["car-0", "car-1"], ["car-1", "car-2"], ["car-0", "car-1"]]
    assert keys(schedule.sample(nodes[2:], 1, "train")) == ["car-2"]


def test_a_drawn_node_sits_out():
    dropped = Counter()
    for server_round in range(1, 1201):
        present = keys(DropSchedule(seed=1).sample(fleet(3), server_round, "train"))
        assert len(present) == 2
        dropped.update(set(keys(fleet(3))) - set(present))
    np.testing.assert_allclose([dropped[key] / 1200 for key in keys(fleet(3))], 1 / 3, atol=0.05)


def test_fixed_nodes_that_are_away_are_left_out():
    assert keys(FixedNodes(["car-9", "car-1"]).sample(fleet(3), 1, "train")) == ["car-1"]


@pytest.mark.parametrize("sampler", [FixedNodes(["cra-1"]), DropSchedule(["cra-1"])], ids=repr)
def test_keys_of_nobody_are_answered_with_those_there_are(sampler, caplog):
    reason = r"\['cra-1'\]: none of them is a node; the nodes are: car-0, car-1"
    with pytest.raises(ValueError, match=reason):
        sampler.sample(fleet(2), 1, "train")
    later = sampler.sample(fleet(2), 2, "evaluate")  # a run goes on without nodes that are away
    assert keys(later) == ([] if isinstance(sampler, FixedNodes) else ["car-0", "car-1"])
    assert re.search(reason, *caplog.messages)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: UniformFraction(1.5), r"fraction = 1\.5: must be between 0 and 1"),
        (lambda: UniformFraction(float("nan")), "fraction = nan"),
        (lambda: UniformFraction(0.5, -1), "minimum = -1: must be an integer of at least 0"),
        (lambda: UniformFraction(0.5, seed=-1), "seed = -1"),
        (lambda: StratifiedFraction("a", {"x": 2.0}), r"fractions\['x'\] = 2\.0"),
        (lambda: StratifiedFraction("a", {}, default=-1), "default = -1"),
        (lambda: InTurn(0.5, -1), "seed = -1: must be an integer of at least 0"),
        (lambda: ProportionalToSize(0), "count = 0: must be an integer of at least 1"),
        (lambda: FixedPerCluster("a", True), "count = True"),
        (lambda: PoissonSampling(1.5), r"probability = 1\.5: must be between 0 and 1"),
        (lambda: PoissonSampling(0.5, seed=-1), "seed = -1"),
        (lambda: FixedNodes([]), "at least one node"),
        (lambda: FixedNodes("car-1"), r"must be a list of keys, such as \['car-1'\]"),
        (lambda: DropSchedule("car-1"), "must be a list of keys"),
    ],
)
def test_ranges(make, match):
    with pytest.raises(ValueError, match=match):
        make()


START = {"w": np.array([1.0, 2.0], np.float32)}
ROUNDS = 4000


def equal_fleet(count):
    return [Profile(index, f"car-{index}", 10) for index in range(count)]


def drawn(sampler, nodes, server_round):
    return {node.key for node in sampler.sample(nodes, server_round, "train")}


def moves(partition, received, config):
    return {name: (a + (partition + 1)).astype(a.dtype) for name, a in received.items()}, {"num-examples": 4}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [5, None])
@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_each_node_takes_part_with_the_probability_and_independently_of_the_others(probability, seed):
    sampler, nodes = PoissonSampling(probability, seed), equal_fleet(4)
    taken = np.array([[n.key in drawn(sampler, nodes, r) for n in nodes] for r in range(ROUNDS)], float)
    error = 5 * sqrt(probability * (1 - probability) / ROUNDS)
    np.testing.assert_allclose(taken.mean(0), probability, atol=error)
    np.testing.assert_allclose(np.cov(taken.T), probability * (1 - probability) * np.eye(4), atol=error)
    # the size of the cohort is binomial: its variance is that of independent draws
    assert taken.sum(1).var() == pytest.approx(4 * probability * (1 - probability), rel=0.15)


@given(seed=st.integers(0, 2**40), server_round=st.integers(0, 100), count=st.integers(1, 12), left=st.integers(0, 11))
def test_a_node_that_is_added_or_removed_changes_no_other_draw(seed, server_round, count, left):
    sampler, nodes = PoissonSampling(0.5, seed), equal_fleet(count)
    others = [node for index, node in enumerate(nodes) if index != left % count]
    left_key = nodes[left % count].key
    assert drawn(sampler, others, server_round) == drawn(sampler, nodes, server_round) - {left_key}


def test_draws_without_a_seed_do_not_repeat():
    sampler = PoissonSampling(0.5, seed=None)
    assert drawn(sampler, equal_fleet(64), 1) != drawn(sampler, equal_fleet(64), 1)


@pytest.mark.parametrize(("probability", "count"), [(0.0, 0), (1.0, 9)])
def test_nobody_and_everybody(probability, count):
    for seed in (3, None):
        assert len(drawn(PoissonSampling(probability, seed), equal_fleet(9), 1)) == count


def test_with_a_probability_of_1_it_is_fedavg_bit_for_bit():
    results = [
        federate(BaseStrategy(sampler=sampler), arithmetic_app(moves), START, num_nodes=3, num_rounds=2).arrays
        for sampler in (UniformFraction(1.0), PoissonSampling(1.0))
    ]
    assert same_bits(*map(arrays_of, results))


@pytest.mark.parametrize(
    "make",
    [
        lambda **parts: BaseStrategy(server_optimizer=Adam(0.1), **parts),
        AdaptiveRates,
        FisherExchange,
        FedWeIT,
        lambda **parts: HierarchicalFedAvg(groups=("city",), intervals=(1,), **parts),
    ],
    ids=["base", "adaptive", "fisher", "fedweit", "hierarchical"],
)
def test_a_round_that_draws_no_node_leaves_the_parameters_as_they_are(make):
    strategy = make(sampler=PoissonSampling(0.0), min_replies=2)
    app = grouped_app(lambda k: {"group.city": "oslo"}, moves)
    result = federate(strategy, app, START, num_nodes=3, num_rounds=2)
    assert same_bits(arrays_of(result.arrays), START)


def test_a_round_needs_no_more_replies_than_nodes_were_drawn():
    sampler = PoissonSampling(0.5, seed=0)
    sizes = [len(sampler.sample([Profile(k, f"part-{k}") for k in range(3)], r, "train")) for r in range(1, 9)]
    assert min(sizes) < 3
    reports = []
    strategy = BaseStrategy(profiles=True, sampler=sampler, min_replies=3)
    federate(strategy, arithmetic_app(moves), START, num_nodes=3, num_rounds=8, on_round=reports.append)
    assert [report.replies for report in reports] == sizes


def fails(partition, received, config):
    raise RuntimeError("no update")


def test_a_drawn_node_that_does_not_reply_is_still_missed():
    with pytest.raises(TooFewRepliesError, match="round 1: 0 usable replies, but min_replies is 3"):
        federate(
            BaseStrategy(sampler=PoissonSampling(1.0), min_replies=3), arithmetic_app(fails), START,
            num_nodes=3, num_rounds=1,
        )  # fmt: skip


def test_no_round_fails_without_replies_if_none_is_needed():
    result = federate(BaseStrategy(min_replies=0), arithmetic_app(fails), START, num_nodes=3, num_rounds=2)
    assert same_bits(arrays_of(result.arrays), START)
