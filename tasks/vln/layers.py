"""Layers that the agent and the speaker share, and words by a pretrained encoder in place of learned word vectors.

Padding never changes what layers give. The agent of FedVLN shares its language encoder alone with seen houses (Zhou and
Wang, ECCV 2022, Section 4.3). With a frozen encoder below it, that part has no word embedding, so it is smaller, and no
row of a gradient names a word. The agent reads words in context; the speaker, which says one word after the other, has
the vectors that the encoder starts from.
"""

from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from fedapps.tasks.language import check_tokens, longest_text, read_encoder
from torch import Tensor, nn
from torch.nn.functional import dropout, embedding

from fedapps.base.errors import DataError, require_package

from .instructions import PAD, RESERVED, UNKNOWN, Vocabulary

_KEY = "vln.language-model"
_FILES = ("config.json", "model.safetensors", "tokenizer.json")
_NO_WORDS = "the words of the model are unknown: build it with VlnTask.build_model_for(data)"
_KEPT = 20_000  # texts whose states are in memory: 0.9 GB for 30 words and width 384


class LanguageModel:
    """An encoder and its tokenizer. The states of texts are kept, because the encoder is never trained.

    A text is computed alone, so that its states do not depend on other texts of a batch.
    """

    def __init__(self, encoder: Any, tokenizer: Any) -> None:
        self.width = int(encoder.config.hidden_size)
        self._longest = longest_text(encoder)
        self._encoder, self._tokenizer = encoder.eval().requires_grad_(False), tokenizer
        self._states: OrderedDict[tuple[str, ...], Tensor] = OrderedDict()

    def __deepcopy__(self, memo: object) -> "LanguageModel":
        """Nothing that a copy could change; copies of a model share it."""
        return self

    def states(self, words: tuple[str, ...]) -> Tensor:
        """The states of a text's first token, words and last token, ``[len(words) + 2, width]``, on the CPU.

        A word's state is the mean of its pieces'; zeros for words without a piece or beyond the encoder's length.
        """
        if words in self._states:
            self._states.move_to_end(words)
            return self._states[words]
        encoded = self._tokenizer.encode(list(words), is_pretokenized=True)
        ids = encoded.ids
        if self._longest is not None and len(ids) > self._longest:
            ids = [*ids[: self._longest - 1], ids[-1]]
        with torch.no_grad():
            states = self._encoder(torch.tensor([ids])).last_hidden_state[0]
        if len(self._states) >= _KEPT:
            self._states.popitem(last=False)
        self._states[words] = _by_word(states, encoded.word_ids, len(words))
        return self._states[words]

    def vectors(self, words: Sequence[str]) -> Tensor:
        """The vectors from which the encoder starts, without context; the rows are those of :meth:`states`."""
        encoded = self._tokenizer.encode(list(words), is_pretokenized=True)
        rows: Tensor = self._encoder.get_input_embeddings().weight[encoded.ids]
        return _by_word(rows.detach(), encoded.word_ids, len(words))


def _by_word(pieces: Tensor, word_ids: Sequence[int | None], count: int) -> Tensor:
    """The means of the first token's, each word's and the last token's pieces, ``[count + 2, width]``."""
    places = [0, *(0 if word is None else word + 1 for word in word_ids[1:-1])]
    index = torch.tensor([*places[: len(pieces) - 1], count + 1])
    sums = pieces.new_zeros(count + 2, pieces.shape[1]).index_add_(0, index, pieces)
    return sums / torch.bincount(index, minlength=count + 2).clamp(min=1).unsqueeze(1)


