"""Tables that people have: without a header line, with labels that nobody listed, and mistakes in them."""

import re

import pytest
from fedapps.tasks.text.corpus import read_corpus
from fedapps.tasks.text.options import Options
from fedapps.tasks.text.task import TextTask

from fedapps.base.errors import DataError
from fedapps.deployment.check_node import check
from fedapps.launch.inputs import resolve

BY_NUMBER = {"dataset": "sms", "text-columns": "2", "label-column": "1"}
LINES = 'ham\tsee you "there\nspam\tWIN £5 now\nham\tok, at 7\n'


@pytest.fixture
def folder(tmp_path):
    for name in ("train.tsv", "test.tsv"):
        (tmp_path / name).write_text(LINES, encoding="utf-8")
    return tmp_path


def given(folder, **keys):
    return {"task": "text", "data-dir": str(folder), **{f"text.{key}": value for key, value in keys.items()}}


def test_a_table_without_a_header_is_read_by_numbers_and_its_labels_are_found(folder, capsys):
    found = resolve(given(folder, **BY_NUMBER), "runs")
    assert found["text.labels"] == "ham,spam"
    line = "2 labels in 3 training texts, which a deployment lists: --set text.labels=ham,spam\n"
    assert capsys.readouterr().err == line
    options = Options(dataset="sms", text_columns="2", label_column="1", labels=found["text.labels"])
    corpus = read_corpus(folder, options.layout())
    assert corpus.train.texts == ('see you "there', "WIN £5 now", "ok, at 7")
    assert corpus.train.labels.tolist() == [0, 1, 0]


def test_given_labels_and_known_data_sets_are_not_looked_for(folder):
    for keys in (BY_NUMBER | {"labels": "ham,spam"}, BY_NUMBER | {"classes": 2}, {"dataset": "agnews"}):
        assert not {"text.labels"} & (resolve(given(folder, **keys), "runs").keys() - {f"text.{key}" for key in keys})


def test_labels_with_commas_are_counted(folder, capsys):
    (folder / "train.tsv").write_text("a, b\tx\nc\ty\n")
    found = resolve(given(folder, **BY_NUMBER), "runs")
    assert (found["text.classes"], found.get("text.labels")) == (2, None)
    assert "--set text.classes=2 (a, b | c)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("keys", "content", "message"),
    [
        ({"text-columns": "3"}, LINES, r"line 1: no column 3; columns are counted from 1, and the line has 2"),
        ({"text-columns": "0"}, LINES, r"no column 1, 0; found ham, .* number them all, from 1, in a file"),
        ({"label-column": "team"}, LINES, r"no column team, 2; found ham, "),
        ({}, "ham\tx\nham\ty\n", r"column 1: only the label 'ham' in 2 training texts; .*text\.label-column"),
        ({"label-column": "2", "text-columns": "1"}, "".join(f"x\t{i}\n" for i in range(300)),
         r"column 2: 300 different labels in 300 training texts"),
        ({"source": "simulated"}, LINES, r"found test\.tsv, .* \(text\.source = 'simulated' reads only"),
        ({"dataset": "agnews"}, LINES, None),
        ({"train-files": "mails.csv"}, LINES, r"expected a file mails\.csv, .*\(text\.train-files names the files; "),
        ({"train-files": "train.xlsx"}, LINES, r"train\.xlsx: a spreadsheet; save the sheet as CSV in UTF-8"),
    ],
)  # fmt: skip
def test_mistakes_name_their_cause(folder, keys, content, message):
    (folder / "train.tsv").write_text(content, encoding="utf-8")
    (folder / "train.xlsx").write_bytes(b"PK")
    if message is None:  # of the files of a known data set, the task says it
        task = TextTask(Options(dataset="agnews"))
        with pytest.raises(DataError, match=r"found test\.tsv, .*\(these are the files of text\.dataset = 'agnews'"):
            task.load_node(folder, 0, 1)
        return
    with pytest.raises(DataError, match=message):
        resolve(given(folder, **BY_NUMBER | keys), "runs")


def test_a_deployed_node_prints_the_line_that_the_recipe_lacks(folder, tmp_path):
    recipe = tmp_path / "mine.toml"
    recipe.write_text('task = "text"\nmethods = "fedavg"\n[text]\ndataset = "sms"\n')
    columns = {"text.text-columns": "2", "text.label-column": "1"}
    with pytest.raises(ValueError, match=re.escape(f"{folder}: 2 labels in 3 training texts")) as raised:
        check(recipe, columns, folder, str(tmp_path / "state"))
    assert str(raised.value).endswith("--set text.labels=ham,spam")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("ham\tx\n\ty\nspam\tz\n", r"train\.tsv, line 2, column 1: no label; add it or remove the line \(1 in all\)"),
        ("ham\t\nspam\t\n", r"train\.tsv: all texts are empty \(text\.text-columns"),
    ],
)
def test_lines_without_a_label_and_texts_without_a_word(folder, content, message):
    (folder / "train.tsv").write_text(content)
    with pytest.raises(DataError, match=message):
        _read_all(folder)


def _read_all(folder):
    labels = resolve(given(folder, **BY_NUMBER), "runs")["text.labels"]
    return read_corpus(folder, Options(dataset="sms", text_columns="2", label_column="1", labels=labels).layout())


def test_labels_of_a_known_data_set_name_it(folder):
    layout = Options(train_files="train.tsv", text_columns="2", label_column="1").layout()
    with pytest.raises(DataError, match=r"label 'ham'; expected one of 1, 2, 3, 4 \(those of text\.dataset = 'agnews'"):
        read_corpus(folder, layout)


def test_a_folder_that_does_not_exist_is_named_first(tmp_path):
    with pytest.raises(DataError, match=r"data-dir = '.*nowhere': no such folder"):
        resolve(given(tmp_path / "nowhere", **BY_NUMBER), "runs")
