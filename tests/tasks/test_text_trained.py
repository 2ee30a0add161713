"""A trained classifier of texts: its predictions, what it reads, and what its folder has."""

import io
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from fedapps.tasks.base import DataError
from fedapps.tasks.partitioners import adjust_logits
from fedapps.tasks.text.task import TextTask
from fedapps.tasks.text.trained import TextTrained
from fedapps.tasks.trained import Origin, TrainedModel
from hypothesis import given, settings
from hypothesis import strategies as st
from text_world import FEDRECON, FEDVOCAB, NODES, OWN_START, SHARED, SMALL, TEXTS, model_for, model_of, renamed
from tiny_encoder import encoder_folder
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoModelForSequenceClassification

from fedapps.registry.tasks import task_class
from fedapps.trained.export import export

FACTS = {"classes": ["0", "1"], "words": ["<pad>", "<unk>", "win", "loss", "tie", "goals", "in"]}


def trained(scores, privacy=FEDVOCAB, options=SMALL, node=1):
    """The untrained model of a node, as a run would leave it."""
    task = TextTask(options).under(privacy)
    data = task.load_node(scores, node, NODES)
    return TextTrained(task, model_for(task, data), task.facts(data), Origin(node=data.key), private=privacy, own=data)


class Says(nn.Module):
    """A classifier that counts the words 4 and 5 of a text, and says the numbers as its logits."""

    def forward(self, ids, length):
        inside = torch.arange(ids.shape[1]) < length[:, None]
        return torch.stack([((ids == word) & inside).sum(dim=1).float() for word in (4, 5)], dim=1)


# -- predictions ------------------------------------------------------------------------------------------------


def test_predictions_by_hand(scores):
    model = trained(scores)
    model.module = Says()
    four, five = model.vocabulary.words[4:6]
    found = model.predict([f"{four} unheard {four}", five, ""])
    assert found.labels.tolist() == [0, 1, 0]
    assert found.names == ("0", "1", "0")
    odds = np.exp([2.0, 1.0])
    assert found.probabilities == pytest.approx(
        np.array([[odds[0], 1], [1, odds[1]], [0.5, 0.5]]) / [[odds[0] + 1], [odds[1] + 1], [1]], abs=1e-6
    )
    assert len(found) == 3
    assert len(model.predict([])) == 0


def test_own_label_shares_shift_the_predictions_of_a_model_with_adjusted_logits(scores):
    model = trained(scores)
    model.module = Says()
    adjust_logits(model.module.eval(), torch.tensor([0.0, 5.0], dtype=torch.float64))
    four = model.vocabulary.words[4]
    assert model.predict([four]).names == ("1",)
    assert model.predict([four], own_shares=False).names == ("0",)
    assert model.predict([four]).names == ("1",)


def test_files_and_exports_have_the_answers_for_the_nodes_own_label_shares(scores):
    model = trained(scores)
    model.module = Says()
    adjust_logits(model.module.eval(), torch.tensor([0.0, 5.0], dtype=torch.float64))
    (row,) = model.rows([io.StringIO(model.vocabulary.words[4])])
    assert row["label"] == "1"
    logits = model.network().module(torch.tensor([[4]], dtype=torch.int32), torch.tensor([1]))
    assert logits.tolist() == [[1.0, 5.0]]


@pytest.mark.parametrize("kind", ["distilbert", "Roberta"])
def test_a_classifier_of_transformers_has_them_in_its_biases(scores, tmp_path, kind):
    options = replace(SMALL, model=str(encoder_folder(tmp_path / "encoder", kind)), max_length=8)
    model = trained(scores, SHARED, options)
    adjust_logits(model.module, torch.tensor([0.5, -2.0], dtype=torch.float64))
    exported = export(model, "huggingface", tmp_path / "exported")  # compares it with the network
    assert exported.written.difference.absolute < 1e-5
    ids = torch.tensor(model.vocabulary.encode(["one two"], 8))
    with torch.no_grad():
        expected = model.module(ids, torch.tensor([ids.shape[1]])) + torch.tensor([0.5, -2.0])
        found = AutoModelForSequenceClassification.from_pretrained(exported.folder).eval()(input_ids=ids).logits
    np.testing.assert_allclose(found, expected, atol=1e-5)


