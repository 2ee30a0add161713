"""The agent: what may not change its choices, what it learns from, and that it learns."""

import numpy as np
import pytest
import torch
from drawn_houses import NAMES, PATHS, THINGS, house_graph
from fedapps.tasks.base import DataError
from fedapps.tasks.vln.agent import (
    LEARNING,
    Agent,
    actor_critic_loss,
    greedy,
    houses_of,
    roll_out,
    sampled,
    teacher_forced,
)
from fedapps.tasks.vln.connectivity import Graph
from fedapps.tasks.vln.evaluation import walk_all
from fedapps.tasks.vln.houses import assemble
from fedapps.tasks.vln.instructions import InstructedPath, Vocabulary
from fedapps.tasks.vln.layers import BiLSTM, DirectedQuery, ViewAttention, copied
from fedapps.tasks.vln.nodes import encode, joined, random_batches, selected, sorted_batches
from fedapps.tasks.vln.options import Sizes
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import softmax

WIDTH = 6
WORDS = Vocabulary(("go", "to", "the", "from", *THINGS))
SIZES = Sizes(vocabulary=len(WORDS), features=WIDTH, words=16, hidden=32, action=8)


GRAPH = house_graph()
FEATURES = np.random.default_rng(0).standard_normal((len(NAMES), 36, WIDTH)).astype(np.float32)


@pytest.fixture(scope="module")
def houses():
    return assemble([GRAPH], FEATURES)


def ten_instructions(houses):
    ends = [*PATHS, (2, 1, 0, 4), (7, 3, 2, 1), (10, 9, 8, 4), (3, 7, 11, 10)]
    told = [
        InstructedPath(
            "house",
            str(number),
            tuple(NAMES[stop] for stop in stops),
            0.0,
            (f"from the {THINGS[stops[0]]} go to the {THINGS[stops[-1]]}" + " go" * (number % 3),),
        )
        for number, stops in enumerate(ends)
    ]
    return encode(told, houses.rows, WORDS, 80)


def drawn_agent(seed=0, **drops):
    torch.manual_seed(seed)
    return Agent(SIZES, **({"drop": 0.0, "feature_drop": 0.0} | drops))


# -- invariances -----------------------------------------------------------------------------------------------


def test_more_padding_changes_no_logit(houses):
    agent, episodes = drawn_agent().eval(), ten_instructions(houses)
    wider = episodes | {
        "tokens": torch.nn.functional.pad(episodes["tokens"], (0, 9)),
        "path": torch.nn.functional.pad(episodes["path"], (0, 4), value=-1),
    }
    one, other = (roll_out(agent, houses, each, teacher_forced, 10) for each in (episodes, wider))
    for here, there in zip(one.steps, other.steps, strict=True):
        torch.testing.assert_close(here.logits, there.logits)
        assert torch.equal(here.teacher, there.teacher)


def test_an_episode_does_not_depend_on_the_others_in_its_batch(houses):
    agent, episodes = drawn_agent().eval(), ten_instructions(houses)
    together = roll_out(agent, houses, episodes, greedy, 6)
    for row in range(len(episodes["length"])):
        alone = roll_out(agent, houses, selected(episodes, torch.tensor([row])), greedy, 6)
        count = int(alone.trail_length[0])
        assert together.trail_length[row] == count
        assert torch.equal(together.trail[row, :count], alone.trail[0, :count])


@settings(max_examples=10, deadline=None)
@given(st.permutations(range(len(NAMES))))
def test_the_order_of_viewpoints_and_candidates_changes_nothing(houses, order):
    """Viewpoints in another order have their candidates in another order: the agent goes the same ways."""
    rows = np.array(order)
    inside = np.ix_(rows, rows)
    other = Graph(
        "house",
        tuple(GRAPH.viewpoints[row] for row in rows),
        GRAPH.positions[rows],
        GRAPH.navigable[inside],
        GRAPH.visible[inside],
    )
    elsewhere = assemble([other], FEATURES[rows])
    agent = drawn_agent().eval()
    one = roll_out(agent, houses, ten_instructions(houses), teacher_forced, 8)
    two = roll_out(agent, elsewhere, ten_instructions(elsewhere), teacher_forced, 8)
    for here, there in zip(one.steps, two.steps, strict=True):
        torch.testing.assert_close(here.logits.sort(dim=1).values, there.logits.sort(dim=1).values)
        chosen_here, chosen_there = (step.logits.gather(1, step.teacher.unsqueeze(1)) for step in (here, there))
        torch.testing.assert_close(chosen_here, chosen_there)


def test_stop_has_the_logit_zero_and_missing_candidates_none(houses):
    agent = drawn_agent().eval()
    (step, *_) = roll_out(agent, houses, ten_instructions(houses), teacher_forced, 8).steps
    assert step.logits[:, 0].eq(0).all()
    exists = houses.exists[ten_instructions(houses)["path"][:, 0], : step.logits.shape[1]]
    assert torch.isinf(step.logits).equal(~exists)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=4))
def test_a_masked_lstm_is_a_packed_one(lengths):
    torch.manual_seed(0)
    ours = BiLSTM(3, 4)
    theirs = torch.nn.LSTM(3, 4, bidirectional=True, batch_first=True)
    for name, parameter in theirs.named_parameters():
        part = ours.backwards if name.endswith("_reverse") else ours.forwards
        parameter.data.copy_(dict(part.named_parameters())[name.removesuffix("_reverse")])
    sequences = torch.randn(len(lengths), 7, 3)
    packed = torch.nn.utils.rnn.pack_padded_sequence(sequences, torch.tensor(lengths), True, enforce_sorted=False)
    expected, _ = torch.nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True, total_length=7)
    torch.testing.assert_close(ours(sequences, torch.tensor(lengths)), expected)


