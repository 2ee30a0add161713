"""The initial vectors of a node's private words, which may differ between nodes (FedVocab, Appendix B.2)."""

from pathlib import Path

from fedapps.sim.seeding import derive_seed, generator
from fedapps.tasks.profiles import PrivateParameters

from .glove import Vectors, read_glove
from .options import Options
from .private_words import PrivateWords, private_words


def assigned_start(options: Options, privacy: PrivateParameters, key: str) -> str:
    """Return the entry of ``text.own-starts`` that is assigned to a node, the same in every run; '' for none."""
    names = options.own_start_names
    if not names or not privacy.own_start or private_words(options, privacy) is not PrivateWords.ALL:
        return ""
    return names[int(generator(options.partition_seed, "text.own-start", key).integers(len(names)))]


def private_seed(seed: int, privacy: PrivateParameters, key: str | None) -> int:
    """Return the seed of the vectors of a node's private words; ``key`` is ``None`` for the server."""
    return derive_seed(seed, "text.own-start", key) if privacy.own_start and key is not None else seed


def shared_vectors(options: Options) -> Vectors | None:
    """Return the initial vectors of words on all nodes, ``None`` if they are drawn."""
    return _read(options.glove, options, "text.glove")


def node_vectors(options: Options, privacy: PrivateParameters, key: str | None) -> Vectors | None:
    """Return the initial vectors of a node's private words, ``None`` if they are drawn."""
    dealt = assigned_start(options, privacy, key) if key is not None else ""
    if dealt:
        return _read(dealt, options, "text.own-starts")
    return None if privacy.own_start else shared_vectors(options)


def _read(path: str, options: Options, option: str) -> Vectors | None:
    return read_glove(Path(path).expanduser(), options.embedding_width, option) if path else None
