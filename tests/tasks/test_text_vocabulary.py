"""Words, their numbers, and the vectors that they start from."""

import lzma
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from fedapps.tasks.base import DataError
from fedapps.tasks.text.vocabulary import (
    DIGITS,
    SPECIAL,
    UNKNOWN,
    TokenizerVocabulary,
    WordVocabulary,
    is_digits,
    padded,
    read_vocabulary,
)
from fedapps.tasks.text.word_vectors import drawn_vectors, vectors_in
from hypothesis import given
from hypothesis import strategies as st

TEXTS = ["b a a", "a b c", "d"]
GLOVE = "the 0.5 -1\nof 2 3e-1\n. . 1 1\nof 9 9\n"


def test_frequent_words_come_first_and_equals_by_alphabet():
    assert WordVocabulary.of(TEXTS).words == (*SPECIAL, "a", "b", "c", "d")
    assert WordVocabulary.of(TEXTS, size=3).words == (*SPECIAL, "a", "b", "c")
    assert WordVocabulary.of(TEXTS, min_count=2).words == (*SPECIAL, "a", "b")
    assert WordVocabulary.of([]).words == SPECIAL


def test_texts_become_numbers_up_to_a_length():
    vocabulary = WordVocabulary.of(TEXTS, size=2)
    assert vocabulary.encode(["A b x b", "", "<pad>"], 3) == [[2, 3, UNKNOWN], [UNKNOWN], [UNKNOWN] * 3]


@given(st.lists(st.text("abcd '\n", max_size=12), max_size=6), st.integers(1, 5))
def test_a_translation_is_encoding_anew(texts, max_length):
    """Of texts encoded in a vocabulary with all their words."""
    everybody, own = WordVocabulary.of(texts), WordVocabulary.of(TEXTS)
    once = own.translation(everybody)
    encoded = [once[numbers].tolist() for numbers in everybody.encode(texts, max_length)]
    assert encoded == own.encode(texts, max_length)
    assert all(1 <= len(numbers) <= max_length for numbers in encoded)


@pytest.mark.parametrize(
    ("token", "digits"),
    [
        ("2004", True),
        ("##12", True),
        ("Ġ7", True),
        ("▁7", True),
        ("2.5", False),
        ("x1", False),
        ("##s", False),
        ("##", False),
        ("", False),
        (DIGITS, False),
    ],
)
def test_tokens_of_digits(token, digits):
    assert is_digits(token) is digits


def test_digit_words_of_a_nodes_own():
    """Public words keep their order and their numbers are the same on all nodes; digits come behind them."""
    public = WordVocabulary((*SPECIAL, "a", "1984", "b"))
    own = public.with_digits_of(["7 b c 12 12", "7 12"])
    assert own.words == (*SPECIAL, "a", "b", DIGITS, "12", "7")
    assert own.encode(["b 7 c 1984 12"], 9) == [[3, 6, UNKNOWN, 4, 5]]
    everybody = WordVocabulary((*SPECIAL, "c", "1984", "12", "a"))
    assert own.translation(everybody).tolist() == [0, 1, UNKNOWN, 4, 5, 2]
    assert public.with_digits_of([]).words == (*SPECIAL, "a", "b", DIGITS)


@given(st.lists(st.text("ab12 ", max_size=12), max_size=6))
def test_a_translation_to_digits_of_ones_own_is_encoding_anew(texts):
    everybody, own = WordVocabulary.of(texts), WordVocabulary.of(TEXTS).with_digits_of(["1 a 22", "ab 12"])
    once = own.translation(everybody)
    assert [once[numbers].tolist() for numbers in everybody.encode(texts, 9)] == own.encode(texts, 9)


def test_padding_fills_up_behind():
    batch = padded([[3, 4], [5], [6, 7, 8]])
    assert batch["ids"].tolist() == [[3, 4, 0], [5, 0, 0], [6, 7, 8]]
    assert batch["length"].tolist() == [2, 1, 3]
    assert (batch["ids"].dtype, batch["length"].dtype) == (torch.int32, torch.int64)


def test_a_vocabulary_in_a_file_of_words_or_vectors(tmp_path):
    (tmp_path / "words.txt").write_text("<unk>\nthe 0.1 0.2\n\nof 1 2\na\n")
    assert read_vocabulary(tmp_path / "words.txt", 0).words == (*SPECIAL, "the", "of", "a")
    first = read_vocabulary(tmp_path / "words.txt", 2)
    assert first.words == (*SPECIAL, "the", "of")
    assert read_vocabulary(tmp_path / "words.txt", 2) is first
    (tmp_path / "words.txt").write_text("a\nb\na\n")
    with pytest.raises(DataError, match=r"words\.txt', line 3: the word 'a' occurs for the second time"):
        read_vocabulary(tmp_path / "words.txt", 0)
    with pytest.raises(DataError, match=r"text\.vocabulary-file = '.*gone\.txt': cannot be read"):
        read_vocabulary(tmp_path / "gone.txt", 0)