@cache
def untrained():
    task = TextTask(SMALL)
    return TextTrained(task, model_of_facts(task), FACTS)


def model_of_facts(task):
    """A model with drawn parameters in place of those of a file."""
    torch.manual_seed(0)
    model = task.model_of(FACTS, None)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from([*TEXTS, "", "win win"]), min_size=1, max_size=9), st.integers(1, 4))
def test_neither_order_nor_batches_matter(texts, batch_size):
    found = untrained().predict(texts, batch_size).probabilities
    single = np.concatenate([untrained().predict([text]).probabilities for text in texts])
    assert found == pytest.approx(single, abs=1e-6)
    assert found.sum(axis=1) == pytest.approx(np.ones(len(texts)), abs=1e-6)


def test_the_accuracy_of_predictions_is_that_of_the_evaluation(scores):
    model = trained(scores)
    rows = [json.loads(line) for line in (scores / "test.jsonl").read_text().splitlines()]
    found = model.predict([row["text"] for row in rows])
    right = sum(name == str(row["label"]) for name, row in zip(found.names, rows, strict=True))
    assert model.evaluate()["test.global_accuracy"] == right / len(rows)


# -- inputs -----------------------------------------------------------------------------------------------------


def test_texts_come_from_lines_tables_and_streams_in_their_order(scores, tmp_path):
    model = trained(scores)
    (tmp_path / "a.txt").write_text("win 1\n\n  loss 2  \n")
    (tmp_path / "b.csv").write_text('label,text\n0,"tie, 3"\n')
    (tmp_path / "c.jsonl").write_text('{"text": "win 4"}\n')
    sources = [
        tmp_path / "a.txt", io.StringIO("loss 5\n"), tmp_path / "b.csv", io.StringIO('\n{"text": "tie 6"}\n'),
        tmp_path / "c.jsonl",
    ]  # fmt: skip
    texts = ["win 1", "loss 2", "loss 5", "tie, 3", "tie 6", "win 4"]
    rows = list(model.rows(sources, batch_size=2))
    assert [row["text"] for row in rows] == texts
    found = model.predict(texts)
    assert [row["label"] for row in rows] == list(found.names)
    for row, shares in zip(rows, found.probabilities, strict=True):
        assert [row["probability.0"], row["probability.1"]] == pytest.approx(shares, abs=1e-6)
        assert row["probability"] == max(row["probability.0"], row["probability.1"])


def test_columns_are_those_of_the_training_files(tmp_path):
    def texts(name, content, **options):
        (tmp_path / name).write_text(content)
        model = TextTrained(TextTask(replace(SMALL, source="files", **options)), Says(), FACTS)
        return [row["text"] for row in model.rows([tmp_path / name])]

    known = {"dataset": "agnews", "classes": 0}
    assert texts("news.csv", '"3","a headline","a story"\n', **known) == ["a headline a story"]
    assert texts("news.jsonl", '{"text": "a story"}\n', **known) == ["a story"]
    named = {"text_columns": "title,body", "labels": "0,1"}
    assert texts("own.tsv", "body\ttitle\nb\ta\n", **named) == ["a b"]
    with pytest.raises(DataError, match=r"own.jsonl, line 1: no column title; .*text.text-columns names the columns"):
        texts("own.jsonl", '{"body": "b"}\n', **named)


# -- the folder of a model --------------------------------------------------------------------------------------


@pytest.mark.parametrize("privacy", [SHARED, FEDRECON, FEDVOCAB, OWN_START], ids=str)
def test_the_vocabulary_goes_along_in_the_facts(scores, tmp_path, privacy):
    model = trained(scores, privacy)
    again = TrainedModel.read(model.save(tmp_path / "model"), task_class)
    assert again.vocabulary.words == model.own.extra["vocabulary"].words
    assert again.predict(TEXTS).probabilities.tolist() == model.predict(TEXTS).probabilities.tolist()
    assert again.evaluate(again.data(scores, 1, NODES)) == model.evaluate()


