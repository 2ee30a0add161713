"""The states of texts above the frozen part of a transformer, which training does not change.

With a frozen embedding, the lowest frozen layers give the same states in every step, because frozen modules have no
dropout. They are computed once for each text of a node, and the common test texts once for each process.
"""

from functools import lru_cache

import torch
from fedapps.sim.seeding import torch_seed
from fedapps.tasks.base import Batch

from .options import STATES, Options
from .transformer import Transformer, transformer

_AT_ONCE = 128


def with_states(examples: Batch, options: Options) -> Batch:
    """Return examples (``ids``, ``length``) with the tensor :data:`~fedapps.tasks.text.options.STATES`.

    The states are float32 ``[n, L, width]``, and zeros beyond the end of a text. Without ``options.cached_states``, the
    examples are returned as they are.
    """
    if not options.cached_states:
        return examples
    model, length = _model(options), examples["length"]
    states = torch.zeros(*examples["ids"].shape, model.classifier.in_features)
    for rows in torch.split(length.argsort(stable=True), _AT_ONCE):  # texts of similar length, for little padding
        longest = int(length[rows].max())
        found = model.frozen_states(examples["ids"][rows, :longest], length[rows])
        states[rows, :longest] = found * (torch.arange(longest) < length[rows][:, None])[..., None]
    return {**examples, STATES: states}


@lru_cache(maxsize=1)
def _model(options: Options) -> Transformer:
    """A classifier of which only the pretrained frozen part is used."""
    with torch_seed(0, "text", "states"):
        return transformer(options, 2).eval()
