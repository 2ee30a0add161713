"""Files of word vectors: all formats, read as vectors and as words."""

import io
import json
import os
import pickle
import zipfile

import numpy as np
import pytest
from fedapps.tasks.text.vector_files import read_vectors, read_words
from fedapps.tasks.text.vocabulary import SPECIAL, read_vocabulary
from fedapps.tasks.text.word_vectors import vectors_in
from hypothesis import given
from hypothesis import strategies as st

from fedapps.base.errors import DataError

#: With a word of spaces as in GloVe 840B, and no-break spaces and NEL as in GloVe Twitter 27B.
ODD = {"the": (0.5, -1), ". . .": (2, 0.25), "a\xa0b": (1, 1), "3\x85": (-1, 0), "at 5": (7, 8)}
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0\t\ufeff"), min_size=1, max_size=5)
NUMBERS = st.lists(st.floats(-9, 9, width=16), min_size=3, max_size=3)


def glove(vectors, header=False):
    head = f"{len(vectors)} {len(next(iter(vectors.values())))}\n" if header else ""
    return head + "".join(" ".join([word, *map(str, numbers)]) + "\n" for word, numbers in vectors.items())


def assert_read(path, vectors, width=2):
    rows, table = read_vectors(path, width)
    assert list(rows) == list(vectors)
    np.testing.assert_array_equal(table, np.array(list(vectors.values()), dtype=np.float32))
    assert read_vocabulary(path, 0, width=width).words == (*SPECIAL, *vectors)
    assert read_vocabulary(path, 2, width=width).words == (*SPECIAL, *vectors)[:4]


@pytest.mark.parametrize("header", [False, True])
@pytest.mark.parametrize("end", ["\n", " \n", "\r\n"])
def test_every_word_is_the_same_as_vector_and_as_word(tmp_path, header, end):
    path = tmp_path / "vectors.vec"
    path.write_bytes(glove(ODD, header).replace("\n", end).encode())
    assert_read(path, ODD)


@given(st.dictionaries(WORDS.filter(lambda word: word == word.strip(" ") and word not in SPECIAL), NUMBERS, min_size=1))
def test_what_was_written_is_read(tmp_path_factory, vectors):
    path = tmp_path_factory.getbasetemp() / "vectors.txt"
    path.write_text(glove(vectors, header=True), newline="\n")
    rows, table = read_vectors(path, 3)
    assert list(rows) == list(vectors)
    assert table.tolist() == list(vectors.values())
    assert [word for _, word in read_words(path, 0)] == list(vectors)


def test_the_archives_of_glove(tmp_path):
    with zipfile.ZipFile(tmp_path / "glove.zip", "w") as archive:
        for width in (2, 3):
            vectors = {word: (*numbers, 9)[:width] for word, numbers in ODD.items()}
            archive.writestr(f"glove.6B.{width}d.txt", glove(vectors))
    assert_read(tmp_path / "glove.zip", ODD)
    with pytest.raises(DataError, match=r"one file of 4 numbers per word; found glove\.6B\.2d\.txt, glove"):
        read_vectors(tmp_path / "glove.zip", 4)


@pytest.mark.parametrize(
    ("text", "width", "message"),
    [
        ("2 3\na 1 2 3\nb 4 5 6\n", 1, r"line 2: 3 numbers, but text\.embedding-width = 1"),
        ("3 2\na 1 2\nb 1 2\n", 2, "2 words, but the first line says 3; copy the file again"),
        ("3 2\na 1 2\nb 1\n", 2, "line 3: 1 numbers|line 2: 1 numbers|line 1: 1 numbers"),
        ("a 1 2 3\nb 1 2 3\n", 2, r"line 1: 3 numbers, but text\.embedding-width = 2"),
    ],
)
def test_headers_and_widths_that_do_not_fit(tmp_path, text, width, message):
    (tmp_path / "a.vec").write_text(text)
    with pytest.raises(DataError, match=message):
        read_vectors(tmp_path / "a.vec", width)


