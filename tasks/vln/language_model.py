"""Words by a pretrained, frozen encoder of the library transformers, in place of learned word vectors.

The agent of FedVLN shares its language encoder alone with seen houses (Zhou and Wang, ECCV 2022, Section 4.3). With a
frozen encoder below it, that part has no word embedding, so it is smaller, and no row of a gradient names a word. The
agent reads words in context; the speaker, which says one word after the other, has the vectors that the encoder starts
from.
"""

from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from fedapps.tasks.language import check_tokens, longest_text, read_encoder
from torch import Tensor, nn
from torch.nn.functional import embedding

from fedapps.base.errors import DataError, need

from .vocabulary import PAD, RESERVED, UNKNOWN, Vocabulary

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
    need("transformers", "text", f"{_KEY} = '{folder}'")
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
