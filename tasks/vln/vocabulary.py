"""Words and numbers: the tokenizer of the Room-to-Room agents (Anderson et al., 2018; Tan et al., 2019)."""

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from fedapps.tasks.language import word

from fedapps.base.atomic import write_whole
from fedapps.base.errors import DataError
from fedapps.base.text_files import open_text

PAD, UNKNOWN, END, BEGIN = range(4)
RESERVED = ("<PAD>", "<UNK>", "<EOS>", "<BOS>")
MIN_COUNT = 5  # how often a word occurs in training instructions to have a number


@cache
def _words() -> re.Pattern[str]:
    return re.compile(f"({word()})")


def words_of(text: str) -> list[str]:
    """The lower-case words of a text (:mod:`fedapps.tasks.language`) and its punctuation marks.

    Punctuation that stands together is split into its marks, unless it is full stops alone: ``"...!"`` gives four
    marks, ``"..."`` one.
    """
    words: list[str] = []
    for part in (part.strip().lower() for part in _words().split(text.strip())):
        if part and all(mark in string.punctuation for mark in part) and set(part) != {"."}:
            words += list(part)
        elif part:
            words.append(part)
    return words


@dataclass(frozen=True)
class Vocabulary:
    """``words`` have the numbers from 4 on, in their order; 0 to 3 are :data:`RESERVED`."""

    words: tuple[str, ...]

    @classmethod
    def of(cls, texts: Iterable[str], size: int, min_count: int = MIN_COUNT) -> "Vocabulary":
        """The most frequent words that occur ``min_count`` times, so that no more than ``size`` numbers are used."""
        counts = Counter(word for text in texts for word in words_of(text))
        kept = sorted((word for word in counts if counts[word] >= min_count), key=lambda word: (-counts[word], word))
        return cls(tuple(kept[: max(0, size - len(RESERVED))]))

    @classmethod
    def read(cls, path: Path) -> "Vocabulary":
        """The words of a file, one to a line. Reserved words are skipped, as published lists have them."""
        if not path.is_file():
            raise DataError(f"vln.vocabulary-file = {str(path)!r}: no such file; name a file with one word to a line")
        with open_text(path) as file:
            words = [line.strip() for line in file]
        kept = tuple(word for word in words if word and word not in RESERVED)
        if not kept or len(set(kept)) < len(kept):
            raise DataError(f"{path}: expected one word to a line, each of them once")
        return cls(kept)

    def write(self, path: Path) -> None:
        """Write the words as :meth:`read` reads them."""
        write_whole(path, "".join(f"{word}\n" for word in self.words).encode())

    def __len__(self) -> int:
        return len(RESERVED) + len(self.words)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words, len(RESERVED))}

    def encode(self, text: str, max_length: int) -> list[int]:
        """The numbers of a text: ``<BOS>``, its words and ``<EOS>``, at most ``max_length``."""
        numbers = [self._numbers.get(word, UNKNOWN) for word in words_of(text)[: max_length - 2]]
        return [BEGIN, *numbers, END]

    def decode(self, numbers: Sequence[int]) -> list[str]:
        """The words up to the first ``<EOS>``, without reserved ones."""
        words = []
        for number in numbers:
            if number == END:
                break
            if number >= len(RESERVED):
                words.append(self.words[number - len(RESERVED)])
        return words
