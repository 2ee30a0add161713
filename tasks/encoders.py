"""Encoders of the library transformers: what their files must have, and how long texts may be.

The library draws weights that a file lacks, leaves out layers that its configuration does not name, and makes an empty
tokenizer where there is none. Here each of these is an error, so that what is loaded is what is in the files.
"""

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedapps.base.errors import DataError, listed
from fedapps.base.text_files import without_progress_bar

logger = logging.getLogger(__name__)

_NAMED = 4  # names that an error lists
#: Tokens that a tokenizer without any word may have: those for padding, the unknown word, the ends of a text.
_ROLES = 10


def read_encoder(name: str | Path, subject: str, *, local: bool = False, pools: bool = True) -> Any:
    """Read an encoder with all its weights, float32.

    Parameters
    ----------
    name : str or Path
        A folder, or a name on the Hugging Face hub.
    subject : str
        How messages name the encoder, with its key.
    local : bool
        Whether the hub is never asked.
    pools : bool
        Whether the weights of its pooler are used. Without them in the file they are drawn, and a warning says so.

    Raises
    ------
    DataError
        The file lacks weights other than those of a pooler, has them in other shapes, has more layers than the
        configuration, or has numbers that are not finite.
    OSError, ValueError
        The files are missing or cannot be read.
    """
    from transformers import AutoModel

    with without_progress_bar():
        encoder, loaded = AutoModel.from_pretrained(
            name,
            dtype=torch.float32,
            local_files_only=local,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # reported below, with their names
            output_loading_info=True,
        )
    missing = sorted(loaded["missing_keys"])
    reshaped = [f"{key} {tuple(file)}, not {tuple(model)}" for key, file, model in sorted(loaded["mismatched_keys"])]
    known = {_any_layer(key) for key in encoder.state_dict()}
    prefix = f"{encoder.base_model_prefix}."
    beyond = [key for key in sorted(loaded["unexpected_keys"]) if _any_layer(key.removeprefix(prefix)) in known]
    infinite = [key for key, weight in encoder.state_dict().items() if not weight.isfinite().all()]
    faults = {
        "lack weights": [key for key in missing if not key.startswith("pooler.")],
        "have weights of another shape than config.json": reshaped,
        "have layers that config.json lacks": beyond,
        "have weights that are not finite": infinite,
    }
    if lines := [f"they {fault}: {listed(keys, _NAMED)}" for fault, keys in faults.items() if keys]:
        raise DataError(
            f"{subject}: its files are not those of one {type(encoder).__name__}; {'; '.join(lines)}. Copy "
            "config.json and the weights again, from the same model"
        )
    if missing and pools:
        logger.warning("%s: its file has no pooler, so the weights of the pooler are drawn (%s)", subject, missing[0])
    return encoder


def _any_layer(key: str) -> str:
    """The name of a weight without the number of its layer."""
    return re.sub(r"\.\d+\.", ".*.", key)


def check_tokens(tokens: Mapping[str, int], encoder: Any, subject: str) -> None:
    """Check that a tokenizer fits an encoder, which may be on the device "meta".

    Parameters
    ----------
    tokens : mapping of str to int
        The number of each token.
    encoder : PreTrainedModel
    subject : str
        How messages name the encoder, with its key.

    Raises
    ------
    DataError
        The tokenizer has no tokens but those with a role, or one whose number is no row of the encoder's table.
    """
    if len(tokens) <= _ROLES and all(re.fullmatch(r"\[.*\]|<.*>", token) for token in tokens):
        raise DataError(
            f"{subject}: its tokenizer has no words, only {', '.join(sorted(tokens))}; copy tokenizer.json into the "
            "folder, as save_pretrained of the tokenizer writes it"
        )
    rows = len(encoder.get_input_embeddings().weight)
    last = max(tokens, key=lambda token: tokens[token])
    if tokens[last] >= rows:
        raise DataError(
            f"{subject}: its tokenizer has the token {last!r} with the number {tokens[last]}, but the encoder has "
            f"{rows} rows, from 0; take the tokenizer of this encoder, or save the encoder after "
            "resize_token_embeddings"
        )


def longest_text(encoder: Any) -> int | None:
    """Return how many tokens of a text an encoder can read, special tokens included; None for any number.

    RoBERTa and MPNet count positions from behind that of padding: of 514 positions, texts have 512.
    """
    table = getattr(getattr(encoder, "embeddings", None), "position_embeddings", None)
    if isinstance(table, nn.Embedding):
        return table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)
    limit = getattr(encoder.config, "max_position_embeddings", None)
    return limit if limit and limit > 0 else None  # XLNet, which has no limit, gives -1
