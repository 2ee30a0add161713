"""Encoders whose files lack something, do not belong together, or are of a family that cannot be used."""

import json
import logging
from dataclasses import replace

import pytest
import torch
from fedapps.tasks.base import DataError
from fedapps.tasks.language import longest_text, read_encoder
from fedapps.tasks.text.options import Options
from fedapps.tasks.text.task import TextTask
from fedapps.tasks.vln.layers import language_model
from safetensors.torch import load_file, save_file
from tiny_encoder import classifier, encoder_folder

PLAIN = Options(dataset="mine", classes=2, max_length=10)


def checked(folder, **changes):
    TextTask(replace(PLAIN, model=str(folder), **changes)).check_nodes(2)


def with_weights(folder, change):
    """The folder of an encoder with other weights in its file."""
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})
    return folder


def with_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return folder


def without(part):
    return lambda weights: {name: weight for name, weight in weights.items() if part not in name}


@pytest.mark.parametrize(
    ("change", "config", "reason"),
    [
        (without("layer.1."), {}, r"lack weights: encoder\.layer\.1\.attention.* and 12 more"),
        (without("word_embeddings"), {}, r"lack weights: embeddings\.word_embeddings\.weight\. Copy"),
        (lambda weights: {"x": torch.zeros(1)}, {}, "lack weights: embeddings"),
        (lambda weights: weights, {"num_hidden_layers": 1}, r"have layers that config\.json lacks: encoder\.layer\.1"),
        (
            lambda weights: weights,
            {"vocab_size": 9},
            r"another shape than config\.json: .* \(8, 8\), not \(9, 8\)",
        ),
        (lambda weights: weights | {"pooler.dense.bias": torch.full((8,), torch.nan)}, {}, "not finite: pooler"),
    ],
)
def test_weights_that_are_not_those_of_one_encoder(tmp_path, change, config, reason):
    folder = with_config(with_weights(encoder_folder(tmp_path, "bert"), change), **config)
    with pytest.raises(DataError, match=f"text.model.*not those of one BertModel; .*{reason}"):
        checked(folder)
    with pytest.raises(DataError, match=f"vln.language-model.*{reason}"):
        language_model(folder)


def test_a_pooler_may_be_missing_and_is_named(tmp_path, caplog):
    folder = with_weights(encoder_folder(tmp_path, "bert"), without("pooler"))
    with caplog.at_level(logging.WARNING, "fedapps.tasks.language"):
        read_encoder(folder, "text.model", pools=False)
        assert "are drawn" not in caplog.text
        checked(folder)
    assert "its file has no pooler, so the weights of the pooler are drawn (pooler.dense.bias)" in caplog.text


def test_a_head_for_another_purpose_is_left_out(tmp_path):
    folder = with_weights(
        encoder_folder(tmp_path, "bert"),
        lambda weights: {f"bert.{name}": weight for name, weight in weights.items()} | {"cls.bias": torch.ones(2)},
    )
    checked(folder)


def test_a_tokenizer_without_words(tmp_path):
    """The library makes one where the folder has none."""
    folder = encoder_folder(tmp_path, "bert")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(DataError, match=r"tokenizer has no words, only \[CLS\], \[MASK\], .*copy tokenizer.json"):
        checked(folder)


def test_a_tokenizer_with_more_tokens_than_the_encoder_has_rows(tmp_path):
    folder = encoder_folder(tmp_path, "bert")
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"##s":7', '"##s":7,"##t":8').replace('"##s": 7', '"##s": 7,"##t": 8'))
    reason = "has the token '##t' with the number 8, but the encoder has 8 rows"
    with pytest.raises(DataError, match=reason):
        checked(folder)
    with pytest.raises(DataError, match=f"vln.language-model.*{reason}"):
        language_model(folder)


@pytest.mark.parametrize(
    ("kind", "longest"),
    [("bert", 12), ("distilbert", 12), ("Roberta", 10), ("MPNet", 10), ("XLNet", None), ("ModernBert", 12)],
)
def test_positions_that_texts_can_have(tmp_path, kind, longest):
    """Of RoBERTa and MPNet, the first two are for padding."""
    encoder = read_encoder(encoder_folder(tmp_path, kind), "text.model")
    assert longest_text(encoder) == longest


@pytest.mark.parametrize("kind", ["bert", "distilbert", "Roberta", "MPNet", "SqueezeBert", "ModernBert", "Electra"])
@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_families_that_can_be_used(tmp_path, kind, pooling):
    folder = encoder_folder(tmp_path, kind)
    checked(folder, pooling=pooling)
    longest = 10 if kind in ("Roberta", "MPNet") else 12
    checked(folder, max_length=longest)
    with pytest.raises(DataError, match=f"text.max-length = {longest + 1}: must be at most {longest} for the encoder"):
        checked(folder, max_length=longest + 1)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("XLNet", "has no module `embeddings`; use an encoder such as BERT"),
        ("Longformer", r"\(LongformerModel\) needs more than the embeddings of a text and a mask .*; use an encoder"),
        ("FNet", r"\(FNetModel\) reads beyond the end of a text"),
    ],
)
def test_families_that_cannot(tmp_path, kind, reason):
    folder = encoder_folder(tmp_path, kind)
    with pytest.raises(DataError, match=reason):
        checked(folder)


def test_an_encoder_with_a_normalisation_above_all_layers_has_no_states_between_them(tmp_path):
    folder = with_weights(
        encoder_folder(tmp_path, "ModernBert"),
        lambda weights: weights | {"final_norm.weight": torch.linspace(0.5, 2, 8)},
    )
    checked(folder, frozen_layers=1, frozen_embedding=True)
    with pytest.raises(DataError, match=r"cached-states = true: .*ModernBertModel.* set text.cached-states = false"):
        checked(folder, frozen_layers=1, frozen_embedding=True, cached_states=True)


def test_a_program_of_an_encoder_with_autocast_inside_is_the_encoder(tmp_path):
    from fedapps.tasks.answers import Network

    from fedapps.trained.programs import write_torch

    model = classifier(encoder_folder(tmp_path, "ModernBert"), 3)
    inputs = torch.tensor([[2, 4, 5, 3], [2, 3, 0, 0], [2, 6, 3, 0]], dtype=torch.int32), torch.tensor([4, 2, 3])
    dynamic = {"ids": {0: "batch", 1: "words"}, "length": {0: "batch"}}
    network = Network(model.eval(), inputs, ("ids", "length"), ("logits",), dynamic, "")
    write_torch(network, tmp_path / "model.pt2").check(1e-6, "the program")


def test_a_language_model_without_a_limit_reads_whole_texts(tmp_path):
    model = language_model(encoder_folder(tmp_path, "XLNet"))
    assert all(row.any() for row in model.states(("one",) * 30))


def test_a_language_model_reads_as_many_tokens_as_it_has_positions_for(tmp_path):
    """Of RoBERTa's twelve positions texts have ten, and two tokens are not words."""
    states = language_model(encoder_folder(tmp_path, "Roberta")).states(("one",) * 30)
    assert [bool(row.any()) for row in states] == [True] * 9 + [False] * 22 + [True]
