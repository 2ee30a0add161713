"""A model folder that a stranger wrote: what it costs, what of it is believed, and what it may not ask for."""

import json
import os

import numpy as np
import pytest
import torch
from damaged_files import bounded, write
from fedapps.tasks.images.networks import of_torchvision
from fedapps.tasks.model_folder import ModelFolderError, without_memory
from fedapps.tasks.text.transformer import shaped
from fedapps.tasks.trained import TrainedModel
from model_folders import config_of, files_of
from safetensors.torch import load, save
from torch import nn

from fedapps.registry.tasks import task_class


def read(folder, files):
    return TrainedModel.read(write(folder, files), task_class)


def with_config(files, **values):
    return {**files, "config.json": json.dumps(config_of(files) | values).encode()}


def with_options(files, **values):
    return with_config(files, options=config_of(files)["options"] | values)


def with_facts(files, **values):
    return with_config(files, facts=config_of(files)["facts"] | values)


def with_encoder(files, **values):
    return with_facts(files, encoder=config_of(files)["facts"]["encoder"] | values)


# -- the cost --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("driving", {"hidden": 30_000}), ("social", {"hidden": 30_000}), ("text", {"hidden": 30_000}),
        ("text", {"vocabulary-size": 10**7}), ("vln", {"hidden": 30_000}), ("vpr", {"projection": 100_000}),
        ("images", {"height": 4000, "width": 4000}),
    ],
)  # fmt: skip
def test_weights_are_compared_before_memory_is_taken(tmp_path, name, options):
    """Each would take gigabytes."""
    with bounded(), pytest.raises(ModelFolderError, match=r"model\.safetensors: it has other tensors than the model"):
        read(tmp_path, with_options(files_of(name), **options))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("social", lambda files: with_options(files, layers=10**6)),
        ("text with BERT", lambda files: with_encoder(files, num_hidden_layers=10**6)),
    ],
)
def test_layers_without_end_are_not_built(tmp_path, name, change):
    with bounded(), pytest.raises(ModelFolderError, match=r"config\.json: .* a model with more than \d+ param"):
        read(tmp_path, change(files_of(name)))


def test_parameters_that_a_module_makes_elsewhere_take_no_memory_either():
    with without_memory(10), torch.device("cpu"):
        assert all(parameter.is_meta for parameter in nn.Linear(2, 3).parameters())
    assert not nn.Linear(2, 3).weight.is_meta
    with without_memory(5000):  # of 645 million parameters, whose widths are computed with tensors
        assert all(parameter.is_meta for parameter in of_torchvision("regnet_y_128gf", 3).parameters())


# -- the weights -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(tmp_path, value):
    files = files_of("lqr")
    weights = load(files["model.safetensors"])
    weights["policy.K"][0, 1] = value
    with pytest.raises(ModelFolderError, match=r"model\.safetensors: policy\.K has numbers that are not finite"):
        read(tmp_path, {**files, "model.safetensors": save(weights)})


def test_weights_of_another_type_are_refused(tmp_path):
    files = files_of("lqr")
    weights = load(files["model.safetensors"]) | {"policy.K": torch.zeros(1, 2, dtype=torch.float16)}
    with pytest.raises(ModelFolderError, match=r"policy\.K is float16 \[1, 2\], not float32 \[1, 2\]"):
        read(tmp_path, {**files, "model.safetensors": save(weights)})


# -- the config ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("lqr", lambda files: with_config(files, origin={"rounds": "many"}), "rounds = 'many': must be a whole number"),
        ("lqr", lambda files: with_config(files, origin={"seed": -1}), r"origin\.seed = -1: must be at least 0"),
        ("lqr", lambda files: with_config(files, origin={"metrics": {"loss": "low"}}), r"metrics\.loss = 'low'"),
        ("lqr", lambda files: with_config(files, origin={"settings": {"node-cpus": 10**6}}), "node-cpus = 1000000"),
        ("lqr", lambda files: with_config(files, private={"patterns": "*", "own_start": False}), "patterns = '\\*'"),
        ("lqr", lambda files: with_config(files, facts=[]), r"facts = \[\]: must be an object"),
        ("lqr", lambda files: with_options(files, horizon=10**400), "more than 64 bits"),
        ("social", lambda files: with_options(files, hidden=2**31), r"social\.hidden = 2147483648: at most 134217728"),
        ("images", lambda files: with_facts(files, classes="ab"), "classes = 'ab': must be a list"),
        ("images", lambda files: with_facts(files, deviation=[1.0, 0.0, 1.0]), "deviations above 0"),
        ("text", lambda files: with_facts(files, words=["<pad>", "<unk>", "a", "a"]), "words: a string occurs twice"),
        ("text", lambda files: with_config(files, **{"added-logits": [0.0]}), "one for each class"),
        ("text", lambda files: with_options(files, classes=2**24), r"text\.classes = 16777216: must be"),
        ("vpr", lambda files: with_facts(files, normalisation="none"), "normalisation = 'none': must be one of"),
        ("vpr", lambda files: with_options(files, width=1), "vpr.width = 1: too small for vpr.backbone"),
        ("vln", lambda files: with_facts(files, vocabulary=[1]), "vocabulary: 1 is no string"),
        ("text with BERT", lambda files: with_encoder(files, num_attention_heads=0), "heads = 0: must be from 1 to"),
        ("text with BERT", lambda files: with_encoder(files, num_attention_heads=3), "cannot be divided among 3 heads"),
        ("text with BERT", lambda files: with_encoder(files, hidden_act="none"), "hidden_act = 'none': must be a name"),
        ("text with BERT", lambda files: with_encoder(files, hidden_size="x"), "expected int, got str"),
        ("text with BERT", lambda files: with_encoder(files, pad_token_id=99), "pad_token_id = 99: must be below 8"),
        ("text with BERT", lambda files: with_encoder(files, model_type="timm_wrapper"), "'timm_wrapper': must be"),
        ("text with private pieces", lambda files: with_facts(files, pieces=[99]), "must be numbers from 0 to 7"),
    ],
)  # fmt: skip
def test_a_value_out_of_its_range_is_named(tmp_path, name, change, message):
    with bounded(), pytest.raises(ModelFolderError, match=rf"(?s)config\.json: .*{message}"):
        read(tmp_path, change(files_of(name)))


