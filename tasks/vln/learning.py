"""How an agent walks and learns from its walks.

It walks by a teacher's choice, by chance, or by its best guess, and learns from the teacher's choices and from rewards
(advantage actor-critic). :data:`LEARNING` has the training losses by name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from fedapps.tasks.base import Batch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedapps.base.errors import DivergedError

from .agent import Agent
from .houses import Houses
from .walks import Walks

#: Takes numbers of episodes [b], logits [b, C] and the teacher's candidates [b]; gives candidates [b].
Choose = Callable[[Tensor, Tensor, Tensor], Tensor]
DISCOUNT = 0.9
ENTROPY_WEIGHT = 0.01
VALUE_WEIGHT = 0.5


@dataclass(frozen=True, eq=False)
class Step:
    """What b agents that had not stopped did: their numbers ``active``, ``logits [b, C]``, the ``teacher``'s candidates
    and the ``action`` taken, the decoder's ``hidden [b, hidden]``, and the ``reward [b]``."""

    active: Tensor
    logits: Tensor
    teacher: Tensor
    action: Tensor
    hidden: Tensor
    reward: Tensor


@dataclass(frozen=True, eq=False)
class Rollout:
    """``steps`` of n agents, where they were (:meth:`~fedapps.tasks.vln.walks.Walks.trails`), and the hidden states
    ``[b, hidden]`` of those that were still ``walking [b]`` when the steps ended, one step further."""

    steps: list[Step]
    trail: Tensor
    trail_length: Tensor
    walking: Tensor
    next_hidden: Tensor


def teacher_forced(_: Tensor, logits: Tensor, teacher: Tensor) -> Tensor:
    """The teacher's candidate."""
    return teacher


def greedy(_: Tensor, logits: Tensor, teacher: Tensor) -> Tensor:
    """The candidate of the largest logit."""
    return logits.argmax(dim=1)


def sampled(_: Tensor, logits: Tensor, teacher: Tensor) -> Tensor:
    """A candidate by its probability, from torch's global generator. Raises ``DivergedError`` if one is not finite."""
    chances = logits.detach().softmax(dim=1)
    if not chances.isfinite().all():
        raise DivergedError("the agent's probabilities are not finite: has training diverged?")
    return torch.multinomial(chances, 1).squeeze(1)


def half_forced(active: Tensor, logits: Tensor, teacher: Tensor) -> Tensor:
    """The teacher's candidate in episodes of even number, by probability in the others."""
    return torch.where(active % 2 == 0, teacher, sampled(active, logits, teacher))


def roll_out(agent: Agent, houses: Houses, episodes: Batch, choose: Choose, max_actions: int) -> Rollout:
    """Walk until all agents have stopped, or ``max_actions`` candidates were taken, STOP included."""
    walks = Walks(houses, episodes)
    memory = agent.begin(episodes["tokens"], episodes["length"])
    steps: list[Step] = []
    for _ in range(max_actions):
        seen = walks.observe()
        logits, memory = agent.decoder(seen, memory)
        active, teacher = walks.active, walks.teacher()
        action = choose(active, logits, teacher)
        reward = walks.step(action)
        steps.append(Step(active, logits, teacher, action, memory.hidden, reward))
        move = seen.candidate_angles.gather(1, action[:, None, None].expand(-1, 1, 4)).squeeze(1)
        memory = replace(memory, move=move)
        if len(walks.active) < len(active):
            memory = memory.select((action != 0).nonzero().squeeze(1))
        if not len(walks.active):
            break
    next_hidden = memory.hidden
    if len(walks.active):
        with torch.no_grad():
            next_hidden = agent.decoder(walks.observe(), memory)[1].hidden
    return Rollout(steps, *walks.trails(), walks.active, next_hidden)


def imitation_loss(rollout: Rollout, weight: Tensor) -> Tensor:
    """The cross-entropy of the teacher's candidates: the sum over steps times the episode's ``weight [n]``, and the
    mean over episodes."""
    steps = [
        (cross_entropy(step.logits, step.teacher, reduction="none") * weight[step.active]).sum()
        for step in rollout.steps
    ]
    return torch.stack(steps).sum() / len(weight)


@torch.no_grad()
def path_likelihoods(agent: Agent, houses: Houses, episodes: Batch) -> Tensor:
    """The logarithms of the probabilities, ``[n]``, with which an agent walks the described paths and stops."""
    agent.eval()
    likelihoods = torch.zeros(len(episodes["path"]), device=episodes["path"].device)
    for step in roll_out(agent, houses, episodes, teacher_forced, episodes["path"].shape[1]).steps:
        likelihoods[step.active] -= cross_entropy(step.logits, step.teacher, reduction="none")
    return likelihoods


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


#: Takes an agent, its houses, a batch (:mod:`fedapps.tasks.vln.episodes`) and the most actions of a walk; gives the
# loss.
Learning = Callable[[Agent, Houses, Batch, int], Tensor]


def imitation(agent: Agent, houses: Houses, batch: Batch, max_actions: int) -> Tensor:
    """The teacher's choices along the reference."""
    return imitation_loss(roll_out(agent, houses, batch, teacher_forced, max_actions), batch["weight"])


def mixed(agent: Agent, houses: Houses, batch: Batch, max_actions: int) -> Tensor:
    """The teacher's choices, along the reference in one half of the episodes and along the agent's own walk in the
    other."""
    return imitation_loss(roll_out(agent, houses, batch, half_forced, max_actions), batch["weight"])


def actor_critic(agent: Agent, houses: Houses, batch: Batch, max_actions: int) -> Tensor:
    """Imitation, and rewards on a walk of the agent's own (Tan et al., NAACL 2019, Section 3.2)."""
    rewarded = roll_out(agent, houses, batch, sampled, max_actions)
    return imitation(agent, houses, batch, max_actions) + actor_critic_loss(agent, rewarded)


LEARNING: Mapping[str, Learning] = {"actor-critic": actor_critic, "imitation": imitation, "mixed": mixed}
