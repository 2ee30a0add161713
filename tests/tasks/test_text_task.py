"""The text task: nodes, vocabularies, models, learning and accuracies."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fedapps.tasks.base import DataError
from fedapps.tasks.partitioners import predicts_for_own_shares
from fedapps.tasks.text.encoder_network import Transformer
from fedapps.tasks.text.networks import OwnRows, SplitEmbedding
from fedapps.tasks.text.nodes import CommonTest, translated
from fedapps.tasks.text.options import Options
from fedapps.tasks.text.task import TextTask
from fedapps.tasks.text.trained import logits_of, sequence_classifier
from text_world import CORPUS, CORPUS_NODES, FEDRECON, FEDVOCAB, model_for, own_words, texts, words_of
from tiny_encoder import encoder_folder
from toys import learn

REAL = pytest.mark.skipif("FEDAPPS_DATA" not in os.environ, reason="FEDAPPS_DATA names no folder of real data")


def test_nodes_have_equally_many_examples_none_of_them_twice(corpus):
    task = own_words(CORPUS)
    nodes = [task.load_node(corpus, k, CORPUS_NODES) for k in range(CORPUS_NODES)]
    assert [node.key for node in nodes] == [f"client-{k:03d}" for k in range(CORPUS_NODES)]
    assert {(n.count("train"), n.count("validation"), n.count("test")) for n in nodes} == {(54, 6, 15)}
    seen = [
        text for node in nodes for split in ("train", "validation") for text in texts_as_written(corpus, node, split)
    ]
    assert len(set(seen)) == len(seen) == 360
    assert len({tuple(np.bincount(node.splits["train"]["label"], minlength=4)) for node in nodes}) > 1
    again = own_words(CORPUS).load_node(corpus, 2, CORPUS_NODES)
    assert torch.equal(again.splits["train"]["ids"], nodes[2].splits["train"]["ids"])
    other = own_words(replace(CORPUS, partition_seed=2)).load_node(corpus, 2, CORPUS_NODES)
    assert texts(other, "train") != texts(nodes[2], "train")


def test_topics_arrive_in_stages(corpus):
    """Every text is in exactly one stage, in the vocabulary that the node has from the start."""
    even = replace(CORPUS, alpha=100.0)
    plain, task = own_words(even), own_words(replace(even, stages=2))
    whole, staged = (one.load_node(corpus, 0, CORPUS_NODES) for one in (plain, task))
    assert words_of(staged) == words_of(whole)
    assert task.node_profile(corpus, 0, CORPUS_NODES) == staged.profile()
    model, common = model_for(task, staged), whole.extra["common_test"].examples
    for stage, splits in enumerate(staged.stages):
        for split, examples in whole.splits.items():
            assert torch.equal(splits[split]["ids"], examples["ids"][examples["label"] // 2 == stage])
        metrics = task.evaluate(model, staged.at(stage), seed=0, final=False).metrics
        assert metrics["test.global_accuracy.count"] == int((common["label"] // 2 == stage).sum())
        assert metrics["test.global_stage_accuracy"] >= metrics["test.global_accuracy"]
    floors = task.node_references(corpus, CORPUS_NODES)["most frequent class"]
    assert {"stage-1.test.global_accuracy", "stage-2.test.local_accuracy"} <= set(floors[0])
    with pytest.raises(DataError, match=r"text\.stages = 3: must divide the 4 classes evenly \(1, 2, 4\)"):
        TextTask(replace(CORPUS, stages=3))
    lacking = own_words(replace(CORPUS, partition="pathological", stages=4))
    with pytest.raises(DataError, match=r"the training texts of client-000: no examples of stage"):
        lacking.node_profile(corpus, 0, CORPUS_NODES)
    with pytest.raises(DataError, match=r"the training texts of client-000: no examples of stage"):
        lacking.node_references(corpus, CORPUS_NODES)


def texts_as_written(corpus, node, split):
    """In one vocabulary for all, where no word is unknown."""
    everybody = TextTask(replace(CORPUS, vocabulary="shared", vocabulary_size=5000))
    loaded = everybody.load_node(corpus, int(node.key[-3:]), CORPUS_NODES)
    return texts(loaded, split)


def test_a_vocabulary_has_the_words_of_its_nodes_training_texts_only(corpus):
    task = own_words(CORPUS)
    nodes = [task.load_node(corpus, k, CORPUS_NODES) for k in range(CORPUS_NODES)]
    assert len({words_of(node) for node in nodes}) == CORPUS_NODES
    for node in nodes:
        used = {word for _, text in texts(node, "train") for word in text.split()}
        assert used == set(words_of(node)[2:])
        assert "<unk>" in {word for _, text in texts(node, "validation") | texts(node, "test") for word in text.split()}
    few = own_words(replace(CORPUS, vocabulary_size=20, min_count=2)).load_node(corpus, 0, CORPUS_NODES)
    assert words_of(few) == words_of(nodes[0])[:22]


def test_all_nodes_are_tested_on_the_same_examples_in_their_own_words(corpus):
    task = own_words(CORPUS)
    nodes = [task.load_node(corpus, k, CORPUS_NODES) for k in (0, 1)]
    common = [node.extra["common_test"] for node in nodes]
    assert common[0].examples is common[1].examples
    assert common[0].examples["label"].tolist().count(3) > 0
    written = [json.loads(line) for line in (corpus / "test.jsonl").read_text().splitlines()]
    for node, test in zip(nodes, common, strict=True):
        batch = translated(test.examples, test.translation)
        index = {word: i for i, word in enumerate(words_of(node))}
        expected = sorted([index.get(word, 1) for word in example["text"].split()] for example in written)
        assert expected == sorted(
            ids[:length] for ids, length in zip(batch["ids"].tolist(), batch["length"].tolist(), strict=True)
        )
    some = own_words(replace(CORPUS, global_examples=7)).load_node(corpus, 0, CORPUS_NODES).extra["common_test"]
    assert len(some.examples["label"]) == 7


def test_a_vocabulary_in_a_file_or_of_all_is_the_same_everywhere(corpus, tmp_path):
    (tmp_path / "words.txt").write_text("\n".join(words_of(own_words(CORPUS).load_all(corpus))[2:50]))
    file = replace(CORPUS, vocabulary="file", vocabulary_file=str(tmp_path / "words.txt"))
    for options, rows in ((file, 50), (replace(CORPUS, vocabulary="shared", vocabulary_size=40), 42)):
        task = TextTask(options)
        nodes = [task.load_node(corpus, k, CORPUS_NODES) for k in range(2)]
        assert words_of(nodes[0]) == words_of(nodes[1])
        shapes = [
            model.state_dict()["embedding.weight"].shape for model in (task.build_model(), model_for(task, nodes[0]))
        ]
        assert shapes == [(rows, 12)] * 2
        assert nodes[0].extra["common_test"].translation is None


def test_the_server_has_the_shared_part_of_every_nodes_model(corpus):
    task = own_words(CORPUS)
    server = task.build_model().state_dict()
    for k in range(2):
        data = task.load_node(corpus, k, CORPUS_NODES)
        node = model_for(task, data).state_dict()
        assert node["embedding.weight"].shape == (len(words_of(data)), 12)
        shared = {name: tensor.shape for name, tensor in node.items() if not name.startswith("embedding.")}
        assert shared == {name: tensor.shape for name, tensor in server.items() if not name.startswith("embedding.")}


def test_learning_beats_guessing_on_both_tests(corpus):
    task = own_words(CORPUS)
    data = task.load_all(corpus)
    model = learn(task, model_for(task, data), data, epochs=12, rate=1e-2, batch_size=32)
    assert task.evaluate(model, data, seed=0, final=True).metrics["test.local_accuracy"] > 0.6
    node = task.load_node(corpus, 0, CORPUS_NODES)
    model = learn(task, model_for(task, node), node, epochs=12, rate=1e-2, batch_size=32)
    metrics = task.evaluate(model, node, seed=0, final=True).metrics
    assert metrics["test.local_accuracy"] > 0.4


def assert_accuracies(task, model, data, common, own):
    """The model always says the class ``common``, and the class ``own`` to texts with the node's label shares.

    Returns the metrics.
    """
    metrics = task.evaluate(model.eval(), data, seed=0, final=False).metrics
    for prefix, label, labels in (
        ("test.global_", common, data.extra["common_test"].examples["label"]),
        ("test.local_", own, data.splits["test"]["label"]),
        ("validation.", own, data.splits["validation"]["label"]),
    ):
        assert metrics[f"{prefix}accuracy"] == int((labels == label).sum()) / len(labels)
        assert metrics[f"{prefix}accuracy.count"] == len(labels)
    return metrics


@pytest.fixture
def saying_class_2(corpus):
    """A node's task, its model that always says class 2, and its data."""
    task = own_words(replace(CORPUS, glove=""))
    data = task.load_node(corpus, 3, CORPUS_NODES)
    model = model_for(task, data)
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.copy_(torch.tensor([0.0, 0, 1, 0]))
    return task, model, data