def test_unknown_options_are_named_in_one_line(tmp_path):
    files = files_of("lqr")
    unknown = {f"sail-{number}": 1 for number in range(9)}
    with pytest.raises(ModelFolderError, match=r"lqr\.sail-1, lqr\.sail-2 and 6 more: unknown, too") as caught:
        read(tmp_path, with_options(files, **unknown, horizon=0))
    assert str(caught.value).count("known keys:") == 1
    assert "lqr.sail-0: unknown key" in str(caught.value)
    assert "lqr.horizon = 0: must be" in str(caught.value)


def test_a_config_that_is_nested_too_deeply_is_refused(tmp_path):
    files = files_of("lqr")
    for deep in ("[" * 21 + "]" * 21, "[" * 100_000):
        config = files["config.json"].replace(b'"facts": {}', b'"facts": {"a": ' + deep.encode() + b"}")
        with pytest.raises(ModelFolderError, match=r"config\.json: .*nested"):
            read(tmp_path, {**files, "config.json": config})


# -- what is not believed --------------------------------------------------------------------------------------


def test_switches_of_a_configuration_are_left_out(tmp_path):
    files = files_of("text with BERT")
    switched = with_encoder(
        files,
        attn_implementation="kernels-community/x", _attn_implementation="flash_attention_2", dtype="float16",
        auto_map={"AutoModel": "code.Model"}, id2label={"0": "evil"}, quantization_config={"bits": 4}, nothing={"a": 1},
    )  # fmt: skip
    model, plain = read(tmp_path / "switched", switched), read(tmp_path / "plain", files)
    config = model.module.encoder.config
    assert config._attn_implementation == plain.module.encoder.config._attn_implementation
    assert not {"auto_map", "quantization_config", "nothing"} & vars(config).keys()
    texts = ["one two", "three"]
    np.testing.assert_array_equal(model.predict(texts).probabilities, plain.predict(texts).probabilities)


@pytest.mark.parametrize("name", ["text with BERT", "text"])
def test_without_its_words_a_folder_is_refused_and_nothing_is_looked_for_elsewhere(tmp_path, monkeypatch, name):
    """The option names a folder with code; it was asked on the terminal whether to run it, and the hub was called."""

    def called(*_, **__):
        raise AssertionError("the folder or the hub was asked")

    monkeypatch.setattr("fedapps.tasks.text.task._tokens", called)
    monkeypatch.setattr("fedapps.tasks.text.task.read_vocabulary", called)
    files = {path: content for path, content in files_of(name).items() if path != "files/tokenizer.json"}
    facts = {name: value for name, value in config_of(files)["facts"].items() if name != "words"}
    files = with_config(files, facts=facts | {"tokenizer": "someone/else"})
    with pytest.raises(ModelFolderError, match=r"facts have no words, and the folder has no files/tokenizer\.json"):
        read(tmp_path, files)


@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert", "deberta-v2", "mpnet", "electra", "distilbert"])
def test_a_configuration_of_the_library_describes_the_same_network(kind):
    from fedapps.tasks.text.options import Options, PrivateWords
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(kind)
    with torch.device("meta"):
        model = shaped(
            json.loads(config.to_json_string(use_diff=False)), None, (), Options(model=kind), PrivateWords.NONE, 2
        )
        expected = AutoModel.from_config(config)
    names = {f"encoder.{name}" for name in expected.state_dict() if not name.startswith(("embeddings.", "pooler."))}
    assert names == {name for name in model.state_dict() if name.startswith("encoder.") and ".pooler." not in name}


def test_the_files_are_read_without_the_hub(tmp_path, monkeypatch):
    monkeypatch.setitem(os.environ, "HF_HUB_OFFLINE", "0")
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("the network was asked"))
    assert read(tmp_path, files_of("text with BERT")).predict(["one"]).names[0] in ("0", "1")
