"""What an agent learns from its walks: the teacher's choices, and rewards (advantage actor-critic)."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from .agent import Agent
from .rollout import Rollout

DISCOUNT = 0.9
ENTROPY_WEIGHT = 0.01
VALUE_WEIGHT = 0.5


def imitation_loss(rollout: Rollout, weight: Tensor) -> Tensor:
    """The cross-entropy of the teacher's candidates: the sum over steps times the episode's ``weight [n]``, and the
    mean over episodes."""
    steps = [
        (cross_entropy(step.logits, step.teacher, reduction="none") * weight[step.active]).sum()
        for step in rollout.steps
    ]
    return torch.stack(steps).sum() / len(weight)


def discounted_returns(rewards: Tensor, walked: Tensor, last: Tensor, discount: float = DISCOUNT) -> Tensor:
    """Returns of steps that end in a state of some value.

    Parameters
    ----------
    rewards : Tensor [T, n]
        Of each step.
    walked : bool Tensor [T, n]
        Which steps were taken; an episode's are the first ones.
    last : Tensor [n]
        The value of the state after the last step, 0 for episodes that stopped.
    discount : float
        In [0, 1].

    Returns
    -------
    Tensor [T, n]
        R_t = r_t + discount R_(t+1), 0 for steps that were not taken.
    """
    returns = torch.zeros_like(rewards)
    following = last
    for step in range(len(rewards) - 1, -1, -1):
        following = torch.where(walked[step], rewards[step] + discount * following, following)
        returns[step] = torch.where(walked[step], following, torch.zeros_like(following))
    return returns


def actor_critic_loss(agent: Agent, rollout: Rollout) -> Tensor:
    """The advantage actor-critic loss, mean over the actions taken.

    -log π(a) (R - V) + ½ (R - V)² - 0.01 H(π), where the advantage is not differentiated (Mnih et al., ICML 2016; Tan
    et al., NAACL 2019, Section 3.2).
    """
    steps = rollout.steps
    shape = len(steps), len(rollout.trail)
    rewards = steps[0].reward.new_zeros(shape)
    walked = torch.zeros(shape, dtype=torch.bool, device=rewards.device)
    for number, step in enumerate(steps):
        rewards[number, step.active] = step.reward
        walked[number, step.active] = True
    last = rewards.new_zeros(shape[1])
    if len(rollout.walking):
        last[rollout.walking] = agent.value(rollout.next_hidden).detach()
    returns = discounted_returns(rewards, walked, last)
    losses = []
    for number, step in enumerate(steps):
        log_policy = step.logits.log_softmax(dim=1)
        taken = log_policy.gather(1, step.action.unsqueeze(1)).squeeze(1)
        policy = log_policy.exp()
        entropy = -(policy * log_policy.masked_fill(policy == 0, 0)).sum(dim=1)
        error = returns[number, step.active] - agent.value(step.hidden)
        losses.append((-taken * error.detach() + VALUE_WEIGHT * error**2 - ENTROPY_WEIGHT * entropy).sum())
    return torch.stack(losses).sum() / int(walked.sum())