def test_accuracies_are_counted(saying_class_2):
    metrics = assert_accuracies(*saying_class_2, common=2, own=2)
    assert metrics["vocabulary.words"] == len(words_of(saying_class_2[2])) - 2
    assert "vocabulary.in_glove" not in metrics


def test_texts_with_the_label_shares_of_the_node_are_predicted_for_these_shares(saying_class_2):
    shares = torch.tensor([0.0, 2, 0, 0])
    saying_class_2[1].register_forward_hook(lambda module, _, out: out + shares * predicts_for_own_shares(module))
    assert_accuracies(*saying_class_2, common=2, own=1)


@pytest.mark.parametrize(("private", "times"), [(False, 2), (True, 3)])
def test_a_model_that_nodes_share_is_tested_once_on_the_common_texts(corpus, private, times):
    task = own_words(CORPUS) if private else TextTask(CORPUS)
    nodes = [task.load_node(corpus, k, CORPUS_NODES) for k in (0, 0 if private else 1)]
    model, tested = model_for(task, nodes[0]).eval(), []
    model.register_forward_hook(lambda module, given, out: tested.append(len(out)))
    before, again = (task.evaluate(model, node, seed=0, final=True).metrics for node in nodes)
    assert before["test.global_accuracy"] == again["test.global_accuracy"]
    with torch.no_grad():
        model.classifier.bias.copy_(torch.tensor([0.0, 0, 99, 0]))
    after = task.evaluate(model, nodes[1], seed=0, final=True).metrics
    labels = nodes[1].extra["common_test"].examples["label"]
    assert after["test.global_accuracy"] == labels.eq(2).float().mean()
    assert tested.count(len(labels)) == times


