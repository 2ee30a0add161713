"""Seeds and generators keyed by what they are for, so that the order of execution changes no draw."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


def derive_seed(seed: int, *labels: int | str) -> int:
    """Return a 63-bit seed for one purpose, the same on every machine and in every engine.

    Parameters
    ----------
    seed : int
        The seed of the run.
    labels : int or str
        The purpose, for example ``("train", round, node_key)``. Different labels give independent seeds.
    """
    text = "\x1f".join([str(seed), *(f"{type(label).__name__}:{label}" for label in labels)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *labels: int | str) -> np.random.Generator:
    """Return a NumPy generator for one purpose; the parameters are those of :func:`derive_seed`."""
    return np.random.default_rng(derive_seed(seed, *labels))


@contextmanager
def torch_seed(seed: int, *labels: int | str) -> Iterator[None]:
    """Seed torch's global generators on all devices within the block, and restore their states afterwards.

    The parameters are those of :func:`derive_seed`. torch is imported only when the function is called.
    """
    import torch

    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(derive_seed(seed, *labels))
        yield
