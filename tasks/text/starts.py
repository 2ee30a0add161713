"""Which vectors a node's private words begin with, where nodes do not all begin alike (FedVocab, Appendix B.2)."""

from pathlib import Path

from sim.seeding import derive_seed, generator
from tasks.private_parameters import PrivateParameters

from .glove import Vectors, read_glove
from .options import Options
from .scope import Kept, kept_words


def dealt_start(options: Options, privacy: PrivateParameters, key: str) -> str:
    """Which of ``text.own-starts`` falls to a node, the same in every run; '' where none does."""
    names = options.own_start_names
    if not names or not privacy.own_start or kept_words(options, privacy) is not Kept.ALL:
        return ""
    return names[int(generator(options.partition_seed, "text.own-start", key).integers(len(names)))]


def private_seed(seed: int, privacy: PrivateParameters, key: str | None) -> int:
    """What the vectors of a node's private words are drawn from; ``key`` is ``None`` for the server."""
    return derive_seed(seed, "text.own-start", key) if privacy.own_start and key is not None else seed


def shared_vectors(options: Options) -> Vectors | None:
    """The vectors that words begin with on all nodes, ``None`` where they are drawn."""
    return _read(options.glove, options, "text.glove")


def node_vectors(options: Options, privacy: PrivateParameters, key: str | None) -> Vectors | None:
    """The vectors that a node's private words begin with, ``None`` where they are drawn."""
    dealt = dealt_start(options, privacy, key) if key is not None else ""
    if dealt:
        return _read(dealt, options, "text.own-starts")
    return None if privacy.own_start else shared_vectors(options)


def _read(path: str, options: Options, option: str) -> Vectors | None:
    return read_glove(Path(path).expanduser(), options.embedding_width, option) if path else None