def test_the_file_of_initial_vectors_does_not(scores, tmp_path):
    glove = tmp_path / "glove.txt"
    glove.write_text("win 1 0 0 0\nloss 0 1 0 0\ngoals 0 0 1 0\n")
    model = trained(scores, options=replace(SMALL, glove=str(glove)))
    assert "vocabulary.in_glove" in model.evaluate()
    folder, metrics = model.save(tmp_path / "model"), model.evaluate()
    glove.unlink()
    again = TrainedModel.read(folder, task_class)
    del metrics["vocabulary.in_glove"]
    assert again.evaluate(again.data(scores, 1, NODES)) == metrics


@pytest.mark.parametrize("kind", ["distilbert", "bert"])
def test_the_tokenizer_and_the_configuration_of_an_encoder_do(scores, tmp_path, kind):
    encoder, other = (encoder_folder(tmp_path / name, of) for name, of in (("encoder", kind), ("other", "bert")))
    for number, (privacy, own) in enumerate(((SHARED, ""), (FEDVOCAB, ""), (OWN_START, str(other)))):
        options = replace(SMALL, model=str(encoder), max_length=8, own_starts=own)
        model = trained(scores, privacy, options)
        folder, texts = model.save(tmp_path / f"{kind}-{number}"), ["one two threes", "nine"]
        saved = Tokenizer.from_file(str(folder / "files" / "tokenizer.json"))
        assert len(saved.encode("one two " * 9).ids) == 8
        expected = model.predict(texts).probabilities.tolist()
        hidden = {path: path.rename(path.with_name(f"{path.name}-hidden")) for path in (encoder, other)}
        try:
            assert TrainedModel.read(folder, task_class).predict(texts).probabilities.tolist() == expected
        finally:
            for path, there in hidden.items():
                there.rename(path)


def test_a_model_keeps_its_tokenizer_whatever_becomes_of_its_folder(scores, tmp_path):
    """A node that keeps its model deletes older folders, and a folder can be replaced by that of another model."""
    model = trained(scores, SHARED, replace(SMALL, model=str(encoder_folder(tmp_path / "encoder")), max_length=8))
    folder, texts = model.save(tmp_path / "model"), ["one two threes", "nine"]
    again = TrainedModel.read(folder, task_class)
    renamed(folder / "files", "tokenizer.json", {"one": "nine"})
    assert again.predict(texts).probabilities.tolist() == model.predict(texts).probabilities.tolist()
    saved = Tokenizer.from_file(str(again.save(tmp_path / "again") / "files" / "tokenizer.json"))
    assert saved.to_str() == model.vocabulary.tokenizer.to_str()


def test_the_facts_of_a_shared_model_need_data_only_where_the_words_are_theirs(scores):
    with pytest.raises(DataError, match="the classes and the words of the model are those of the nodes' texts"):
        TextTask(SMALL).facts(None)
    words = scores / "words.txt"
    words.write_text("win\nloss\n")
    task = TextTask(replace(SMALL, vocabulary="file", vocabulary_file=str(words)))
    assert task.facts(None) == {"classes": ["0", "1"], "words": ["<pad>", "<unk>", "win", "loss"]}
    words.unlink()
    model = TextTrained(task, task.model_of({"classes": ["a", "b"], "words": ["<pad>", "<unk>", "x"]}, None), {})
    assert model.module.embedding.weight.shape == (3, 4)


def test_a_folder_with_test_texts_alone_can_be_evaluated(scores, tmp_path):
    model = trained(scores)
    lines = [{"text": text, "label": number % 2} for number, text in enumerate(TEXTS)]
    Path(tmp_path, "test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = model.predict(TEXTS)
    right = sum(label == number % 2 for number, label in enumerate(found.labels))
    metrics = model.evaluate(tmp_path)
    assert metrics["test.local_accuracy"] == right / len(TEXTS)
    assert metrics["test.local_accuracy.count"] == len(TEXTS)
    (tmp_path / "test.jsonl").write_text('{"text": "win", "label": "draw"}\n')
    with pytest.raises(DataError, match="label 'draw'; expected one of 0, 1"):
        model.evaluate(tmp_path)


def test_the_model_of_the_server_has_the_shapes_of_the_facts():
    task = TextTask(SMALL)
    expected = {name: tensor.shape for name, tensor in model_of(task).state_dict().items()}
    built = task.model_of({"classes": ["0", "1"], "words": ["<pad>", "<unk>", "win"]}, None)
    assert {name: tensor.shape for name, tensor in built.state_dict().items()} == expected
