"""The reader of tables: formats, columns, and what it says of files that are wrong."""

import csv
import gzip
import io
import itertools
import json
import lzma

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from datasets import ClassLabel, Dataset, Features, Value
from fedapps.tasks.base import DataError
from hypothesis import given
from hypothesis import strategies as st

from fedapps.base.rows import json_lines
from fedapps.base.tables import columns_of, find_tables, read_table, refuse_spellings, stream_rows, table_names

PACKERS = {".gz": gzip.compress, ".xz": lzma.compress}
CSV = 'name,size,comment\nball,3,"round, ""red"""\n\nbox,4.5,"two\nlines"\n'
TSV = 'name\tsize\tcomment\nball\t3\tround, "red\nbox\t4.5\t\n'
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\r\x00"))
NUMBERS = st.floats(allow_nan=False, allow_infinity=False, width=32)
JSONL = '{"name": "ball", "size": 3, "more": [1]}\n\n{"size": 4.5, "name": "box"}\n'


def written(folder, name, text):
    path = folder / name
    path.write_bytes(PACKERS.get(path.suffix, bytes)(text.encode()))
    return path


@pytest.mark.parametrize("packed", ["", ".gz", ".xz"])
@pytest.mark.parametrize(
    ("ending", "text", "lines"), [(".csv", CSV, [2, 5]), (".tsv", TSV, [2, 3]), (".jsonl", JSONL, [1, 3])]
)
def test_every_format_gives_the_same_columns(tmp_path, ending, text, lines, packed):
    table = read_table(written(tmp_path, f"a{ending}{packed}", text), ["size", "name"], ["weight"])
    assert table.texts("name") == ["ball", "box"]
    np.testing.assert_array_equal(table.numbers("size"), [3.0, 4.5])
    assert table.lines == lines
    assert "weight" not in table
    assert len(table) == 2


def test_quotes_delimit_cells_in_csv_and_are_text_in_tsv(tmp_path):
    assert read_table(written(tmp_path, "a.csv", CSV), ["comment"]).texts("comment") == ['round, "red"', "two\nlines"]
    assert read_table(written(tmp_path, "a.tsv", TSV), ["comment"]).texts("comment") == ['round, "red', ""]


def test_columns_without_a_header_are_numbered(tmp_path):
    path = written(tmp_path, "a.csv", "3,x\n4,y\n")
    assert read_table(path, ["2"], header=False).texts("2") == ["x", "y"]
    with pytest.raises(DataError, match=r"a\.csv, line 1: no column 3; columns are counted from 1, and the line has 2"):
        read_table(path, ["3"], header=False, hint="see text.label-column")


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path):
    assert read_table(written(tmp_path, "a.csv", "\ufeffname\nx\n"), ["name"]).texts("name") == ["x"]


def test_a_stream_may_begin_with_a_byte_order_mark():
    assert list(json_lines(['\ufeff{"a": 1}\n', '{"a": 2}\n'])) == [(1, {"a": 1}), (2, {"a": 2})]