def test_copies_that_are_never_made_count_as_if_they_were():
    torch.manual_seed(0)
    query, views, angles = torch.randn(2, 8), torch.randn(2, 36, 5), torch.randn(2, 36, 4)
    shown = torch.tensor([[2.0, 0, 2, 0, 2], [0, 2, 0, 2, 0]])
    full = torch.cat([views * shown.unsqueeze(1), copied(angles)], dim=2)
    assert full.shape == (2, 36, 5 + 128)
    scores = DirectedQuery(8, 5)
    expected = torch.einsum("nkd,nd->nk", full, scores.query(query))
    torch.testing.assert_close(scores(query, views, angles, shown), expected)
    attention = ViewAttention(8, 5)
    expected = torch.einsum("nk,nkd->nd", softmax(attention.scores(query, views, angles, shown), dim=1), full)
    torch.testing.assert_close(attention(query, views, angles, shown), expected)


def test_environmental_dropout_drops_a_feature_from_the_whole_episode(houses):
    agent = drawn_agent(feature_drop=0.5).train()
    episodes = ten_instructions(houses)
    shown = agent.begin(episodes["tokens"], episodes["length"]).shown
    assert set(shown.unique().tolist()) == {0.0, 2.0}
    assert agent.eval().begin(episodes["tokens"], episodes["length"]).shown.eq(1).all()


# -- names and sizes -------------------------------------------------------------------------------------------


def test_parts_can_be_chosen_by_name_and_have_the_papers_sizes():
    """With CLIP features 6.3 MB of encoder; the agent of 27.8 MB less two output matrices that are never trained."""
    agent = Agent(Sizes(features=512))
    size = {part: sum(p.numel() for n, p in agent.named_parameters() if n.startswith(f"{part}.")) * 4 for part in
            ("encoder", "decoder", "critic")}  # fmt: skip
    assert sum(size.values()) == sum(p.numel() for p in agent.parameters()) * 4
    assert round(size["encoder"] / 1e6, 1) == 6.3
    never_trained = 2 * (512 + 512 + 128) * 512 * 4
    assert round((sum(size.values()) + never_trained) / 1e6, 1) == 27.8
    assert "houses" not in agent.state_dict()


def test_a_model_without_a_house_says_so():
    with pytest.raises(DataError, match="build_model_for"):
        houses_of(drawn_agent(), torch.device("cpu"))


# -- losses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("learning", LEARNING)
def test_every_loss_reaches_every_part_that_it_trains(houses, learning):
    agent = drawn_agent().train()
    torch.manual_seed(1)
    loss = LEARNING[learning](agent, houses, ten_instructions(houses), 4)
    loss.backward()
    untouched = {name for name, parameter in agent.named_parameters() if parameter.grad is None}
    assert all(name.startswith("critic.") for name in untouched)
    assert bool(untouched) == (learning != "actor-critic")


def test_walks_that_are_cut_off_count_what_the_critic_expects(houses):
    agent, episodes = drawn_agent().eval(), ten_instructions(houses)
    torch.manual_seed(0)
    rollout = roll_out(agent, houses, episodes, sampled, 2)
    assert len(rollout.walking) == len(rollout.next_hidden) > 0
    torch.nn.init.constant_(agent.critic[-1].bias, 100.0)
    assert actor_critic_loss(agent, rollout) > 1000


# -- learning --------------------------------------------------------------------------------------------------


def train(agent, houses, episodes, steps, rate=1e-2):
    optimizer = torch.optim.Adam(agent.parameters(), rate)
    for _ in range(steps):
        optimizer.zero_grad()
        LEARNING["mixed"](agent, houses, episodes, 8).backward()
        optimizer.step()
    return agent


@pytest.mark.slow
def test_an_agent_overfits_ten_instructions(houses):
    episodes = ten_instructions(houses)
    agent = train(drawn_agent().train(), houses, episodes, 60)
    scores, trails = walk_all(agent.eval(), houses, episodes, 8)
    assert scores["sr"].tolist() == [1.0] * 10
    assert scores["ndtw"].mean() > 0.95
    assert torch.equal(trails[:, : episodes["path"].shape[1]][0, :5], episodes["path"][0, :5])


def test_the_same_seed_gives_the_same_bits(houses):
    episodes = ten_instructions(houses)
    states = [
        train(drawn_agent(3, drop=0.5, feature_drop=0.3).train(), houses, episodes, 2).state_dict() for _ in range(2)
    ]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


# -- batches ---------------------------------------------------------------------------------------------------


def test_batches_have_every_example_once(houses):
    episodes = ten_instructions(houses)
    torch.manual_seed(0)
    records = torch.cat([batch["record"] for batch in random_batches(episodes, 3)])
    assert sorted(records.tolist()) == list(range(10))
    for rows, batch in sorted_batches(episodes, 4):
        assert batch["tokens"].shape[1] == batch["length"].max()
        assert batch["path"].shape[1] == batch["path_length"].max()
        assert torch.equal(batch["record"], rows)


def test_joined_examples_keep_their_padding_and_number_their_paths(houses):
    episodes = ten_instructions(houses)
    short = selected(episodes, torch.tensor([0]))
    both = joined(short, episodes)
    assert both["record"].tolist() == [0, *range(1, 11)]
    assert torch.equal(both["path"][1:], episodes["path"])
    assert torch.equal(both["tokens"][1:], episodes["tokens"])
    assert both["tokens"][0, int(short["length"][0]) :].eq(0).all()
