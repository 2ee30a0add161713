"""The losses of the agent, by hand."""

import numpy as np
import pytest
import torch
from fedapps.tasks.vln.agent import Agent, Rollout, Step, actor_critic_loss, discounted_returns, imitation_loss, sampled
from fedapps.tasks.vln.options import Sizes
from hypothesis import given
from hypothesis import strategies as st

from fedapps.base.errors import DivergedError

SIZES = Sizes(vocabulary=20, features=6, words=16, hidden=32, action=8)


def test_returns_by_hand():
    """Two episodes: 1, -1, then STOP with 2; and 1, 1, 1 cut off where the critic says 5."""
    rewards = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [2.0, 1.0], [0.0, 0.0]])
    walked = torch.tensor([[True, True], [True, True], [True, True], [False, False]])
    found = discounted_returns(rewards, walked, torch.tensor([0.0, 5.0]))
    expected = [
        [1 + 0.9 * (-1 + 0.9 * 2), 1 + 0.9 * (1 + 0.9 * (1 + 0.9 * 5))],
        [-1 + 0.9 * 2, 1 + 0.9 * (1 + 0.9 * 5)],
        [2, 1 + 0.9 * 5],
        [0, 0],
    ]
    torch.testing.assert_close(found, torch.tensor(expected))


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=8), st.floats(0, 1), st.floats(-5, 5))
def test_a_return_is_the_discounted_sum(rewards, discount, last):
    steps = len(rewards)
    table = torch.tensor(rewards, dtype=torch.float64).unsqueeze(1)
    found = discounted_returns(table, torch.ones(steps, 1, dtype=torch.bool), torch.tensor([last]).double(), discount)
    for step in range(steps):
        expected = sum(discount**n * reward for n, reward in enumerate(rewards[step:]))
        assert found[step].item() == pytest.approx(expected + discount ** (steps - step) * last, abs=1e-6)


class FixedCritic(Agent):
    """Values that are the first number of the hidden state."""

    def value(self, hidden):
        return hidden[:, 0]


def test_actor_critic_by_hand():
    """One episode of a move and STOP; probabilities 3/4, 1/4, then 1/2, 1/2; values 0.5 and 1; rewards 1 and 2."""
    logits = torch.tensor([[0.0, np.log(3.0)]]), torch.zeros(1, 2)
    hidden = torch.tensor([[0.5]]), torch.tensor([[1.0]])
    steps = [
        Step(torch.tensor([0]), logits[n], torch.tensor([0]), torch.tensor([1 - n]), hidden[n], torch.tensor([n + 1.0]))
        for n in range(2)
    ]
    rollout = Rollout(steps, torch.zeros(1, 3), torch.tensor([2]), torch.zeros(0, dtype=torch.int64), torch.zeros(0, 1))
    errors = 1 + 0.9 * 2 - 0.5, 2 - 1
    policy = -np.log(3 / 4) * errors[0] - np.log(1 / 2) * errors[1]
    entropy = -(3 / 4 * np.log(3 / 4) + 1 / 4 * np.log(1 / 4)) + np.log(2)
    expected = (policy + 0.5 * (errors[0] ** 2 + errors[1] ** 2) - 0.01 * entropy) / 2
    assert actor_critic_loss(FixedCritic(SIZES), rollout).item() == pytest.approx(expected, rel=1e-5)


def test_imitation_by_hand():
    """Two episodes, the second of weight 0.5; the first goes on for a second step."""
    both = Step(
        torch.tensor([0, 1]), torch.tensor([[0, np.log(3)], [0, 0]]), torch.tensor([1, 0]), *[torch.zeros(2)] * 3
    )
    one = Step(torch.tensor([0]), torch.tensor([[0, np.log(4)]]), torch.tensor([0]), *[torch.zeros(1)] * 3)
    rollout = Rollout([both, one], torch.zeros(2, 3), torch.zeros(2), torch.zeros(0), torch.zeros(0, 1))
    expected = (-np.log(3 / 4) - np.log(1 / 5) - 0.5 * np.log(1 / 2)) / 2
    assert imitation_loss(rollout, torch.tensor([1.0, 0.5])).item() == pytest.approx(expected)


def test_an_agent_whose_probabilities_are_not_finite_has_diverged():
    with pytest.raises(DivergedError, match="probabilities are not finite"):
        sampled(torch.arange(2), torch.tensor([[0.0, -torch.inf], [0.0, torch.nan]]), torch.zeros(2))