class PretrainedVectors(nn.Module):
    """Frozen vectors ``[..., width]`` of words, by numbers ``[...]`` below ``count``; it has no parameters.

    They are scaled to a standard deviation of 1, which drawn vectors have. Padding is zeros.
    """

    table: Tensor | None

    def __init__(self, model: LanguageModel, count: int) -> None:
        super().__init__()
        self.model, self._count = model, count
        self.register_buffer("table", None, persistent=False)

    def learn(self, words: Vocabulary) -> None:
        """Take the words that numbers stand for."""
        first, unknown, *rest = self.model.vectors(("[UNK]", *words.words))
        *of_words, last = rest
        vectors = torch.stack([torch.zeros_like(first), unknown, last, first, *of_words])
        self.table = torch.zeros(self._count, self.model.width)
        self.table[: len(vectors)] = vectors / vectors[UNKNOWN:].std()

    def forward(self, numbers: Tensor) -> Tensor:
        if self.table is None:
            raise DataError(_NO_WORDS)
        return embedding(numbers, self.table)


class PretrainedWords(nn.Module):
    """States of words in context, ``[n, L, width]``, of tokens ``[n, L]``; it has no parameters.

    ``words`` are those that the numbers stand for; a model gets them with the data.
    """

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model
        self.words: Vocabulary | None = None

    def learn(self, words: Vocabulary) -> None:
        """Take the words that numbers stand for."""
        self.words = words

    def forward(self, tokens: Tensor) -> Tensor:
        if self.words is None:
            raise DataError(_NO_WORDS)
        known = (*RESERVED[:UNKNOWN], "[UNK]", *RESERVED[UNKNOWN + 1 :], *self.words.words)
        made = torch.zeros(*tokens.shape, self.model.width)
        for row, numbers in enumerate(tokens.tolist()):
            used = [number for number in numbers if number != PAD]
            made[row, : len(used)] = self.model.states(tuple(known[number] for number in used[1:-1]))
        return made.to(tokens.device)


@lru_cache(maxsize=2)
def language_model(folder: Path) -> LanguageModel:
    """Read the encoder of a folder; once per process.

    Raises
    ------
    DataError
        A file is missing or cannot be read, or a package is not installed.
    """
    require_package("transformers", "text", f"{_KEY} = '{folder}'")
    if missing := [name for name in _FILES if not (folder / name).is_file()]:
        raise DataError(
            f"{_KEY} = '{folder}': lacks {', '.join(missing)}; name a folder with an encoder of the library "
            "transformers, or leave it empty for learned word vectors"
        )
    from tokenizers import Tokenizer

    subject = f"{_KEY} = '{folder}'"
    try:
        with torch.device("cpu"):
            encoder = read_encoder(folder, subject, local=True, pools=False)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except DataError:
        raise
    except Exception as error:
        # The libraries raise errors of many kinds for files that are truncated or of another kind.
        raise DataError(f"{subject}: cannot be read as an encoder of transformers ({error})") from error
    check_tokens(tokenizer.get_vocab(), encoder, subject)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    words = tokenizer.encode(["x"], is_pretokenized=True).word_ids
    if not (words and words[0] is None and words[-1] is None):
        raise DataError(
            f"{subject}: its tokenizer does not put a token before and one after a text; use an encoder such as BERT, "
            "RoBERTa or MPNet"
        )
    return LanguageModel(encoder, tokenizer)


ANGLE_COPIES = 32  # of the four angle features, so that they are 128 (Tan et al., 2019)
ANGLE_WIDTH = 4 * ANGLE_COPIES


def mask_of(lengths: Tensor, size: int) -> Tensor:
    """Which of ``size`` places are used, bool ``[n, size]``."""
    return torch.arange(size, device=lengths.device) < lengths.unsqueeze(1)


