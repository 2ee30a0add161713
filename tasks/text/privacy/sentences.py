"""The sentences that are attacked: whose words, and which of the data's."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import pad

from tasks.base import NodeData
from tasks.text.corpus import Examples
from tasks.text.vocabulary import UNKNOWN, TokenizerVocabulary, Vocabulary, WordVocabulary, padded, split_words

from .measures import choose_sentences

_END = re.compile(r"(?<=[.!?])\s+")
_UNKNOWN = ("<unk>", "[UNK]")
_LONGEST = 64  # above the paper's 30, so that longer ones are seen to be


@dataclass(frozen=True)
class Sentence:
    """The words of a sentence, among them those that a tokenizer puts around it, and the class of its text."""

    words: tuple[str, ...]
    label: int


def draw_sentences(examples: Examples, vocabulary: Vocabulary, count: int, *, own: bool, seed: int) -> list[Sentence]:
    """``count`` of the sentences of all texts, at random (Zhang et al., Appendix A.3).

    A text ends a sentence where a full stop, an exclamation or a question mark stands before a space: whole texts of
    AG News are mostly longer than the paper's 30 tokens. A sentence qualifies as :func:`.choose_sentences` says. All
    its words are in the ``vocabulary``, unless that is the node's ``own``, which :func:`with_sentences` adds them to. Raises
    ``ValueError`` when too few qualify.
    """
    words_of = _splitter(vocabulary)
    known = set(vocabulary.words) - set(_UNKNOWN)
    found = [
        Sentence(tuple(words), int(label))
        for text, label in zip(examples.texts, examples.labels, strict=True)
        for part in _END.split(text)
        if any(map(str.isdigit, part)) and (words := words_of(part)) and (own or known.issuperset(words))
    ]
    chosen = choose_sentences([sentence.words for sentence in found], count, seed=seed)
    return [found[index] for index in chosen]


def with_sentences(data: NodeData, sentences: Sequence[Sentence]) -> NodeData:
    """``data`` of a node that has the ``sentences`` too: they are training examples, and their words in its vocabulary.

    Only a vocabulary of words grows, at its end, by the words that are new.
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
    return replace(data, splits={**data.splits, "train": joined}, extra={**data.extra, "vocabulary": vocabulary})


def special_tokens(vocabulary: Vocabulary) -> frozenset[str]:
    """The words that a tokenizer puts around every text: everybody knows them, so they are not recovered."""
    if isinstance(vocabulary, WordVocabulary):
        return frozenset()
    return frozenset(vocabulary.words[number] for number in vocabulary.encode([""], _LONGEST)[0])


def _splitter(vocabulary: Vocabulary) -> Callable[[str], list[str]]:
    if isinstance(vocabulary, WordVocabulary):
        return split_words
    words = vocabulary.words
    return lambda text: [words[number] for number in vocabulary.encode([text], _LONGEST)[0]]