@pytest.mark.slow
@given(st.lists(st.tuples(TEXTS, NUMBERS), min_size=1))
def test_what_was_written_is_read(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("tables")
    file = io.StringIO()
    csv.writer(file, quoting=csv.QUOTE_ALL).writerows([("text", "number"), *rows])
    records = "".join(json.dumps({"text": text, "number": number}) + "\n" for text, number in rows)
    for name, text in (("a.csv", file.getvalue()), ("a.jsonl", records)):
        table = read_table(written(folder, name, text), ["number", "text"])
        assert table.texts("text") == [text for text, _ in rows]
        assert table.numbers("number").tolist() == [number for _, number in rows]


def test_cells_are_numbers_whole_numbers_or_words(tmp_path):
    table = read_table(written(tmp_path, "a.csv", "n,w\n1, Yes\n,no\n"), ["n", "w"])
    np.testing.assert_array_equal(table.numbers("n", missing=np.nan), [1.0, np.nan])
    assert table.words("w", {"yes": True, "no": False}).tolist() == [True, False]


@pytest.mark.parametrize(
    ("cells", "read", "message"),
    [
        (["1", "x"], "numbers", r"a\.csv, line 3, column c: 'x'; expected a finite number$"),
        (
            ["", "nan", "1"],
            "numbers",
            r"line 2, column c: ''; expected a finite number \(wrong in 2 rows: lines 2, 3\)",
        ),
        (["inf"], "numbers", "line 2, column c: 'inf'; expected a finite number$"),
        (["1e39"], "numbers", "line 2, column c: '1e39'; expected a finite number$"),  # infinite as float32
        (["1e19"], "integers", "line 2, column c: '1e19'; expected a whole number$"),
        (["1", "2.5"], "integers", "line 3, column c: '2.5'; expected a whole number$"),
        (["a", "c", "d"], "words", r"line 3, column c: 'c'; expected one of a, b \(wrong in 2 rows: lines 3, 4\)$"),
    ],
)
def test_a_wrong_cell_is_named(tmp_path, cells, read, message):
    table = read_table(written(tmp_path, "a.csv", "c,\n" + "".join(f"{cell},\n" for cell in cells)), ["c"])
    arguments = [{"a": 1, "b": 2}] if read == "words" else []
    with pytest.raises(DataError, match=message):
        getattr(table, read)("c", *arguments)


def test_a_missing_number_may_be_empty_but_not_wrong(tmp_path):
    table = read_table(written(tmp_path, "a.csv", "c,\n,\nx,\n"), ["c"])
    with pytest.raises(DataError, match=r"line 3, column c: 'x'; expected a finite number$"):
        table.numbers("c", missing=np.nan)


def test_optional_columns_can_be_required_later(tmp_path):
    table = read_table(written(tmp_path, "a.csv", "a,b\n1,2\n"), ["a"], ["c"])
    table.require(["a"])
    with pytest.raises(DataError, match=r"a\.csv, line 1: no column c; found a, b$"):
        table.require(["a", "c"])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "b,c\n", r"a\.csv, line 1: no column a; found b, c$"),
        ("a.csv", "a,b\n", r"a\.csv: has no rows; expected one per line$"),
        ("a.csv", "", r"a\.csv, line 1: no column a; found none$"),
        ("a.csv", "a,b\n1\n", r"a\.csv, line 2: 1 cells; expected 2, as in the header$"),
        ("a.csv", 'a\n"open\n', r"a\.csv, line 2: unexpected end of data; expected CSV"),
        ("a.jsonl", '{"a": 1}\n{"b": 1}\n', r"a\.jsonl, line 2: no column a; found b$"),
        ("a.jsonl", '{"a": [1]}\n', r"a\.jsonl, line 1, column a: \[1\]; expected a string or a number$"),
        ("a.jsonl", '{"a": true}\n', r"a\.jsonl, line 1, column a: True; expected a string or a number$"),
        ("a.jsonl", '{"a": 1}\n{"a": 1, "c": 2}\n', r"a\.jsonl, line 2: column c, which line 1 lacks; write it in all"),
        ("a.jsonl", '{"a": 1, "a": 2}\n', r"line 1: .* is not JSON: an object has the name 'a' twice"),
        ("a.csv", "a,b,a\n1,2,3\n", r"a\.csv, line 1: column a occurs twice; keep or rename one of the two$"),
        ("a.jsonl", "7\n", r"a\.jsonl, line 1: '7'; expected a JSON object of names and values$"),
        ("a.jsonl", "a\n", r"a\.jsonl, line 1: 'a' is not JSON"),
        (
            "a.txt",
            "a\n1\n",
            r"a\.txt: unknown format; expected a file name that ends in \.parquet, \.csv, \.tsv, \.jsonl",
        ),
    ],
)
def test_a_wrong_file_is_named(tmp_path, name, text, message):
    with pytest.raises(DataError, match=message):
        read_table(written(tmp_path, name, text), ["a"], ["c"])


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.csv.xz", "a.jsonl"])
def test_a_file_that_cannot_be_read(tmp_path, name):
    with pytest.raises(DataError, match=r"a\..*: no such file; expected one with the columns x, y"):
        read_table(tmp_path / name, ["x", "y"])
    packed = name.endswith((".gz", ".xz"))
    (tmp_path / name).write_bytes(b"\xff\x00")
    with pytest.raises(DataError, match=r"a\..*: cannot be read or is damaged" if packed else "byte 1: 0x00, which"):
        read_table(tmp_path / name, ["x"])


def test_json_lines_keep_their_values_and_line_numbers(tmp_path):
    found = list(json_lines(written(tmp_path, "a.jsonl.gz", JSONL)))
    assert found == [(1, {"name": "ball", "size": 3, "more": [1]}), (3, {"size": 4.5, "name": "box"})]
    with pytest.raises(DataError, match="no such file"):
        list(json_lines(tmp_path / "gone.jsonl"))


# -- row by row ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "text"), [("a.csv", CSV), ("a.tsv", TSV), ("a.jsonl.gz", JSONL)])
def test_rows_of_a_file_are_those_of_the_table(tmp_path, name, text):
    path = written(tmp_path, name, text)
    table, rows = read_table(path, ["name", "size"]), list(stream_rows(path, ["name", "size"]))
    assert [row.cells["name"] for row in rows] == table.texts("name")
    assert [row.number("size") for row in rows] == table.numbers("size").tolist()
    assert [row.location for row in rows] == [f"{path}, line {line}" for line in table.lines]


