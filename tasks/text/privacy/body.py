"""The part of a classifier above its word vectors, in a form that gradient matching can differentiate."""

from typing import Any

from fedapps.tasks.privacy.inputs import AboveWords
from fedapps.tasks.text.networks import TextClassifier
from torch import nn

from .recurrence import with_loop_lstms


def above_words(model: TextClassifier) -> nn.Module:
    """Return a copy of ``model`` that maps word vectors [B, T, d] and lengths [B] to logits, in evaluation mode.

    Parameters keep their names; the word vectors are removed. An LSTM becomes a loop (:func:`.with_loop_lstms`). The
    parts of a transformer's embedding above the word vectors, positions and normalisation, stay under ``embedding.``.

    Raises
    ------
    ValueError
        The embedding does not accept vectors.
    """
    copy: Any = with_loop_lstms(model)
    copy.embedding = nn.Identity() if isinstance(copy.embedding, nn.Embedding) else AboveWords(copy.embedding)
    body: nn.Module = copy
    return body
