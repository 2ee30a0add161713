"""Classifiers with an encoder as models of the library transformers, with the same logits."""

import numpy as np
import pytest
import torch
from fedapps.tasks.base import DataError
from fedapps.tasks.text.encoder_network import Transformer
from fedapps.tasks.text.networks import OwnRows, SplitEmbedding
from fedapps.tasks.text.options import Options
from fedapps.tasks.text.trained import logits_of, sequence_classifier

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
