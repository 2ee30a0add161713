"""Where texts come from: folders, deployed nodes, the hub, published data."""

import gzip
import json
import lzma
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, Value
from fedapps.tasks.base import DataError
from fedapps.tasks.text.corpus import Columns, class_indices, classes_of, read_corpus, read_rows
from fedapps.tasks.text.options import Options
from fedapps.tasks.text.sources import COMMON, TOPIC, draw_text, write_corpus, write_examples
from fedapps.tasks.text.task import TextTask
from text_world import model_for, own_words, texts, words_of

from fedapps.base.tables import find_tables

REAL = pytest.mark.skipif("FEDAPPS_DATA" not in os.environ, reason="FEDAPPS_DATA names no folder of real data")


def test_a_deployed_node_has_a_folder_of_its_own(tmp_path):
    folder = tmp_path / "bakery"
    folder.mkdir()
    (folder / "train.csv").write_text("says,mood\nfine day,good\nrain again,bad\nso so,bad\n")
    options = Options(
        dataset="moods", text_columns="says", label_column="mood", labels="good,bad", hidden=4, embedding_width=3
    )
    data = own_words(options).load_all(folder)
    assert (data.key, set(data.splits), data.groups) == ("bakery", {"train"}, {"most_frequent": "bad"})
    assert data.splits["train"]["label"].tolist() == [0, 1, 1]
    metrics = own_words(options).evaluate(model_for(own_words(options), data), data, seed=0, final=True).metrics
    assert metrics == {"vocabulary.words": 5.0}
    (folder / "test.jsonl").write_text('{"says": "fine", "mood": "good"}\n')
    assert own_words(options).load_all(folder).count("test") == 1
    with pytest.raises(DataError, match="3 training texts are too few for 4 nodes: decrease num-nodes"):
        own_words(options).load_node(folder, 0, 4)
    with pytest.raises(DataError, match="1 test texts are too few for 3 nodes: decrease num-nodes"):
        own_words(options).load_node(folder, 0, 3)
    (folder / "test.jsonl").unlink()
    task, classes = own_words(replace(options, test_share=0.0)), ("good", "bad")
    with pytest.raises(DataError, match=r"no test texts; .*text\.test-share above 0 holds some out"):
        task.read_with(data.extra["vocabulary"], classes, folder, 0, 3)


def test_labels_of_an_unknown_data_set_are_sorted_and_counted(tmp_path):
    (tmp_path / "train.tsv").write_text("text\tlabel\na\t10\nb\t9\nc\t10\n")
    (tmp_path / "test.tsv").write_text("text\tlabel\na\t9\n")
    data = own_words(Options(dataset="mine", classes=2, validation_share=0.0)).load_node(tmp_path, 0, 1)
    assert data.splits["train"]["label"].tolist() == [1, 0, 1]
    assert data.splits["test"]["label"].tolist() == [0]
    with pytest.raises(DataError, match=r"2 different labels in the training files \(9, 10\), but text\.classes = 3"):
        TextTask(Options(dataset="mine", classes=3)).load_all(tmp_path)
    (tmp_path / "test.tsv").write_text("text\tlabel\na\t8\n")
    with pytest.raises(DataError, match=r"test\.tsv, line 2, column label: label '8'; expected one of 9, 10"):
        TextTask(Options(dataset="mine", classes=2)).load_all(tmp_path)


def test_missing_files_are_named(tmp_path):
    task = TextTask()
    with pytest.raises(DataError, match=r"no training texts; expected a file train\.csv or train_partial\.csv"):
        task.load_all(tmp_path)
    (tmp_path / "train.csv").write_text('"1","a","b"\n')
    with pytest.raises(DataError, match=r"no test texts; expected a file test\.csv"):
        task.load_node(tmp_path, 0, 1)
    with pytest.raises(DataError, match=r"node 3 of 3: expected an index from 0 to 2"):
        task.load_node(tmp_path, 3, 3)


def test_files_stand_in_for_nothing_without_being_asked(tmp_path):
    assert not TextTask().has_world
    with pytest.raises(DataError, match=r"text\.source = 'files': set data-dir to the folder of agnews"):
        TextTask().make_world(tmp_path, 2, seed=0)