def test_word_vectors_start_the_embedding_and_their_share_is_told(corpus, tmp_path):
    some = words_of(own_words(CORPUS).load_node(corpus, 0, CORPUS_NODES))[2:12]
    (tmp_path / "glove.txt").write_text("".join(f"{w} {i} " + "0.5 " * 10 + "1\n" for i, w in enumerate(some)))
    task = own_words(replace(CORPUS, glove=str(tmp_path / "glove.txt")))
    data = task.load_node(corpus, 0, CORPUS_NODES)
    model = model_for(task, data)
    assert model.embedding.weight[2:12, 0].tolist() == list(range(10))
    share = task.evaluate(model, data, seed=0, final=False).metrics["vocabulary.in_glove"]
    assert share == pytest.approx(10 / (len(words_of(data)) - 2))


def test_batches_and_examples_are_all_of_a_split_without_needless_padding(corpus):
    task = own_words(CORPUS)
    data = task.load_node(corpus, 0, CORPUS_NODES)
    torch.manual_seed(0)
    for batches in (list(task.batches(data, "train", 16)), list(task.examples(data, "train", 16))):
        assert [len(batch["label"]) for batch in batches] == [16, 16, 16, 6]
        assert all(batch["ids"].shape[1] == batch["length"].max() for batch in batches)
        rows = [
            tuple(ids[:length]) for b in batches for ids, length in zip(b["ids"].tolist(), b["length"], strict=True)
        ]
        part = data.splits["train"]
        assert sorted(rows) == sorted(
            tuple(ids[:length]) for ids, length in zip(part["ids"].tolist(), part["length"], strict=True)
        )


def test_one_node_gets_everything_and_a_huge_alpha_equal_shares(corpus):
    task = own_words(replace(CORPUS, validation_share=0.0))
    alone, everything = task.load_node(corpus, 0, 1), task.load_all(corpus)
    assert texts(alone, "train") == texts(everything, "train")
    assert texts(alone, "test") == texts(everything, "test")
    assert "validation" not in alone.splits
    even = own_words(replace(CORPUS, validation_share=0.0, alpha=1e9)).load_node(corpus, 4, CORPUS_NODES)
    assert np.bincount(even.splits["train"]["label"]).tolist() == [15] * 4


@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_partitions_of_flower_datasets(corpus, partition):
    task = own_words(replace(CORPUS, partition=partition, alpha=5.0))
    nodes = [task.load_node(corpus, k, CORPUS_NODES) for k in range(CORPUS_NODES)]
    assert sum(node.count("train") + node.count("validation") for node in nodes) == 360
    assert {node.count("test") for node in nodes} == {15}


def test_a_transformer_learns_with_its_own_tokens(corpus, tmp_path):
    task = TextTask(replace(CORPUS, model=str(encoder_folder(tmp_path)), max_length=12))
    data = task.load_node(corpus, 0, CORPUS_NODES)
    assert words_of(data)[4] == "one"
    assert {int(ids[0]) for ids in data.splits["train"]["ids"]} == {2}
    assert isinstance(data.extra["common_test"], CommonTest)
    model = learn(task, model_for(task, data), data, epochs=1, rate=1e-3, batch_size=32)
    metrics = task.evaluate(model, data, seed=0, final=True).metrics
    assert 0 <= metrics["test.global_accuracy"] <= 1
    assert "vocabulary.words" not in metrics
    assert {k: v.shape for k, v in task.build_model().state_dict().items()} == {
        k: v.shape for k, v in model.state_dict().items()
    }
    with pytest.raises(DataError, match=r"text\.max-length = 128: must be at most 12 for the encoder"):
        TextTask(replace(task.options, max_length=0)).load_node(corpus, 0, CORPUS_NODES)
    with pytest.raises(
        DataError, match=r"text\.max-length = 2: must be above 2, the number of tokens that the tokenizer"
    ):
        TextTask(replace(task.options, max_length=2)).check_nodes(CORPUS_NODES)


