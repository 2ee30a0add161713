"""Reading labelled texts: real files, every format, and files that are wrong."""

import gzip
import lzma
import os
from pathlib import Path

import numpy as np
import pytest
from fedapps.tasks.base import DataError
from fedapps.tasks.text.corpus import Columns, class_indices, classes_of, read_rows

from fedapps.base.tables import find_tables

NAMED = Columns(("title", "body"), "topic")
NUMBERED = Columns(("2", "3"), "1")
CSV = 'topic,title,body\nsport,"Win, at last","They ""won"".\nTwice."\nlaw,A,B\n'
JSONL = '{"topic": 3, "title": "A", "body": "B", "id": null}\n\n{"topic": -1, "title": "", "body": ""}\n'


def written(path: Path, text: str) -> Path:
    data = text.encode()
    path.write_bytes({".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)(data))
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.csv.xz"])
def test_named_columns_are_joined_and_lines_counted_where_an_example_ends(tmp_path, name):
    rows = read_rows(written(tmp_path / name, CSV), NAMED)
    assert rows.texts == ('Win, at last They "won".\nTwice.', "A B")
    assert rows.labels == ("sport", "law")
    assert rows.lines == (3, 4)


def test_numbered_columns_have_no_header(tmp_path):
    rows = read_rows(written(tmp_path / "a.csv", '"3","Title","Text"\n"1","b","c"\n'), NUMBERED)
    assert (rows.texts, rows.labels) == (("Title Text", "b c"), ("3", "1"))


def test_quotes_in_tsv_mean_nothing(tmp_path):
    rows = read_rows(written(tmp_path / "a.tsv", 'text\tlabel\n"so it is\t1\n'), Columns(("text",), "label"))
    assert (rows.texts, rows.labels) == (('"so it is',), ("1",))


def test_json_lines(tmp_path):
    rows = read_rows(written(tmp_path / "a.jsonl.gz", JSONL), NAMED)
    assert (rows.texts, rows.labels, rows.lines) == (("A B", " "), ("3", "-1"), (1, 3))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.csv",
            "topic,name\n1,2\n",
            r"a\.csv, line 1: no column title, body; found topic, name \(text\.text-columns",
        ),
        ("a.csv", CSV + "law,only", r"line 5: 2 cells; expected 3, as in the header"),
        ("a.csv", 'topic,title,body\n1,"open', r"a\.csv, line 2: unexpected end of data; expected CSV"),
        ("a.csv", "topic,title,body\n", "a.csv: has no rows"),
        ("a.csv", "", "a.csv, line 1: no column topic, title, body; found none"),
        ("a.jsonl", '{"topic": 1', r"line 1: '\{\"topic\": 1' is not JSON"),
        ("a.jsonl", "[1]", r"line 1: '\[1\]'; expected a JSON object"),
        ("a.jsonl", '{"topic": 1, "title": null, "body": ""}', "line 1, column title: None; expected a string"),
        ("a.jsonl", '{"topic": true, "title": "", "body": ""}', "line 1, column topic: True; expected a string"),
        ("a.txt", "x", r"unknown format; expected a file name that ends in \.parquet, \.csv, \.tsv, \.jsonl, \.gz or "),
        ("a.parquet", "x", r"a\.parquet: cannot be read as a Parquet file"),
    ],
)
def test_errors_name_the_place(tmp_path, name, text, message):
    with pytest.raises(DataError, match=message):
        read_rows(written(tmp_path / name, text), NAMED)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match=r"gone\.csv: no such file"):
        read_rows(tmp_path / "gone.csv", NAMED)
    for name in ("a.csv.gz", "a.csv.xz"):
        (tmp_path / name).write_bytes(b"\xff\x00\xff")
        with pytest.raises(DataError, match="cannot be read or is damaged"):
            read_rows(tmp_path / name, NAMED)
    cut = gzip.compress(CSV.encode())[:-12]
    (tmp_path / "cut.csv.gz").write_bytes(cut)
    with pytest.raises(DataError, match="cannot be read or is damaged"):
        read_rows(tmp_path / "cut.csv.gz", NAMED)


def test_labels_count_by_value_or_by_name_or_as_told(tmp_path):
    def rows(labels):
        return read_rows(written(tmp_path / "a.csv", "".join(f"{label},x\n" for label in labels)), Columns(("2",), "1"))

    assert classes_of([rows(["10", "9"]), rows(["9", "-1"])]) == ("-1", "9", "10")
    assert classes_of([rows(["b", "10", "a"])]) == ("10", "a", "b")
    np.testing.assert_array_equal(class_indices(rows(["b", "a", "b"]), ("a", "b")), [1, 0, 1])
    with pytest.raises(DataError, match=r"a\.csv, line 2, column 1: label 'c'; expected one of b, a \(text\.labels\)"):
        class_indices(rows(["a", "c"]), ("b", "a"))


def test_the_first_name_that_is_there_counts_and_compressed_copies_do_not(tmp_path):
    for name in ("train.csv", "train.csv.gz", "part-2.csv", "part-1.csv"):
        (tmp_path / name).touch()
    assert find_tables(tmp_path, ["none.csv", "train.csv"]) == [tmp_path / "train.csv"]
    (tmp_path / "train.csv").unlink()
    assert find_tables(tmp_path, ["train.csv", "part-*.csv"]) == [tmp_path / "train.csv.gz"]
    assert find_tables(tmp_path, ["part-*.csv"]) == [tmp_path / "part-1.csv", tmp_path / "part-2.csv"]
    assert find_tables(tmp_path, ["none.csv"]) == []


@pytest.mark.skipif("FEDAPPS_DATA" not in os.environ, reason="FEDAPPS_DATA names no folder of real data")
def test_the_published_files():
    folder = Path(os.environ["FEDAPPS_DATA"]) / "text"
    news = read_rows(folder / "agnews" / "test.csv.xz", NUMBERED)
    np.testing.assert_array_equal(np.bincount(class_indices(news, ("1", "2", "3", "4"))), [1900] * 4)
    assert news.texts[0].startswith("Fears for T N pension after talks Unions representing")
    reviews = Columns(("sentence",), "label")
    assert len(read_rows(folder / "sst2" / "train.tsv.xz", reviews).texts) == 67349
    assert len(read_rows(folder / "sst2" / "test-labeled.tsv.xz", reviews).texts) == 1821
