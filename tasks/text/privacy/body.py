"""What of a classifier lies above its word vectors, in a form that gradient matching can work on."""

import inspect
from typing import Any

from torch import Tensor, nn

from tasks.text.networks import TextClassifier

from .recurrence import with_loop_lstms

# HF's embeddings spell it either way, by their version.
_ARGUMENTS = ("inputs_embeds", "input_embeds")


def above_words(model: TextClassifier) -> nn.Module:
    """A copy of ``model`` that takes word vectors [B, T, d] and lengths [B], in evaluation mode.

    Parameters keep their names; the word vectors themselves are gone. The LSTM becomes a loop
    (:func:`.with_loop_lstms`). Of a transformer's embedding what stands above the word vectors, positions and
    normalisation, is still there under ``embedding.``. Raises ``ValueError`` for an embedding that takes no vectors.
    """
    copy: Any = with_loop_lstms(model)
    copy.embedding = nn.Identity() if isinstance(copy.embedding, nn.Embedding) else _Above(copy.embedding)
    body: nn.Module = copy
    return body


class _Above(nn.Module):
    """A transformer's ``embeddings`` without its words."""

    def __init__(self, embeddings: Any) -> None:
        super().__init__()
        known = inspect.signature(embeddings.forward).parameters
        names = [name for name in _ARGUMENTS if name in known]
        if not names or not hasattr(embeddings, "word_embeddings"):
            kind = type(embeddings).__name__
            raise ValueError(f"{kind} takes no word vectors: expected an argument {' or '.join(_ARGUMENTS)}, as BERT's")
        self.argument = names[0]
        self.embeddings = embeddings
        embeddings.word_embeddings = nn.Identity()

    def forward(self, embedded: Tensor) -> Tensor:
        above: Tensor = self.embeddings(input_ids=None, **{self.argument: embedded})
        return above
