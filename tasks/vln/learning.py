"""The training losses of the agent, by name."""

from collections.abc import Callable, Mapping

from fedapps.tasks.base import Batch
from torch import Tensor

from .agent import Agent
from .houses import Houses
from .losses import actor_critic_loss, imitation_loss
from .rollout import half_forced, roll_out, sampled, teacher_forced

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
