"""The Envdrop agent, which reads an instruction, looks around and chooses where to go, and how it learns.

It walks by a teacher's choice, by chance, or by its best guess, and learns from the teacher's choices and from rewards
(advantage actor-critic). :data:`LEARNING` has the training losses by name (Tan et al., NAACL 2019 [1]_).

.. [1] Tan, Yu and Bansal, Learning to Navigate Unseen Environments: Back Translation with Environmental Dropout, 2019,
   https://arxiv.org/abs/1904.04195, Section 3.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
from fedapps.tasks.base import Batch, DataError
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedapps.base.errors import DivergedError

from . import layers
from .houses import Houses
from .instructions import PAD, Vocabulary, in_folder
from .options import Options, Sizes
from .walks import Observation, Walks


class LanguageEncoder(nn.Module):
    """A bidirectional LSTM over the words; the decoder starts from the largest of its outputs, place by place.

    The decoder's cell starts at zero, in the authors' code at that of this LSTM. The words are learned vectors or
    ``pretrained``.
    """

    def __init__(self, sizes: Sizes, drop: float, pretrained: layers.PretrainedWords | None = None) -> None:
        super().__init__()
        self.embedding: nn.Module = pretrained or nn.Embedding(sizes.vocabulary, sizes.words, padding_idx=PAD)
        self.lstm = layers.BiLSTM(pretrained.model.width if pretrained else sizes.words, sizes.hidden // 2)
        self.to_decoder = nn.Linear(sizes.hidden, sizes.hidden)
        self.drop = nn.Dropout(drop)

    def forward(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The words in context, ``[n, L, hidden]``, and the decoder's start, ``[n, hidden]``."""
        context = self.lstm(self.drop(self.embedding(tokens)), lengths)
        used = layers.mask_of(lengths, tokens.shape[1]).unsqueeze(2)
        start = torch.tanh(self.to_decoder(context.masked_fill(~used, -torch.inf).amax(dim=1)))
        return self.drop(context), start


@dataclass(frozen=True, eq=False)
class Memory:
    """What the decoder remembers from step to step of n episodes.

    ``hidden``, ``cell`` and ``attended`` are ``[n, hidden]``, ``move [n, 4]`` the angle features of the move made last,
    zeros at the start. ``context [n, L, hidden]`` are the words, ``mask [n, L]`` says where the text is, and
    ``shown [n, D]`` which features the episode shows (:func:`~fedapps.tasks.vln.layers.environment`).
    """

    hidden: Tensor
    cell: Tensor
    attended: Tensor
    move: Tensor
    context: Tensor
    mask: Tensor
    shown: Tensor

    def select(self, rows: Tensor) -> "Memory":
        """The memory of some rows."""
        return Memory(*(getattr(self, field.name)[rows] for field in fields(self)))


class ActionDecoder(nn.Module):
    """An LSTM over steps that attends to views, words and candidates."""

    def __init__(self, sizes: Sizes, drop: float) -> None:
        super().__init__()
        self.action = nn.Linear(layers.ANGLE_WIDTH, sizes.action)
        self.views = layers.ViewAttention(sizes.hidden, sizes.features)
        self.lstm = nn.LSTMCell(sizes.action + sizes.features + layers.ANGLE_WIDTH, sizes.hidden)
        self.words = layers.WordAttention(sizes.hidden)
        self.candidates = layers.DirectedQuery(sizes.hidden, sizes.features)
        self.drop = nn.Dropout(drop)

    def forward(self, seen: Observation, memory: Memory) -> tuple[Tensor, Memory]:
        """Choose among candidates.

        Parameters
        ----------
        seen : Observation
            Of n agents.
        memory : Memory
            Of the step before.

        Returns
        -------
        logits : Tensor [n, C]
            Minus infinity where there is no candidate; that of STOP is 0, as its features are.
        memory : Memory
            Of this step, with the move of the step before.
        """
        turned = self.drop(torch.tanh(self.action(layers.copied(memory.move))))
        looked = self.views(self.drop(memory.attended), seen.views, seen.view_angles, memory.shown)
        hidden, cell = self.lstm(torch.cat([turned, looked], dim=1), (memory.attended, memory.cell))
        attended = self.words(self.drop(hidden).unsqueeze(1), memory.context, memory.mask).squeeze(1)
        logits = self.candidates(self.drop(attended), seen.candidates, seen.candidate_angles, memory.shown)
        return logits.masked_fill(~seen.exists, -torch.inf), replace(
            memory, hidden=hidden, cell=cell, attended=attended
        )