def test_a_stream_has_json_lines_or_csv_and_is_read_as_it_comes():
    for text in (CSV, "\n" + CSV, JSONL, "\n \n" + JSONL):
        assert [row.cells["name"] for row in stream_rows(io.StringIO(text), ["name"])] == ["ball", "box"]
    endless = (f"{number}\n" if number else "n\n" for number in itertools.count())
    assert next(stream_rows(endless, ["n"])).number("n") == 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("y,v\n1,x\n", "<input>, line 2, column v: 'x'; expected a finite number"),
        ("y\n1\n", "<input>, line 1: no column v; found y"),
        ("", "<input>, line 1: no column y, v; found none"),
        ('{"y": 1}\n', "<input>, line 1: no column v; found y"),
        ('{"y": 1, "v": [2]}\n', "<input>, line 1, column v: \\[2\\]; expected a string or a number"),
    ],
)
def test_wrong_rows_of_a_stream_are_named(text, message):
    with pytest.raises(DataError, match=message):
        [row.number("v") for row in stream_rows(io.StringIO(text), ["y", "v"])]


@pytest.mark.parametrize("other", ["Sport", "sport ", " sport", "SPORT", "s\uff50ort"])
def test_labels_that_are_one_word_are_refused_with_their_rows(other):
    with pytest.raises(DataError, match=r"a\.csv: labels differ only in case or blanks: .*\(1 rows\).* one way$"):
        refuse_spellings(["sport", "sport", other], "a.csv", "")


def test_labels_that_are_different_words_are_accepted():
    refuse_spellings(["sport", "sports", "sport", "Ärger", "Arger", "1", "01"], "a.csv", "")


# -- Parquet -------------------------------------------------------------------------------------------------------


def parquet(path, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def of_hub(path, labels):
    """A file as the hub has it: numbers of classes, whose names are in the metadata."""
    features = Features({"text": Value("string"), "label": ClassLabel(names=["good", "bad"])})
    Dataset.from_dict({"text": ["x"] * len(labels), "label": labels}, features=features).to_parquet(str(path))
    return path


def test_parquet_gives_the_columns_of_the_other_formats(tmp_path):
    path = parquet(tmp_path / "a.parquet", name=["ball", "box"], size=[3.0, 4.5], more=[[1], [2]])
    table = read_table(path, ["size", "name"], ["weight"])
    assert (table.texts("name"), table.lines, table.names) == (["ball", "box"], [1, 2], ("name", "size", "more"))
    np.testing.assert_array_equal(table.numbers("size"), [3.0, 4.5])
    assert "weight" not in table
    rows = list(stream_rows(path, ["name"]))
    assert [(row.location, row.cells) for row in rows] == [
        (f"{path}, row 1", {"name": "ball"}), (f"{path}, row 2", {"name": "box"}),
    ]  # fmt: skip


def test_classes_of_the_hub_have_their_names(tmp_path):
    table = read_table(of_hub(tmp_path / "a.parquet", [1, 0]), ["label"])
    assert (table.texts("label"), table.classes) == (["bad", "good"], {"label": ("good", "bad")})


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: path.write_bytes(b"PAR1?PAR1"), r"a\.parquet: cannot be read as a Parquet file"),
        (lambda path: parquet(path, name=["x"]), r"a\.parquet: no column label; found name \(see label-column\)"),
        (
            lambda path: parquet(path, label=[1, None]),
            r"a\.parquet, row 2, column label: None; expected a string or a num",
        ),
        (lambda path: parquet(path, label=[[1]]), r"a\.parquet, row 1, column label: \[1\]; expected a string"),
        (lambda path: parquet(path, label=pyarrow.array([], "int64")), r"a\.parquet: has no rows"),
        (lambda path: of_hub(path, [0, -1]), r"a\.parquet, row 2, column label: -1; expected a class from 0 to 1"),
    ],
)
def test_parquet_files_that_are_wrong(tmp_path, write, message):
    write(tmp_path / "a.parquet")
    with pytest.raises(DataError, match=message):
        read_table(tmp_path / "a.parquet", ["label"], hint="see label-column")


def test_files_are_found_in_each_format_and_as_on_the_hub(tmp_path):
    assert find_tables(tmp_path, table_names("train")) == []
    parts = [parquet(tmp_path / "data" / f"train-0000{part}-of-00002.parquet", a=[1]) for part in (0, 1)]
    (tmp_path / "train_old.csv").touch()
    assert find_tables(tmp_path, table_names("train")) == parts
    parquet(tmp_path / "other" / "train-00000-of-00001.parquet", a=[1])
    with pytest.raises(DataError, match=r"Parquet files of train in several folders .*data, .*other\); set data-dir"):
        find_tables(tmp_path, table_names("train"))
    plain = written(tmp_path, "train.csv.gz", "a\n1\n")
    with pytest.raises(DataError, match=r"has train\.csv\.gz and train-00000.*keep one of them, or name it in text\.x"):
        find_tables(tmp_path, table_names("train"), "text.x")
    assert find_tables(tmp_path, ["train.csv"]) == [plain]


def test_the_names_of_columns(tmp_path):
    assert columns_of(written(tmp_path, "a.csv", "a,b\n1,2\n")) == ("a", "b")
    assert columns_of(written(tmp_path, "a.jsonl.gz", '{"a": 1, "b": 2}\n')) == ("a", "b")
    assert columns_of(parquet(tmp_path / "a.parquet", a=[1], b=[2])) == ("a", "b")
    assert columns_of(written(tmp_path, "b.csv", "a,b\n")) == ()
