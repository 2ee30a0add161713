"""Networks of the task "vln" as other programs run them: without houses, which these show to them as tensors."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from fedapps.tasks.answers import Network
from torch import Tensor, nn

from .agent import Agent
from .connectivity import VIEWS
from .layers import mask_of
from .speaker import Speaker
from .walks import Observation


class AgentStep(nn.Module):
    """One action of an agent without its houses."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self.agent = agent

    def forward(
        self,
        tokens: Tensor,
        length: Tensor,
        views: Tensor,
        view_angles: Tensor,
        candidates: Tensor,
        candidate_angles: Tensor,
        exists: Tensor,
        move: Tensor,
        attended: Tensor,
        cell: Tensor,
        first: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Choose among candidates.

        Parameters
        ----------
        tokens : int64 Tensor [n, L]
        length : int64 Tensor [n]
            Of the instructions.
        views, view_angles, candidates, candidate_angles, exists : Tensor
            Those of an :class:`~fedapps.tasks.vln.walks.Observation`.
        move : Tensor [n, 4]
            The angles of the candidate taken last, zeros at first.
        attended, cell : Tensor [n, hidden]
            What the step before returned; at first their values do not matter.
        first : bool Tensor [n]
            Whether this is the first step.

        Returns
        -------
        logits : Tensor [n, C]
            Of the candidates; candidate 0 is STOP.
        attended, cell : Tensor [n, hidden]
            For the next step.
        """
        begun = self.agent.begin(tokens, length)
        new = first.unsqueeze(1)
        attended = torch.where(new, begun.attended, attended)
        memory = replace(begun, attended=attended, cell=torch.where(new, begun.cell, cell), move=move)
        seen = Observation(views, view_angles, candidates, candidate_angles, exists)
        logits, memory = self.agent.decoder(seen, memory)
        return logits, memory.attended, memory.cell


class SpeakerWords(nn.Module):
    """A speaker without its houses."""

    def __init__(self, speaker: Speaker) -> None:
        super().__init__()
        self.speaker = speaker

    def forward(
        self, taken: Tensor, angles: Tensor, views: Tensor, view_angles: Tensor, length: Tensor, words: Tensor
    ) -> Tensor:
        """Return logits ``[n, L, vocabulary]`` of the words after ``words`` int64 ``[n, L]``.

        The other arguments are those of :meth:`.PathEncoder.look`.
        """
        shown = torch.ones_like(taken[:, 0])
        context = self.speaker.encoder.look(taken, angles, views, view_angles, lengths=length, shown=shown)
        logits: Tensor = self.speaker.decoder(words, context, mask_of(length, taken.shape[1]))[0]
        return logits


def agent_network(agent: Agent) -> Network:
    """An agent's step, with an example of its inputs."""
    sizes, generator = agent.sizes, torch.Generator().manual_seed(0)
    count, length, candidates = 2, 7, 4
    drawn = partial(torch.randn, generator=generator)
    inputs = {
        "tokens": torch.randint(1, sizes.vocabulary, (count, length), generator=generator),
        "length": torch.tensor([length, length - 2]),
        "views": drawn(count, VIEWS, sizes.features),
        "view_angles": drawn(count, VIEWS, 4),
        "candidates": drawn(count, candidates, sizes.features),
        "candidate_angles": drawn(count, candidates, 4),
        "exists": torch.tensor([[True] * candidates, [True] * (candidates - 1) + [False]]),
        "move": drawn(count, 4),
        "attended": drawn(count, sizes.hidden),
        "cell": drawn(count, sizes.hidden),
        "first": torch.tensor([True, False]),
    }
    second = {"tokens": "words", **dict.fromkeys(("candidates", "candidate_angles", "exists"), "candidates")}
    outside = (
        "One action at a time: the walk through a house, what is seen there and the numbers of words stay outside; "
        "attended and cell go from step to step."
    )
    return _network(AgentStep(agent), inputs, second, ("logits", "next_attended", "next_cell"), outside)


def speaker_network(speaker: Speaker) -> Network:
    """A speaker's words, with an example of their inputs."""
    sizes, generator = speaker.sizes, torch.Generator().manual_seed(0)
    count, stops, length = 2, 5, 7
    drawn = partial(torch.randn, generator=generator)
    inputs = {
        "taken": drawn(count, stops, sizes.features),
        "angles": drawn(count, stops, 4),
        "views": drawn(count, stops, VIEWS, sizes.features),
        "view_angles": drawn(count, stops, VIEWS, 4),
        "length": torch.tensor([stops, stops - 1]),
        "words": torch.randint(1, sizes.vocabulary, (count, length), generator=generator),
    }
    second = {"words": "words", **dict.fromkeys(("taken", "angles", "views", "view_angles"), "stops")}
    outside = "What is seen along a path, the choice of the next word and the numbers of words stay outside."
    return _network(SpeakerWords(speaker), inputs, second, ("logits",), outside)


def _network(
    module: nn.Module, inputs: Mapping[str, Tensor], second: Mapping[str, str], outputs: tuple[str, ...], outside: str
) -> Network:
    """The network with these ``inputs``, of which ``second`` names the second dimensions that may have other sizes."""
    dynamic = {name: {0: "batch"} | ({1: second[name]} if name in second else {}) for name in inputs}
    return Network(module.eval(), tuple(inputs.values()), tuple(inputs), outputs, dynamic, outside)