def test_a_tokenizer_in_a_file(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "token": 1, "##s": 2, "of": 4}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "t.json"))
    vocabulary = read_vocabulary(tmp_path / "t.json", 0)
    assert isinstance(vocabulary, TokenizerVocabulary)
    assert vocabulary.words == ("[UNK]", "token", "##s", "", "of")
    assert vocabulary.encode(["tokens of x", ""], 3) == [[1, 2, 4], [0]]
    assert vocabulary.encode(["token \ud83d of"], 3) == [[1, 0, 4]], "half of a character"
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(DataError, match=r"t\.json': expected the JSON of a tokenizer"):
        read_vocabulary(tmp_path / "t.json", 0)


@pytest.mark.parametrize("words", [{"a": 0}, {"a": 0, "[UNK]": 10**6}])
def test_a_tokenizer_that_would_fail_later(tmp_path, words):
    """Without its unknown token, or with numbers that would need an embedding of a million rows."""
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordPiece(words, unk_token="[UNK]")).save(str(tmp_path / "t.json"))
    with pytest.raises(DataError, match=r"t\.json': expected the JSON of a tokenizer: "):
        read_vocabulary(tmp_path / "t.json", 0)


def test_vectors_by_word_and_the_others_at_random(tmp_path):
    path = tmp_path / "glove.txt.xz"
    path.write_bytes(lzma.compress(GLOVE.encode()))
    vectors = vectors_in(path, 2)
    assert vectors.rows == {"the": 0, "of": 1, ". .": 2}
    words = (*SPECIAL, "of", "x", "the")
    table = vectors.start(words, seed=0)
    np.testing.assert_allclose(table[[2, 4]], [[2, 0.3], [0.5, -1]], rtol=1e-6)
    assert vectors.deviation == pytest.approx(np.std([0.5, -1, 2, 0.3, 1, 1]))
    torch.testing.assert_close(table[[0, 1, 3]], drawn_vectors((*SPECIAL, "x"), 2, 0) * vectors.deviation)
    assert vectors.share_of(words[2:]) == pytest.approx(2 / 3)
    assert torch.equal(vectors.start(words, 0), table)
    assert torch.equal(vectors.start(words, 1)[[2, 4]], table[[2, 4]])
    table[2] = 0  # a node's table is its own
    assert vectors.start(words, 0)[2].tolist() == pytest.approx([2, 0.3])


@pytest.mark.parametrize(
    ("text", "width", "message"),
    [
        (GLOVE, 3, r"line 1: 2 numbers, but text\.embedding-width = 3: set it to the number of numbers per line"),
        ("the 1 2\nof 1 two\n", 2, r"line 2, word 'of': .*; expected 2 numbers"),
        ("the 1 2\nof 1 nan\n", 2, r"word 'of': expected finite numbers"),
        ("", 2, "has no word vectors"),
    ],
)
def test_vectors_that_are_none(tmp_path, text, width, message):
    (tmp_path / "glove.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        vectors_in(tmp_path / "glove.txt", width)


def test_vectors_that_cannot_be_read(tmp_path):
    (tmp_path / "glove.txt.gz").write_bytes(b"no gzip")
    for name in ("glove.txt.gz", "gone.txt"):
        with pytest.raises(DataError, match=r"text\.glove = .*cannot be read or is damaged"):
            vectors_in(tmp_path / name, 2)
        with pytest.raises(DataError, match=r"text\.own-starts = .*cannot be read or is damaged"):
            vectors_in(tmp_path / name, 2, "text.own-starts")


@pytest.mark.skipif("FEDAPPS_DATA" not in os.environ, reason="FEDAPPS_DATA names no folder of real data")
def test_published_vectors():
    path = Path(os.environ["FEDAPPS_DATA"]) / "text" / "glove" / "glove.6B.50d.subset.txt.xz"
    vectors = vectors_in(path, 50)
    assert vectors.table.shape == (7844, 50)
    np.testing.assert_allclose(vectors.table[vectors.rows["the"], :2], [0.418, 0.24968])
    assert read_vocabulary(path, 100).words[2] == "the"
