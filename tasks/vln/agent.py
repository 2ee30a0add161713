"""The Envdrop agent: reads an instruction, looks around, and chooses where to go (Tan et al., NAACL 2019 [1]_).

.. [1] Tan, Yu and Bansal, Learning to Navigate Unseen Environments: Back Translation with Environmental Dropout, 2019,
   https://arxiv.org/abs/1904.04195, Section 3.
"""

from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
from fedapps.tasks.base import DataError
from torch import Tensor, nn

from .files import in_folder
from .houses import Houses
from .language_model import PretrainedWords, language_model
from .layers import ANGLE_WIDTH, BiLSTM, DirectedQuery, ViewAttention, WordAttention, copied, environment, mask_of
from .options import Options, Sizes
from .vocabulary import PAD, Vocabulary
from .walks import Observation


class LanguageEncoder(nn.Module):
    """A bidirectional LSTM over the words; the decoder starts from the largest of its outputs, place by place.

    The words are learned vectors or ``pretrained``.
    """

    def __init__(self, sizes: Sizes, drop: float, pretrained: PretrainedWords | None = None) -> None:
        super().__init__()
        self.embedding: nn.Module = pretrained or nn.Embedding(sizes.vocabulary, sizes.words, padding_idx=PAD)
        self.lstm = BiLSTM(pretrained.model.width if pretrained else sizes.words, sizes.hidden // 2)
        self.to_decoder = nn.Linear(sizes.hidden, sizes.hidden)
        self.drop = nn.Dropout(drop)

    def forward(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The words in context, ``[n, L, hidden]``, and the decoder's start, ``[n, hidden]``."""
        context = self.lstm(self.drop(self.embedding(tokens)), lengths)
        used = mask_of(lengths, tokens.shape[1]).unsqueeze(2)
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
        self.action = nn.Linear(ANGLE_WIDTH, sizes.action)
        self.views = ViewAttention(sizes.hidden, sizes.features)
        self.lstm = nn.LSTMCell(sizes.action + sizes.features + ANGLE_WIDTH, sizes.hidden)
        self.words = WordAttention(sizes.hidden)
        self.candidates = DirectedQuery(sizes.hidden, sizes.features)
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
        turned = self.drop(torch.tanh(self.action(copied(memory.move))))
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
        pretrained: PretrainedWords | None = None,
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
        if isinstance(self.encoder.embedding, PretrainedWords):
            self.encoder.embedding.learn(words)

    def begin(self, tokens: Tensor, lengths: Tensor) -> Memory:
        """Read instructions, tokens ``[n, L]`` of ``lengths [n]``, before the first step."""
        context, start = self.encoder(tokens.long(), lengths)
        shown = environment(tokens.shape[0], self.sizes.features, self.feature_drop, self.training, start)
        mask = mask_of(lengths, tokens.shape[1])
        return Memory(start, torch.zeros_like(start), start, start.new_zeros(start.shape[0], 4), context, mask, shown)

    def value(self, hidden: Tensor) -> Tensor:
        """The critic's value ``[n]`` of hidden states ``[n, hidden]``."""
        values: Tensor = self.critic(hidden)
        return values.squeeze(1)


def agent_of(options: Options, folder: Path | None = None) -> Agent:
    """The agent of the options with drawn weights; a language model may lie in the node's ``folder``."""
    pretrained = None
    if options.language_model:
        pretrained = PretrainedWords(language_model(in_folder(options.language_model, folder)))
    return Agent(options.sizes, drop=options.dropout, feature_drop=options.feature_dropout, pretrained=pretrained)


def houses_of(model: nn.Module, device: torch.device) -> Houses:
    """The houses that a model is in. Raises :class:`DataError` for a model that was built without data."""
    houses = getattr(model, "houses", None)
    if not isinstance(houses, Houses):
        raise DataError("the model is in no house: build it with VlnTask.build_model_for(data)")
    return houses.on(device)