class TestHub:
    """Data sets of the hub, which is not reached here."""

    @pytest.fixture
    def asked(self, monkeypatch):
        import datasets

        asked = []

        def load_dataset(name, split):
            asked.append((name, split))
            return datasets.Dataset.from_dict({"sentence": ["good one", "bad"] * 4, "label": [1, 0] * 4})

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        return asked

    def test_a_known_one_is_written_as_the_task_reads_it(self, asked, tmp_path):
        task = TextTask(Options(source="hub", dataset="sst2", validation_share=0.0))
        task.make_world(tmp_path, 2, seed=0)
        assert asked == [("stanfordnlp/sst2", "train"), ("stanfordnlp/sst2", "validation")]
        assert task.load_node(tmp_path, 0, 2).count("train") == 4
        assert texts(task.load_all(tmp_path), "train") == {(1, "good one"), (0, "bad")}

    def test_any_other_by_its_name(self, asked, tmp_path):
        options = Options(source="hub", dataset="me/mine", text_columns="sentence", classes=2, test_files="held")
        TextTask(options).make_world(tmp_path, 2, seed=0)
        assert asked == [("me/mine", "train"), ("me/mine", "held")]
        assert TextTask(options).load_node(tmp_path, 1, 2).count("test") == 4
        with pytest.raises(DataError, match=r"'me/mine' has no column text; found sentence, label"):
            TextTask(replace(options, text_columns="")).make_world(tmp_path, 2, seed=0)

    def test_one_that_cannot_be_had(self, monkeypatch, tmp_path):
        import datasets

        def load_dataset(name, split):
            raise ConnectionError("no route")

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        with pytest.raises(
            DataError, match=r"'fancyzhx/ag_news', split 'train', cannot be downloaded .*data-dir to their folder"
        ):
            TextTask(Options(source="hub")).make_world(tmp_path, 2, seed=0)


@REAL
@pytest.mark.parametrize(("dataset", "sizes"), [("agnews", (341, 37, 76)), ("sst2", (606, 67, 18))])
def test_a_hundred_nodes_of_the_papers_data(dataset, sizes):
    folder = Path(os.environ["FEDAPPS_DATA"]) / "text"
    task = own_words(Options(dataset=dataset))
    nodes = [task.load_node(folder / dataset, k, 100) for k in range(0, 100, 20)]
    assert {(n.count("train"), n.count("validation"), n.count("test")) for n in nodes} == {sizes}
    assert len({len(words_of(node)) for node in nodes}) > 1


MOODS = Options(dataset="moods", classes=2)


def test_labels_that_differ_in_case_or_blanks_are_one_class_written_in_two_ways(tmp_path):
    rows = ["a,sport", "b,sport", "c,Sport ", "d,news"]
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *rows]))
    reason = (
        r"train\.csv, column label: labels differ only in case or blanks: 'Sport ' \(1 rows\) and 'sport' \(2 rows\); "
        "write each in one way, or list them in text.labels"
    )
    with pytest.raises(DataError, match=reason):
        own_words(replace(MOODS, classes=3)).load_all(tmp_path)
    with pytest.raises(DataError, match=reason):
        TextTask.found_keys({"dataset": "moods"}, tmp_path)
    listed = own_words(replace(MOODS, labels="sport,Sport ,news".replace(" ", ""), classes=0))
    (tmp_path / "train.csv").write_text("text,label\na,sport\nb,Sport\nc,news\n")
    assert listed.load_all(tmp_path).splits["train"]["label"].tolist() == [0, 1, 2]


def test_two_files_that_could_be_the_training_texts(tmp_path):
    (tmp_path / "train.csv").write_text("text,label\na,0\nb,1\n")
    (tmp_path / "train.jsonl").write_text('{"text": "c", "label": "0"}\n')
    with pytest.raises(DataError, match=r"has train\.csv and train\.jsonl, and each could be meant; keep one"):
        own_words(MOODS).load_all(tmp_path)
    options = replace(MOODS, train_files="train.csv", validation_share=0.0)
    assert own_words(options).load_all(tmp_path).count("train") == 2


def test_a_parquet_file_of_the_hub_is_read_with_its_names_of_classes(tmp_path):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["good", "bad"])})
    examples = {"text": [f"text {number}" for number in range(10)], "label": [0, 1] * 5}
    (tmp_path / "data").mkdir()
    data = Dataset.from_dict(examples, features=features)
    data.to_parquet(str(tmp_path / "data" / "train-00000-of-00001.parquet"))
    keys, line = TextTask.found_keys({"dataset": "moods"}, tmp_path)
    assert keys == {"labels": "bad,good"}
    assert line == "2 labels in 10 training texts, which a deployment lists: --set text.labels=bad,good"
    read = own_words(Options(dataset="moods", test_share=0.0, **keys)).load_all(tmp_path)
    labels = [label for examples in read.splits.values() for label in examples["label"].tolist()]
    assert sorted(labels) == [0] * 5 + [1] * 5


def test_without_a_test_file_a_share_of_the_texts_is_held_out(tmp_path):
    lines = [f"word{number},{number % 2}" for number in range(20)]
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *lines]))
    options = replace(MOODS, test_share=0.25, validation_share=0.0, partition="iid")
    corpus = read_corpus(tmp_path, options.layout())
    texts = {*corpus.train.texts}, {*corpus.test.texts}
    assert [len(some) for some in texts] == [17, 3]  # each is drawn
    assert set.union(*texts) == {line.split(",")[0] for line in lines}
    assert [int(text.removeprefix("word")) % 2 for text in corpus.test.texts] == corpus.test.labels.tolist()
    nodes = [TextTask(options).load_node(tmp_path, node, 3) for node in range(3)]
    assert [node.count("train") for node in nodes] == [6, 6, 5]
    assert [node.count("test") for node in nodes] == [1, 1, 1]
    assert "train: 17 from train.csv; test: 3 from 25% of these, drawn; " in TextTask(options).describe_data(tmp_path)
    other = read_corpus(tmp_path, replace(options, partition_seed=1).layout())
    assert other.test.texts != corpus.test.texts
    with pytest.raises(DataError, match=r"no test texts; .*text\.test-share above 0 holds some out"):
        TextTask(replace(options, test_share=0.0)).load_node(tmp_path, 0, 3)
    (tmp_path / "test.csv").write_text("text,label\nother,0\n")
    assert len(read_corpus(tmp_path, options.layout()).train.texts) == 20