@pytest.mark.slow
@REAL
def test_a_node_learns_to_tell_news_from_real_vectors():
    folder = Path(os.environ["FEDAPPS_DATA"]) / "text"
    glove = str(folder / "glove" / "glove.6B.50d.subset.txt.xz")
    chosen = Options(embedding_width=50, hidden=32, max_length=30, glove=glove, alpha=1e6, global_examples=600)
    task = own_words(chosen)
    data = task.load_node(folder / "agnews", 0, 25)
    model = learn(task, model_for(task, data), data, epochs=2, rate=1e-2, batch_size=32)
    metrics = task.evaluate(model, data, seed=0, final=True).metrics
    assert metrics["test.global_accuracy"] > 0.6  # 0.65 to 0.75 with other seeds
    assert 0.4 < metrics["vocabulary.in_glove"] < 1


def test_known_words_come_first_and_have_the_first_rows_of_private_vectors(corpus):
    for privacy, lacking in ((FEDVOCAB, "zebra"), (FEDRECON, "4711")):
        task = TextTask(replace(CORPUS, vocabulary="auto")).under(privacy)
        data = task.load_node(corpus, 0, CORPUS_NODES)
        known = (*task.words(data)[:2], lacking) if privacy is FEDVOCAB else (lacking,)
        grown = task.knowing(known)
        words = grown.words(grown.load_node(corpus, 0, CORPUS_NODES))
        assert words[: len(known)] == known
        assert set(words) == {*task.words(data), lacking}
        assert grown != task
        assert grown == task.knowing(known)


def test_own_rows_in_any_order_make_the_same_table():
    table = torch.arange(10.0).reshape(5, 2)
    assert torch.equal(OwnRows(table, (3, 0)).whole(), table)
    assert OwnRows(table, (3, 0))(torch.tensor([0, 3, 4])).tolist() == [[0, 1], [6, 7], [8, 9]]


# Classifiers with an encoder as models of the library transformers, with the same logits.


SMALL = {
    "vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
    "max_position_embeddings": 14,
}  # fmt: skip
CLASSES = ("up", "down", "left")


def classifier_on(kind, pooling="first", **changes):
    """A classifier on a random encoder of the library."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SMALL | changes)
    return Transformer(
        getattr(transformers, f"{kind}Model")(config), len(CLASSES), Options(model=kind, pooling=pooling)
    ).eval()


def logits_of_both(model):
    """Of a text of 5 tokens, and of one of 2 with padding."""
    ids, length = torch.tensor([[0, 5, 6, 7, 2], [0, 2, 1, 1, 1]], dtype=torch.int32), torch.tensor([5, 2])
    with torch.no_grad():
        wanted = model(ids, length).numpy()
    return wanted, logits_of(sequence_classifier(model, CLASSES), (ids, length))[0]


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "MPNet"])
def test_logits_are_those_of_the_classifier(kind):
    """RoBERTa counts the pooler to the classifier, and its positions begin after that of padding."""
    np.testing.assert_allclose(*logits_of_both(classifier_on(kind)), atol=1e-6)


@pytest.mark.parametrize("kind", ["digits", "pieces"])
def test_two_parts_of_a_table_become_one(kind):
    model = classifier_on("Bert")
    table = model.embedding.word_embeddings.weight.detach()
    private = [number in (5, 6) for number in range(len(table))]
    model.embedding.word_embeddings = SplitEmbedding.of(table, private) if kind == "digits" else OwnRows(table, (5, 6))
    np.testing.assert_allclose(*logits_of_both(model), atol=1e-6)
    found = sequence_classifier(model, CLASSES).bert.embeddings.word_embeddings.weight
    assert torch.equal(found, table)


def test_embeddings_of_another_encoder_keep_their_size():
    model = classifier_on("Bert")
    model.embedding = classifier_on("Bert", vocab_size=20, max_position_embeddings=30).embedding
    np.testing.assert_allclose(*logits_of_both(model), atol=1e-6)
    assert sequence_classifier(model, CLASSES).config.vocab_size == 20


def test_a_classifier_with_other_layers_is_refused():
    with pytest.raises(DataError, match=r"ElectraForSequenceClassification .* has other layers .* use another format"):
        sequence_classifier(classifier_on("Electra", embedding_size=8), CLASSES)
    with pytest.raises(DataError, match=r"text\.pooling = 'mean': .* export as onnx, torch or safetensors"):
        sequence_classifier(classifier_on("Bert", pooling="mean"), CLASSES)
