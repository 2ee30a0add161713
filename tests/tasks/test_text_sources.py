"""Where texts come from: folders, deployed nodes, the hub, published data."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from datasets import ClassLabel, Dataset, Features, Value
from fedapps.tasks.base import DataError
from fedapps.tasks.text.corpus import read_corpus
from fedapps.tasks.text.options import Options
from fedapps.tasks.text.task import TextTask
from text_world import model_for, own_words, texts, words_of

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
    with pytest.raises(DataError, match="3 examples are too few for 4 nodes: decrease num-nodes"):
        own_words(options).load_node(folder, 0, 4)


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
    assert [len(some) for some in texts] == [15, 5]
    assert set.union(*texts) == {line.split(",")[0] for line in lines}
    assert [int(text.removeprefix("word")) % 2 for text in corpus.test.texts] == corpus.test.labels.tolist()
    nodes = [TextTask(options).load_node(tmp_path, node, 3) for node in range(3)]
    assert [node.count("train") for node in nodes] == [5, 5, 5]
    assert [node.count("test") for node in nodes] == [1, 1, 1]
    assert "train: 15 from train.csv; test: 5 from 25% of these, drawn; " in TextTask(options).describe_data(tmp_path)
    other = read_corpus(tmp_path, replace(options, partition_seed=1).layout())
    assert other.test.texts != corpus.test.texts
    with pytest.raises(DataError, match=r"no test texts; .*text\.test-share above 0 holds some out"):
        TextTask(replace(options, test_share=0.0)).load_node(tmp_path, 0, 3)
    (tmp_path / "test.csv").write_text("text,label\nother,0\n")
    assert len(read_corpus(tmp_path, options.layout()).train.texts) == 20


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
