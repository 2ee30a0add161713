"""Simulated labelled texts: words of a topic among common words, with an occasional number."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedapps.base.seeding import generator

COMMON, TOPIC = 400, 60  # number of words common to all classes, number of words of each class
_ONSETS, _VOWELS = "bdfgklmnprstvz", "aeiou"


def write_corpus(folder: Path, classes: int, train: int, test: int, seed: int) -> None:
    """Write ``train.jsonl`` and ``test.jsonl`` into ``folder``.

    Each example is an object with ``text`` and ``label``, a whole number below ``classes``. All classes are equally
    frequent.

    Parameters
    ----------
    folder : Path
        The folder, which is created if necessary.
    classes : int
        The number of classes.
    train, test : int
        The numbers of examples.
    seed : int
        The seed, which determines the corpus.
    """
    folder.mkdir(parents=True, exist_ok=True)
    words = _invent(COMMON + classes * TOPIC, generator(seed, "corpus.words"))
    for name, count in (("train", train), ("test", test)):
        rng = generator(seed, "corpus", name)
        labels = rng.permutation(np.arange(count) % classes)
        texts = [draw_text(words, label, rng) for label in labels]
        write_examples(folder / f"{name}.jsonl", texts, labels.tolist())


def draw_text(words: Sequence[str], label: int, rng: np.random.Generator) -> str:
    """Draw a text of 8 to 24 words, about a quarter from the topic ``label`` and a twentieth numbers.

    The first :data:`COMMON` of ``words`` are common to all classes, the next :data:`TOPIC` are those of class 0, and so
    on. Within each group, frequencies follow Zipf's law.
    """
    length = int(rng.integers(8, 25))
    kinds = rng.random(length)
    common = rng.choice(COMMON, size=length, p=_zipf(COMMON))
    own = COMMON + label * TOPIC + rng.choice(TOPIC, size=length, p=_zipf(TOPIC))
    numbers = rng.integers(2, 2030, size=length)
    chosen = np.where(kinds < 0.25, own, common)
    return " ".join(
        str(number) if kind > 0.95 else words[word] for kind, number, word in zip(kinds, numbers, chosen, strict=True)
    )


def write_examples(path: Path, texts: Sequence[str], labels: Sequence[int | str]) -> None:
    """Write a file of JSON lines with one object ``{"text", "label"}`` per example."""
    with path.open("w", encoding="utf-8") as file:
        for text, label in zip(texts, labels, strict=True):
            file.write(json.dumps({"text": text, "label": label}, ensure_ascii=False) + "\n")


def _zipf(count: int) -> np.ndarray:
    weights: np.ndarray = 1 / np.arange(1, count + 1)
    shares: np.ndarray = weights / weights.sum()
    return shares


def _invent(count: int, rng: np.random.Generator) -> list[str]:
    """Distinct words of two to four syllables, in random order."""
    words: dict[str, None] = {}
    while len(words) < count:
        syllables = int(rng.integers(2, 5))
        words["".join(rng.choice(list(_ONSETS)) + rng.choice(list(_VOWELS)) for _ in range(syllables))] = None
    return list(words)