class BiLSTM(nn.Module):
    """A bidirectional LSTM over sequences ``[n, L, inputs]`` of different lengths, ``[n, L, 2 width]``.

    What it gives after a sequence's end is zero. Sequences are reversed within their lengths in place of packing them,
    which is faster on a CPU.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.forwards = nn.LSTM(inputs, width, batch_first=True)
        self.backwards = nn.LSTM(inputs, width, batch_first=True)

    def forward(self, sequences: Tensor, lengths: Tensor) -> Tensor:
        position = torch.arange(sequences.shape[1], device=sequences.device)
        used = mask_of(lengths, sequences.shape[1])
        mirrored = torch.where(used, lengths.unsqueeze(1) - 1 - position, position)
        forwards, _ = self.forwards(sequences)
        back, _ = self.backwards(_reordered(sequences, mirrored))
        return torch.cat([forwards, _reordered(back, mirrored)], dim=-1) * used.unsqueeze(-1)


def _reordered(sequences: Tensor, places: Tensor) -> Tensor:
    """Whole rows are copied; ``gather`` would look up each number."""
    starts = torch.arange(sequences.shape[0], device=places.device).unsqueeze(1) * sequences.shape[1]
    return sequences.flatten(0, 1).index_select(0, (starts + places).flatten()).view_as(sequences)


class WordAttention(nn.Module):
    """Soft dot attention (Luong et al., EMNLP 2015): tanh W [mean; query] with the mean of the context as the query
    weighs it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.output = nn.Linear(2 * width, width, bias=False)

    def forward(self, queries: Tensor, context: Tensor, mask: Tensor) -> Tensor:
        """``[n, Q, width]`` of queries ``[n, Q, width]`` in contexts ``[n, L, width]``; ``mask`` bool ``[n, L]`` says
        where there is any."""
        scores = torch.bmm(self.query(queries), context.transpose(1, 2)).masked_fill(~mask.unsqueeze(1), -torch.inf)
        means = torch.bmm(scores.softmax(dim=2), context)
        return torch.tanh(self.output(torch.cat([means, queries], dim=2)))


def environment(count: int, width: int, drop: float, training: bool, like: Tensor) -> Tensor:
    """Which features ``[count, width]`` an episode shows: environmental dropout (Tan et al., 2019, Section 3.4).

    In training a share ``drop`` of them is 0 in all views of all viewpoints, as if the house looked different, and the
    others are scaled by 1 / (1 - drop). The authors' code does so on labelled paths, and drops features of each view
    by themselves on those that people described.
    """
    return dropout(like.new_ones(count, width), drop, training)


class DirectedQuery(nn.Module):
    """Products of a query with inputs that are features ``[D]`` and 32 copies of four angle features.

    Neither the copies nor features that are dropped are ever made: the query's parts for them are added up or dropped
    instead.
    """

    def __init__(self, width: int, feature_width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, feature_width + ANGLE_WIDTH, bias=False)
        self._features = feature_width

    def forward(self, query: Tensor, features: Tensor, angles: Tensor, shown: Tensor) -> Tensor:
        """Products ``[n, K]`` of queries ``[n, width]`` with features ``[n, K, D]``, times ``shown [n, D]``, and angles
        ``[n, K, 4]``."""
        wanted = self.query(query)
        direction = wanted[:, self._features :].unflatten(1, (ANGLE_COPIES, 4)).sum(dim=1)
        look = wanted[:, : self._features] * shown
        return torch.baddbmm(torch.bmm(features, look.unsqueeze(2)), angles, direction.unsqueeze(2)).squeeze(2)


class ViewAttention(nn.Module):
    """The mean of 36 views as the query weighs them, with the copies of its angles: ``[n, D + 128]``."""

    def __init__(self, width: int, feature_width: int) -> None:
        super().__init__()
        self.scores = DirectedQuery(width, feature_width)

    def forward(self, query: Tensor, views: Tensor, angles: Tensor, shown: Tensor) -> Tensor:
        """Arguments as :meth:`DirectedQuery.forward`'s."""
        weights = self.scores(query, views, angles, shown).softmax(dim=1).unsqueeze(1)
        looked = torch.bmm(weights, views).squeeze(1) * shown
        return torch.cat([looked, copied(torch.bmm(weights, angles).squeeze(1))], dim=1)


def copied(angles: Tensor) -> Tensor:
    """Angle features ``[..., 4]`` as 32 copies, ``[..., 128]``."""
    return angles.repeat(*[1] * (angles.dim() - 1), ANGLE_COPIES)