def test_no_text_that_trained_is_held_out_when_others_follow(tmp_path):
    """The data of a node that is asked again every week."""
    task, weeks = own_words(replace(MOODS, test_share=0.2, validation_share=0.2)), []
    for count in (300, 500):
        lines = [f"word{number},{number % 2}" for number in range(count)]
        (tmp_path / "train.csv").write_text("\n".join(["text,label", *lines]))
        data = task.load_own(tmp_path)
        assert task.own_profile(tmp_path).num_examples == data.count("train") == pytest.approx(0.64 * count, abs=30)
        trained = data.extra["vocabulary"].words[2:]  # the words of the training texts
        weeks.append((trained, {*read_corpus(tmp_path, task.layout).test.texts}))
    (first, tested), (second, tested_later) = weeks
    assert set(first) < set(second)
    assert tested < tested_later


def test_what_files_are_taken_for(tmp_path):
    (tmp_path / "train.csv").write_text("says,mood\nfine day,good\nrain again,bad\nso so,bad\n")
    options = Options(dataset="moods", text_columns="says", label_column="mood", classes=2)
    expected = "texts in the column says and labels in the column mood; train: 3 from train.csv; test: 0 from no file; "
    assert own_words(options).describe_data(tmp_path) == f"{expected}classes, with training texts: bad (2), good (1)"
    rows = [f"{'我们很喜欢这部电影' * 30},{label}" for label in ("bad", "good")]
    (tmp_path / "train.csv").write_text("\n".join(["says,mood", *rows]))
    found = own_words(options).describe_data(tmp_path)
    assert "; 100% of the words are of one letter ('我', '们', '很'): the language is written without spaces" in found
    assert found.endswith("; name a pretrained encoder of this language in text.model")


# Reading labelled texts: real files, every format, and files that are wrong.


NAMED = Columns(("title", "body"), "topic")
NUMBERED = Columns(("2", "3"), "1")
CSV = 'topic,title,body\nsport,"Win, at last","They ""won"".\nTwice."\nlaw,A,B\n'


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


def test_a_missing_column_is_named_with_the_options_that_name_columns(tmp_path):
    with pytest.raises(
        DataError, match=r"a\.csv, line 1: no column title, body; found topic, name \(text\.text-columns"
    ):
        read_rows(written(tmp_path / "a.csv", "topic,name\n1,2\n"), NAMED)


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


# Made-up texts.


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_classes_are_equally_frequent_and_told_by_their_words(tmp_path):
    write_corpus(tmp_path, 3, 900, 30, seed=1)
    train, test = read(tmp_path / "train.jsonl"), read(tmp_path / "test.jsonl")
    assert Counter(example["label"] for example in train) == {0: 300, 1: 300, 2: 300}
    assert Counter(example["label"] for example in test) == {0: 10, 1: 10, 2: 10}
    words = [Counter(w for e in train if e["label"] == label for w in e["text"].split()) for label in range(3)]
    # A naive count of words that a class has more than twice as often as the others tells most test examples.
    telling = [
        {word for word in words[k] if words[k][word] > 2 * (1 + max(words[j][word] for j in range(3) if j != k))}
        for k in range(3)
    ]
    right = [
        np.argmax([sum(w in telling[k] for w in example["text"].split()) for k in range(3)]) == example["label"]
        for example in test
    ]
    assert np.mean(right) > 0.85


def test_texts_have_common_words_own_words_and_numbers():
    words = [f"w{i}" for i in range(COMMON + 2 * TOPIC)]
    rng = np.random.default_rng(0)
    texts = [draw_text(words, 1, rng).split() for _ in range(400)]
    assert {len(text) for text in texts} == set(range(8, 25))
    drawn = [word for text in texts for word in text]
    numbers = [word for word in drawn if word.isdigit()]
    own = [word for word in drawn if word[0] == "w" and int(word[1:]) >= COMMON]
    assert abs(len(numbers) / len(drawn) - 0.05) < 0.01
    assert abs(len(own) / len(drawn) - 0.25) < 0.02
    assert all(int(word[1:]) >= COMMON + TOPIC for word in own)
    assert Counter(own).most_common(1)[0][0] == f"w{COMMON + TOPIC}"


def test_examples_are_written_as_they_are(tmp_path):
    write_examples(tmp_path / "a.jsonl", ['é "\n', ""], ["x", 1])
    assert read(tmp_path / "a.jsonl") == [{"text": 'é "\n', "label": "x"}, {"text": "", "label": 1}]
