"""Chooses the sentences that are attacked."""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from fedapps.tasks.base import NodeData
from fedapps.tasks.privacy.subject import Sentence
from fedapps.tasks.text.corpus import Examples
from fedapps.tasks.text.vocabulary import (
    UNKNOWN,
    TokenizerVocabulary,
    Vocabulary,
    WordVocabulary,
    is_digits,
    padded,
    split_words,
)
from torch.nn.functional import pad

_END = re.compile(r"(?<=[.!?])\s+")
_UNKNOWN = ("<unk>", "[UNK]")
_LONGEST = 64  # more than the paper's 30, so that longer sentences are recognised as such


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
    found = [
        Sentence(tuple(words), int(label))
        for text, label in zip(examples.texts, examples.labels, strict=True)
        for part in _END.split(text)
        if any(map(str.isdigit, part)) and (words := words_of(part)) and (own or known.issuperset(words))
    ]
    chosen = choose_sentences([sentence.words for sentence in found], count, seed=seed)
    return [found[index] for index in chosen]


def choose_sentences(
    sentences: Sequence[Sequence[str]], count: int, *, seed: int, min_digits: int = 3, max_length: int = 30
) -> list[int]:
    """Draw the indices of ``count`` sentences with at least 3 digit tokens and at most 30 tokens (Appendix A.3).

    Raises
    ------
    ValueError
        Too few sentences qualify.
    """
    fit = [
        index
        for index, sentence in enumerate(sentences)
        if len(sentence) <= max_length and sum(map(is_digits, sentence)) >= min_digits
    ]
    if len(fit) < count:
        raise ValueError(
            f"sentences = {count}: only {len(fit)} of {len(sentences)} have at least {min_digits} digit tokens and at "
            f"most {max_length} tokens; use at most {len(fit)} sentences, or other texts"
        )
    return random.Random(seed).sample(fit, count)


def with_sentences(data: NodeData, sentences: Sequence[Sentence]) -> NodeData:
    """Return ``data`` with the ``sentences`` as additional training examples.

    New words are added at the end of a vocabulary of words. A tokenizer stays unchanged.
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