class Agent(nn.Module):
    """``encoder``, ``decoder`` and ``critic``: the language encoder, the trajectory and decision modules, and the value
    of a state, which only training uses.

    ``houses`` are those that the agent is in; they are no part of the state that travels.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        drop: float = 0.5,
        feature_drop: float = 0.3,
        pretrained: layers.PretrainedWords | None = None,
    ) -> None:
        super().__init__()
        self.sizes, self.feature_drop = sizes, feature_drop
        self.encoder = LanguageEncoder(sizes, drop, pretrained)
        self.decoder = ActionDecoder(sizes, drop)
        self.critic = nn.Sequential(
            nn.Linear(sizes.hidden, sizes.hidden), nn.ReLU(), nn.Dropout(drop), nn.Linear(sizes.hidden, 1)
        )
        self.houses: Houses | None = None

    def learn_words(self, words: Vocabulary) -> None:
        """Take the words that numbers stand for, which only an agent with pretrained words needs."""
        if isinstance(self.encoder.embedding, layers.PretrainedWords):
            self.encoder.embedding.learn(words)

    def begin(self, tokens: Tensor, lengths: Tensor) -> Memory:
        """Read instructions, tokens ``[n, L]`` of ``lengths [n]``, before the first step."""
        context, start = self.encoder(tokens.long(), lengths)
        shown = layers.environment(tokens.shape[0], self.sizes.features, self.feature_drop, self.training, start)
        mask = layers.mask_of(lengths, tokens.shape[1])
        return Memory(start, torch.zeros_like(start), start, start.new_zeros(start.shape[0], 4), context, mask, shown)

    def value(self, hidden: Tensor) -> Tensor:
        """The critic's value ``[n]`` of hidden states ``[n, hidden]``."""
        values: Tensor = self.critic(hidden)
        return values.squeeze(1)


def agent_of(options: Options, folder: Path | None = None) -> Agent:
    """The agent of the options with drawn weights; a language model may lie in the node's ``folder``."""
    pretrained = None
    if options.language_model:
        pretrained = layers.PretrainedWords(layers.language_model(in_folder(options.language_model, folder)))
    return Agent(options.sizes, drop=options.dropout, feature_drop=options.feature_dropout, pretrained=pretrained)


def houses_of(model: nn.Module, device: torch.device) -> Houses:
    """The houses that a model is in. Raises :class:`DataError` for a model that was built without data."""
    houses = getattr(model, "houses", None)
    if not isinstance(houses, Houses):
        raise DataError("the model is in no house: build it with VlnTask.build_model_for(data)")
    return houses.on(device)


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


def discounted_returns(rewards: Tensor, walked: Tensor, last: Tensor) -> Tensor:
    """Returns of steps that end in a state of some value, discounted by :data:`DISCOUNT`.

    Parameters
    ----------
    rewards : Tensor [T, n]
        Of each step.
    walked : bool Tensor [T, n]
        Which steps were taken; an episode's are the first ones.
    last : Tensor [n]
        The value of the state after the last step, 0 for episodes that stopped.

    Returns
    -------
    Tensor [T, n]
        R_t = r_t + DISCOUNT R_(t+1), 0 for steps that were not taken.
    """
    returns = torch.zeros_like(rewards)
    following = last
    for step in range(len(rewards) - 1, -1, -1):
        following = torch.where(walked[step], rewards[step] + DISCOUNT * following, following)
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


#: Takes an agent, its houses, a batch (:mod:`~fedapps.tasks.vln.nodes`) and the most actions of a walk; gives a loss.
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
