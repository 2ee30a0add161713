"""A classifier with a transformer as a model of the library ``transformers``, which others load without fedapps."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedapps.base.errors import DataError

from .encoder_network import Transformer
from .networks import SplitEmbedding
from .pieces import OwnRows
from .vocabulary import TokenizerVocabulary

#: How tokenizers spell the tokens that have a role.
_ROLES = {
    "pad_token": ("[PAD]", "<pad>"),
    "unk_token": ("[UNK]", "<unk>"),
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "mask_token": ("[MASK]", "<mask>"),
}


def sequence_classifier(model: Transformer, classes: Sequence[str]) -> Any:
    """Return a classifier of the library with the same weights, in evaluation mode.

    Raises
    ------
    DataError
        The classifier reads the mean of all tokens, or the library's for this encoder has other layers above it.
    """
    from transformers import AutoModelForSequenceClassification

    encoder = model.encoder
    if model.means:
        raise DataError(
            "text.pooling = 'mean': the library transformers has no classifier on the mean of all tokens; export as "
            "onnx, torch or safetensors, or train with text.pooling = 'first'"
        )
    config = deepcopy(encoder.config)
    tables = {name: len(weight) for name, weight in _embeddings(model).items() if weight.ndim == 2}
    config.vocab_size = tables.get("word_embeddings.weight", config.vocab_size)
    config.max_position_embeddings = tables.get("position_embeddings.weight", config.max_position_embeddings)
    config.num_labels = len(classes)
    config.id2label = dict(enumerate(classes))
    config.label2id = {name: label for label, name in enumerate(classes)}
    classifier = AutoModelForSequenceClassification.from_config(config)
    prefix = classifier.base_model_prefix
    weights = {f"{prefix}.{name}": weight for name, weight in encoder.state_dict().items()}
    weights |= {f"{prefix}.embeddings.{name}": weight for name, weight in _embeddings(model).items()}
    weights |= {name: weight for name, weight in model.state_dict().items() if "classifier." in name}
    if "classifier.out_proj.weight" in classifier.state_dict():  # RoBERTa calls its pooler a part of the classifier
        names = {f"{prefix}.pooler.dense": "classifier.dense", "classifier": "classifier.out_proj"}
        weights = {_renamed(name, names): weight for name, weight in weights.items()}
    try:
        classifier.load_state_dict(weights)
    except RuntimeError as error:
        raise DataError(
            f"{type(classifier).__name__} of the library transformers has other layers than this model, whose encoder "
            f"is a {type(encoder).__name__}; use another format"
        ) from error
    return classifier.eval()


def _embeddings(model: Transformer) -> dict[str, Tensor]:
    """The state of the embeddings, with one table where rows of digits were private."""
    state = model.embedding.state_dict()
    for name, part in model.embedding.named_modules():
        if isinstance(part, SplitEmbedding):
            del state[f"{name}.private"]
            with torch.no_grad():
                state[f"{name}.weight"] = part(torch.arange(len(part.places), device=part.places.device))
        if isinstance(part, OwnRows):
            del state[f"{name}.public"]
            state[f"{name}.weight"] = part.whole()
    return state


def _renamed(name: str, names: dict[str, str]) -> str:
    module, _, kind = name.rpartition(".")
    return f"{names.get(module, module)}.{kind}"


def pretrained_tokenizer(vocabulary: TokenizerVocabulary, length: int) -> Any:
    """Return the tokenizer as one of the library, which cuts texts to ``length`` tokens."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer.from_str(vocabulary.tokenizer.to_str())
    tokenizer.no_truncation()
    known = tokenizer.get_vocab()
    roles = {role: next(filter(known.__contains__, names), None) for role, names in _ROLES.items()}
    special = {role: token for role, token in roles.items() if token is not None}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=length, **special)


def logits_of(classifier: Any, inputs: Sequence[Tensor]) -> list[np.ndarray]:
    """The logits ``[n, classes]`` of ``ids [n, L]`` and ``length [n]``."""
    ids, length = inputs
    mask = torch.arange(ids.shape[1]) < length[:, None]
    with torch.no_grad():
        return [classifier(input_ids=ids.long(), attention_mask=mask.long()).logits.numpy()]
