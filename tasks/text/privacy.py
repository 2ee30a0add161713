"""What an audit attacks in a text task (:mod:`fedapps.tasks.privacy`): sentences with digits and their classifier.

Gradient matching differentiates a gradient, so that LSTM layers become loops of cells: cuDNN's LSTM has no second
derivative; torch's LSTM on the CPU has one, but no batching rule for ``torch.func.vmap``. A loop of cells has both on
every device, but is slower.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import torch
from fedapps.tasks.base import Batch, NodeData
from fedapps.tasks.language import split_words
from fedapps.tasks.privacy.leaks import AboveWords
from fedapps.tasks.privacy.sharing import AuditSubject, Sentence, Sharing, Victim
from fedapps.tasks.privacy.tokens import TokenTable
from fedapps.tasks.profiles import PrivateParameters
from fedapps.tasks.text.corpus import Examples, read_corpus
from fedapps.tasks.text.networks import OwnRows, TextClassifier
from fedapps.tasks.text.options import vocabulary_source, word_table
from fedapps.tasks.text.task import TextTask
from fedapps.tasks.text.vocabulary import (
    UNKNOWN,
    PieceVocabulary,
    TokenizerVocabulary,
    Vocabulary,
    WordVocabulary,
    is_digits,
    padded,
)
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from .networks import LastStates

State = tuple[Tensor, Tensor]
Module = TypeVar("Module", bound=nn.Module)


class LoopLSTM(nn.LSTM):
    """``nn.LSTM`` as a loop over time, with the same parameters, inputs (padded or packed) and outputs, up to rounding.

    Dropout between layers is not applied, as in evaluation mode.
    """

    def forward(self, input: Tensor | PackedSequence, hx: State | None = None):  # type: ignore[no-untyped-def]
        if isinstance(input, PackedSequence):
            padded, lengths = pad_packed_sequence(input, batch_first=True)
            output, state = self.padded(padded, lengths, hx)
            return pack_padded_sequence(output, lengths, batch_first=True, enforce_sorted=False), state
        padded = input if self.batch_first else input.transpose(0, 1)
        output, state = self._layers(padded, None, hx)
        return output if self.batch_first else output.transpose(0, 1), state

    def padded(self, inputs: Tensor, lengths: Tensor, hx: State | None = None) -> tuple[Tensor, State]:
        """Compute what packed sequences would give, without packing, which ``vmap`` does not support.

        ``inputs`` [B, T, d] are padded to T >= ``lengths`` [B]. Outputs [B, T, ·] are 0 beyond the lengths, and the
        state is that at the last token (the first, backwards).
        """
        steps = torch.arange(inputs.shape[1], device=inputs.device)
        return self._layers(inputs, steps[None] < lengths.to(inputs.device)[:, None], hx)

    def _layers(self, inputs: Tensor, valid: Tensor | None, hx: State | None) -> tuple[Tensor, State]:
        directions = ("", "_reverse")[: 1 + self.bidirectional]
        ends: list[State] = []
        for layer in range(self.num_layers):
            outputs = []
            for direction in directions:
                index = len(ends)
                start = (hx[0][index], hx[1][index]) if hx is not None else None
                output, end = self._scan(inputs, valid, f"l{layer}{direction}", start)
                outputs.append(output)
                ends.append(end)
            inputs = torch.cat(outputs, -1)
        hidden, cell = zip(*ends, strict=True)
        return inputs, (torch.stack(hidden), torch.stack(cell))

    def _scan(self, inputs: Tensor, valid: Tensor | None, suffix: str, start: State | None) -> tuple[Tensor, State]:
        """Run one direction of one layer over [B, T, ·]; beyond ``valid`` [B, T] the state stays and outputs are 0."""
        recurrent = getattr(self, f"weight_hh_{suffix}")
        driven = inputs @ getattr(self, f"weight_ih_{suffix}").T
        if self.bias:
            driven = driven + getattr(self, f"bias_ih_{suffix}") + getattr(self, f"bias_hh_{suffix}")
        zeros = inputs.new_zeros(len(inputs), self.hidden_size)
        hidden, cell = start if start is not None else (zeros, zeros)
        steps = range(inputs.shape[1])
        outputs: dict[int, Tensor] = {}
        for step in reversed(steps) if suffix.endswith("_reverse") else steps:
            enter, forget, candidate, leave = (driven[:, step] + hidden @ recurrent.T).chunk(4, -1)
            new_cell = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
            new_hidden = leave.sigmoid() * new_cell.tanh()
            if valid is None:
                hidden, cell, outputs[step] = new_hidden, new_cell, new_hidden
            else:
                active = valid[:, step, None]
                hidden, cell = torch.where(active, new_hidden, hidden), torch.where(active, new_cell, cell)
                outputs[step] = torch.where(active, new_hidden, zeros)
        return torch.stack([outputs[step] for step in steps], 1), (hidden, cell)


class LoopLastStates(LoopLSTM):
    """:class:`.networks.LastStates` as a loop over time, with the same parameters, inputs and result."""

    def forward(self, inputs: Tensor, length: Tensor) -> Tensor:  # type: ignore[override]
        _, (last, _) = self.padded(inputs, length)
        return last.transpose(0, 1).flatten(1)


#: The loop for each class of LSTMs. The two differ only in their methods.
_LOOPS = {nn.LSTM: LoopLSTM, LastStates: LoopLastStates}


def with_loop_lstms(module: Module) -> Module:
    """Return a copy of ``module`` in evaluation mode whose LSTMs are loops. Names and values of parameters stay.

    Raises
    ------
    ValueError
        An LSTM has projections.
    """
    copy = deepcopy(module).eval()
    for part in list(copy.modules()):
        if isinstance(part, nn.LSTM) and (loop := _LOOPS.get(type(part))):
            if part.proj_size:
                raise ValueError(f"an LSTM with proj_size = {part.proj_size} cannot be turned into a loop: must be 0")
            part.__class__ = loop
    return copy


#: What each method shares. The private words of FedRecon are digit tokens, as in the paper (Appendix A.2).
SHARINGS: Mapping[str, Sharing] = {
    "fedavg": Sharing("fedavg", ("*",), lambda word: True),
    "lg-fedavg": Sharing("lg-fedavg", ("*classifier.*",), lambda word: False, first_layer=False),
    "fedrecon": Sharing("fedrecon", ("*",), lambda word: not is_digits(word)),
    "fedvocab": Sharing("fedvocab", ("encoder.*", "*classifier.*"), lambda word: False),
}
_END = re.compile(r"(?<=[.!?])\s+")
_UNKNOWN = ("<unk>", "[UNK]")
#: Of a sentence: the fewest digit tokens and the most tokens.
_MIN_DIGITS, _MAX_LENGTH = 3, 30
_LONGEST = 64  # more than the paper's 30, so that longer sentences are recognised as such
_PADDING = ("<pad>", "[PAD]")


def above_words(model: TextClassifier) -> nn.Module:
    """Return a copy of ``model`` that maps word vectors [B, T, d] and lengths [B] to logits, in evaluation mode.

    Parameters keep their names; the word vectors are removed. An LSTM becomes a loop (:func:`.with_loop_lstms`). The
    parts of a transformer's embedding above the word vectors, positions and normalisation, stay under ``embedding.``.

    Raises
    ------
    ValueError
        The embedding does not accept vectors.
    """
    copy: Any = with_loop_lstms(model)
    copy.embedding = nn.Identity() if isinstance(copy.embedding, nn.Embedding) else AboveWords(copy.embedding)
    body: nn.Module = copy
    return body


def draw_sentences(examples: Examples, vocabulary: Vocabulary, count: int, *, own: bool, seed: int) -> list[Sentence]:
    """Draw ``count`` sentences of all texts (Zhang et al., Appendix A.3).

    A full stop, exclamation mark or question mark before a space ends a sentence; whole texts of AG News are mostly
    longer than the paper's 30 tokens. :func:`choose_sentences` says which sentences qualify. The label of a sentence is
    the class of its text.

    Parameters
    ----------
    examples : Examples
        The texts.
    vocabulary : Vocabulary
        The vocabulary.
    count : int
        The number of sentences.
    own : bool
        Whether the vocabulary is the node's own, so that :func:`with_sentences` can add words to it. Otherwise all
        words must be in it.
    seed : int
        The seed.

    Raises
    ------
    ValueError
        Too few sentences qualify.
    """
    words_of = _splitter(vocabulary)
    known = set(vocabulary.words) - set(_UNKNOWN)
    sentences = [
        Sentence(tuple(words), int(label))
        for text, label in zip(examples.texts, examples.labels, strict=True)
        for part in _END.split(text)
        if any(map(str.isdigit, part)) and (words := words_of(part)) and (own or known.issuperset(words))
    ]
    drawn = choose_sentences([sentence.words for sentence in sentences], count, seed=seed)
    return [sentences[index] for index in drawn]


def choose_sentences(sentences: Sequence[Sequence[str]], count: int, *, seed: int) -> list[int]:
    """Draw the indices of ``count`` sentences with at least 3 digit tokens and at most 30 tokens (Appendix A.3).

    Raises
    ------
    ValueError
        Too few sentences qualify.
    """
    fit = [
        index
        for index, sentence in enumerate(sentences)
        if len(sentence) <= _MAX_LENGTH and sum(map(is_digits, sentence)) >= _MIN_DIGITS
    ]
    if len(fit) < count:
        raise ValueError(
            f"sentences = {count}: only {len(fit)} of {len(sentences)} have at least {_MIN_DIGITS} digit tokens and at "
            f"most {_MAX_LENGTH} tokens; use at most {len(fit)} sentences, or other texts"
        )
    return random.Random(seed).sample(fit, count)


def with_sentences(data: NodeData, sentences: Sequence[Sentence]) -> NodeData:
    """Return ``data`` with the ``sentences`` as additional training examples.

    New words are added at the end of a vocabulary of words. A tokenizer stays unchanged, but the node's pieces are also
    those of the sentences.
    """
    vocabulary = data.extra["vocabulary"]
    assert isinstance(vocabulary, (WordVocabulary, TokenizerVocabulary))
    if isinstance(vocabulary, WordVocabulary):
        words = dict.fromkeys((*vocabulary.words, *(word for one in sentences for word in one.words)))
        if len(words) > len(vocabulary.words):
            vocabulary = WordVocabulary(tuple(words))
    index = {word: number for number, word in enumerate(vocabulary.words)}
    added = padded([[index.get(word, UNKNOWN) for word in one.words] for one in sentences])
    train = data.splits["train"]
    width = max(train["ids"].shape[1], added["ids"].shape[1])
    ids = [pad(ids, (0, width - ids.shape[1])) for ids in (train["ids"], added["ids"])]
    joined = {
        "ids": torch.cat(ids),
        "length": torch.cat([train["length"], added["length"]]),
        "label": torch.cat([train["label"], torch.tensor([one.label for one in sentences])]),
    }
    if isinstance(vocabulary, PieceVocabulary):
        vocabulary = PieceVocabulary.of(vocabulary, joined["ids"], joined["length"])
    return replace(data, splits={**data.splits, "train": joined}, extra={**data.extra, "vocabulary": vocabulary})


def special_tokens(vocabulary: Vocabulary) -> frozenset[str]:
    """Return the tokens that a tokenizer adds around every text. Everybody knows them, so they do not count as
    recovered.
    """
    if isinstance(vocabulary, WordVocabulary):
        return frozenset()
    return frozenset(vocabulary.words[number] for number in vocabulary.encode([""], _LONGEST)[0])


def word_counts(texts: Iterable[str], vocabulary: Vocabulary) -> Counter[str]:
    """Count the words of texts, split as the vocabulary splits them."""
    words_of = _splitter(vocabulary)
    return Counter(word for text in texts for word in words_of(text))


def _splitter(vocabulary: Vocabulary) -> Callable[[str], list[str]]:
    if isinstance(vocabulary, WordVocabulary):
        return split_words
    words = vocabulary.words
    return lambda text: [words[number] for number in vocabulary.encode([text], _LONGEST)[0]]


class TextSubject(AuditSubject):
    """A classifier of texts. The victim keeps its word vectors for all methods; digit tokens are private."""

    sharings = SHARINGS
    methods = ("fedavg", "fedrecon", "fedvocab")
    attacks = ("subspace", "sparse", "dlg", "rows")
    private = PrivateParameters(("embedding.*",))
    #: How the paper describes its Table 2 and Figure 3 (Zhang et al., FedVocab, Section 4.2 and Appendix B.3).
    paper: ClassVar[Mapping[tuple[str, str], str]] = {
        ("fedavg", "known"): "almost all, digits too",
        ("fedrecon", "known"): "high, except digits",
        ("fedvocab", "foreign"): "almost zero",
    }

    def choose(
        self, task: TextTask, data: NodeData, folder: Path, count: int, seed: int
    ) -> tuple[NodeData, Sequence[Sentence]]:
        """Draw sentences of all texts and add them to the node's (:func:`.draw_sentences`)."""
        own = vocabulary_source(task.options, self.private) == "own"
        texts = read_corpus(folder, task.layout).train
        sentences = draw_sentences(texts, _vocabulary(data), count, own=own, seed=seed)
        return with_sentences(data, sentences), sentences

    def victim(self, task: TextTask, model: nn.Module, data: NodeData) -> Victim:
        embedding = model.get_submodule(word_table(task.options))
        vectors = embedding.whole() if isinstance(embedding, OwnRows) else embedding.weight
        assert isinstance(vectors, Tensor)
        # Every row of the table needs a distinct name, including ids that have no token.
        named = _vocabulary(data).words[: len(vectors)]
        words = tuple(word or f"[no. {number}]" for number, word in enumerate(named))
        padding = next((word for word in _PADDING if word in words), None)
        table = TokenTable(words, vectors.detach()[: len(words)].clone(), padding)
        return Victim(above_words(cast(TextClassifier, model)), table)

    def batch(self, data: NodeData, rows: Tensor, lengths: Tensor, labels: Tensor) -> Batch:
        return {"ids": rows.int(), "length": lengths, "label": labels}

    def special_tokens(self, data: NodeData) -> frozenset[str]:
        return special_tokens(_vocabulary(data))

    def frequencies(self, task: TextTask, data: NodeData, folder: Path) -> Mapping[str, int]:
        """Return the counts of the words of the test texts, on which no node trains."""
        texts = read_corpus(folder, task.layout).test.texts
        if not len(texts):
            raise ValueError(f"{folder}: has no test texts, which stand for public text")
        return word_counts(texts, _vocabulary(data))

    def is_private(self, word: str) -> bool:
        return is_digits(word)


def _vocabulary(data: NodeData) -> Vocabulary:
    return cast(Vocabulary, data.extra["vocabulary"])
