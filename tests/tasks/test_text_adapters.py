"""Adapters of a frozen encoder: what is trained, what is fixed, the same start everywhere, and merging."""

from dataclasses import replace

import pytest
import torch
from fedapps.clients.arrays import matches
from fedapps.tasks.profiles import PrivateParameters
from fedapps.tasks.text.encoder_network import adapter_layers, add_adapters, merged
from fedapps.tasks.text.task import TextTask
from fedapps.tasks.text.trained import TextTrained
from fedapps.tasks.trained import TrainedModel
from text_world import FEDRECON, FEDVOCAB, SHARED, SMALL, model_for, model_of, nodes_of, write_world
from tiny_encoder import encoder_folder

import fedapps
from fedapps.base.errors import DataError
from fedapps.registry.tasks import task_class

TEXTS = ["one two", "threes", "one two three"]


@pytest.fixture(scope="module", params=["bert", "distilbert"])
def options(request, tmp_path_factory):
    folder = encoder_folder(tmp_path_factory.mktemp("encoder"), request.param)
    return replace(SMALL, model=str(folder), max_length=12, adapter="lora", adapter_rank=2, adapter_alpha=3.0)


def moved(task):
    """A model whose adapters are not those of the start."""
    model = model_of(task)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name or "ia3" in name:
                weight += torch.randn(weight.shape)
    return model


@pytest.mark.parametrize("adapter", ["lora", "ia3"])
@pytest.mark.parametrize("privacy", [SHARED, FEDVOCAB, FEDRECON, PrivateParameters(("*",))], ids=str)
def test_what_is_trained_and_what_is_fixed_are_all_of_the_model(options, adapter, privacy):
    task = TextTask(replace(options, adapter=adapter)).under(privacy)
    model = task.build_model()
    trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
    assert {name for name in model.state_dict() if not matches(name, task.fixed)} == set(trained)
    assert all(any(matches(name, [pattern]) for name in trained) for pattern in (*task.roles.head, *task.roles.body))
    words = [name for name in trained if name.startswith("embedding")]
    assert bool(words) == (privacy in (FEDVOCAB, FEDRECON))
    assert all(matches(name, privacy.patterns) for name in words)
    roles = [*task.roles.head, *task.roles.body, *(privacy.patterns if words else ())]
    assert all(matches(name, roles) for name in trained)


def test_nodes_and_server_begin_with_the_same_model_which_is_the_pretrained_one(options, tmp_path):
    task = TextTask(options)
    server, plain = model_of(task), model_of(TextTask(replace(options, adapter="")))
    for data in nodes_of(task, write_world(tmp_path)):
        node = model_for(task, data)
        assert all(map(torch.equal, node.state_dict().values(), server.state_dict().values()))
    ids, length = torch.tensor([[2, 4, 5, 3]]), torch.tensor([4])
    assert torch.allclose(server(ids, length), plain(ids, length), atol=1e-6)  # B is 0, and the head is the same


def test_the_digest_tells_encoders_apart(options, tmp_path):
    other = str(encoder_folder(tmp_path, "bert" if "distilbert" in type(model_of(TextTask(options)).encoder).__module__
                               else "distilbert"))  # fmt: skip
    assert TextTask(replace(options, adapter="")).fixed_digest == ""
    digests = {TextTask(replace(options, model=model)).fixed_digest for model in (options.model, other)}
    assert [len(digest) for digest in digests] == [64, 64]


@pytest.mark.parametrize("adapter", ["lora", "ia3"])
def test_a_merged_model_is_the_same_function_without_adapters(options, adapter):
    model = moved(TextTask(replace(options, adapter=adapter)))
    plain = merged(model)
    assert adapter_layers(model)
    assert not adapter_layers(plain)
    assert plain.state_dict().keys() == model_of(TextTask(replace(options, adapter=""))).state_dict().keys()
    ids, length = torch.tensor([[2, 4, 5, 3], [2, 6, 3, 0]]), torch.tensor([4, 3])
    torch.testing.assert_close(plain(ids, length), model(ids, length), atol=1e-5, rtol=1e-5)


def test_a_trained_model_is_read_without_the_encoder_and_exported_without_adapters(options, tmp_path):
    from transformers import AutoModelForSequenceClassification

    task = TextTask(replace(options, labels="up,down", dataset=""))
    model = TextTrained(task, moved(task), task.facts(None))
    again = TrainedModel.read(model.save(tmp_path / "model"), task_class)
    expected = model.predict(TEXTS).probabilities
    assert again.predict(TEXTS).probabilities.tolist() == expected.tolist()
    exported = fedapps.export(again, "huggingface", tmp_path / "exported")
    assert exported.written.difference.relative < 1e-5
    found = AutoModelForSequenceClassification.from_pretrained(tmp_path / "exported")
    assert not [name for name in found.state_dict() if "lora" in name]


def test_frozen_layers_have_no_adapters(options):
    task = TextTask(replace(options, frozen_layers=1, frozen_embedding=True))
    model = task.build_model()
    assert [".1." in name for name, _ in adapter_layers(model)] == [True, True]
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert {name for name in model.state_dict() if not matches(name, task.fixed)} == trained


def test_layers_are_chosen_by_name(options):
    model = model_of(TextTask(replace(options, adapter_targets="all-linear")))
    linear = sum(isinstance(module, torch.nn.Linear) for module in merged(model).encoder.modules())
    assert len(adapter_layers(model)) == linear
    one = "query" if "BertModel" in type(model.encoder).__name__ and not hasattr(model, "pre_classifier") else "lin1"
    assert len(adapter_layers(model_of(TextTask(replace(options, adapter_targets=one))))) == 2
    with pytest.raises(
        DataError, match=r"text\.adapter-targets = 'gate': name layers of the encoder .*, as (query|q_lin), "
    ):
        TextTask(replace(options, adapter_targets="gate")).build_model()


def test_a_missing_package_is_named_with_its_extra(options, monkeypatch):
    monkeypatch.setattr("fedapps.base.errors.find_spec", lambda package: None)
    with pytest.raises(DataError, match=r"text\.adapter = 'lora' needs the package peft.*'fedapps\[adapters\]'"):
        add_adapters(torch.nn.Linear(1, 1), options)


@pytest.mark.parametrize("more", [{"model": "lstm"}, {"weights": "random"}])
def test_adapters_need_a_pretrained_transformer(options, more):
    with pytest.raises(DataError, match=r"text\.adapter = 'lora' with text\.(model|weights) = '(lstm|random)': "):
        TextTask(replace(options, **more))
