"""What the first layer of a model reads for each word."""

import inspect
from typing import Any

from torch import Tensor, nn

# The name of the argument depends on the version of transformers.
_ARGUMENTS = ("inputs_embeds", "input_embeds")


def first_inputs(body: nn.Module, vectors: Tensor, length: int) -> Tensor:
    """Return what the first layer of a body reads for each of V words at each of P positions: [V, P, d].

    P is ``length`` for a transformer, whose inputs depend on the position, and 1 otherwise; ``vectors`` are [V, d].
    """
    above = getattr(body, "embedding", None)
    if not isinstance(above, AboveWords):
        return vectors[:, None]
    inputs: Tensor = above(vectors[:, None].expand(-1, length, -1))
    return inputs


class AboveWords(nn.Module):
    """A transformer's ``embeddings`` without the word vectors."""

    def __init__(self, embeddings: Any) -> None:
        super().__init__()
        known = inspect.signature(embeddings.forward).parameters
        names = [name for name in _ARGUMENTS if name in known]
        if not names or not hasattr(embeddings, "word_embeddings"):
            kind = type(embeddings).__name__
            raise ValueError(f"{kind} accepts no word vectors; expected an argument {' or '.join(_ARGUMENTS)}")
        self.argument = names[0]
        self.embeddings = embeddings
        embeddings.word_embeddings = nn.Identity()

    def forward(self, embedded: Tensor) -> Tensor:
        above: Tensor = self.embeddings(input_ids=None, **{self.argument: embedded})
        return above