def test_duplicates_of_vectors_are_no_words_of_their_own(tmp_path):
    (tmp_path / "a.txt").write_text("a 1 2\nb 3 4\na 5 6\n")
    assert_read(tmp_path / "a.txt", {"a": (1, 2), "b": (3, 4)})


def test_a_list_of_words(tmp_path):
    (tmp_path / "a.txt").write_text("the\t12\nNew York\na\xa0b 3\n")
    assert [word for _, word in read_words(tmp_path / "a.txt", 0)] == ["the", "New", "a\xa0b"]


# -- binary files ----------------------------------------------------------------------------------------------


def word2vec(vectors, count=None):
    body = b"".join(word.encode() + b" " + np.array(v, dtype="<f4").tobytes() + b"\n" for word, v in vectors.items())
    return f"{count or len(vectors)} 2\n".encode() + body


def test_word2vec_in_binary(tmp_path):
    plain = {word: numbers for word, numbers in ODD.items() if " " not in word}
    (tmp_path / "a.bin").write_bytes(word2vec(plain))
    assert_read(tmp_path / "a.bin", plain)
    for content in (word2vec(plain, count=9), word2vec(plain)[:-3], b"", b"no header\n", b"99999999999999 99999999\n"):
        (tmp_path / "a.bin").write_bytes(content)
        with pytest.raises(DataError, match=r"a\.bin: cannot be read as word vectors of word2vec"):
            read_vectors(tmp_path / "a.bin", 2)
    (tmp_path / "a.bin").write_bytes(b"\xba\x16\x4f\x2f" + bytes(99))  # gensim never ends on a truncated one
    with pytest.raises(DataError, match=r"a\.bin: a model of fastText, .*; name the file \.vec beside it"):
        read_vectors(tmp_path / "a.bin", 2)
    (tmp_path / "a.bin").write_bytes(word2vec(plain))
    with pytest.raises(DataError, match=r"a\.bin: 2 numbers per word, but text\.embedding-width = 3: set it to 2"):
        read_vectors(tmp_path / "a.bin", 3)


def test_without_gensim_a_binary_file_names_the_extra(tmp_path, monkeypatch):
    (tmp_path / "a.bin").write_bytes(word2vec({"a": (1, 2)}))
    monkeypatch.setattr("fedapps.base.errors.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"text\.glove = .*a\.bin.* pip install 'fedapps\[vectors\]'"):
        vectors_in(tmp_path / "a.bin", 2)


@pytest.mark.parametrize("separately", [[], ["vectors"]])
def test_what_gensim_saved(tmp_path, separately):
    gensim = pytest.importorskip("gensim.models")
    saved = gensim.KeyedVectors(2)
    saved.add_vectors(list(ODD), np.array(list(ODD.values()), dtype=np.float32))
    saved.save(str(tmp_path / "a.kv"), separately=separately)
    assert_read(tmp_path / "a.kv", ODD)


class Evil:
    def __reduce__(self):
        return os.system, ("true",)


@pytest.mark.parametrize("kept", [Evil(), {"a": Evil()}, np.load, json.JSONDecodeError("a", "b", 0)])
def test_a_pickle_runs_nothing(tmp_path, kept):
    (tmp_path / "a.kv").write_bytes(pickle.dumps(kept))
    with pytest.raises(DataError, match=r"a\.kv: cannot be read as word vectors of gensim: it contains .*; save them"):
        read_vectors(tmp_path / "a.kv", 2)


class DamagedType:
    """NumPy raises a ``SystemError`` for the state of this dtype."""

    def __reduce__(self):
        return np.dtype, ("f4", False, True), 3


@pytest.mark.parametrize("kept", [{}, [1], None, io.BytesIO, DamagedType()])
def test_a_pickle_of_something_else(tmp_path, kept):
    (tmp_path / "a.kv").write_bytes(pickle.dumps(kept))
    with pytest.raises(DataError, match=r"a\.kv: .* word vectors of gensim"):
        read_vectors(tmp_path / "a.kv", 2)
