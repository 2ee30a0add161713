"""Let an agent walk: by a teacher's choice, by chance, or by its best guess."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from fedapps.tasks.base import Batch
from torch import Tensor

from .agent import Agent
from .houses import Houses
from .walks import Walks

#: Takes numbers of episodes [b], logits [b, C] and the teacher's candidates [b]; gives candidates [b].
Choose = Callable[[Tensor, Tensor, Tensor], Tensor]


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
    """A candidate by its probability, from torch's global generator."""
    return torch.multinomial(logits.detach().softmax(dim=1), 1).squeeze(1)


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
