"""Seeds and generators keyed by what they are for, so that the order of execution changes no draw."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

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
    number = derive_seed(seed, *labels)
    with _torch().random.fork_rng(range(_torch().cuda.device_count()) if has_gpus() else []):
        # `torch.manual_seed` also queues seeds for the devices that are not there, with a formatted stack for each.
        _torch().default_generator.manual_seed(number)
        if has_gpus():
            _torch().cuda.manual_seed_all(number)
        yield


class TorchState:
    """A state of torch's global generators. Within ``with state:`` draws continue from it; afterwards it has moved on.

    The state is at first that of the generators when the object is made. The generators themselves are afterwards as
    they were before the block.
    """

    def __init__(self) -> None:
        self._own = _torch_states()
        self._outer: list[tuple[Any, ...]] = []

    def __enter__(self) -> None:
        self._outer.append(_torch_states())
        _set_torch_states(self._own)

    def __exit__(self, *error: object) -> None:
        self._own = _torch_states()
        _set_torch_states(self._outer.pop())

    @contextmanager
    def away(self) -> Iterator[None]:
        """Within a block of ``with state:``, draw as before that block."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()

    def put(self) -> None:
        """Set torch's generators to this state."""
        _set_torch_states(self._own)

    def copy(self) -> "TorchState":
        """Return an independent copy of the state."""
        copied = TorchState()
        copied.follow(self)
        return copied

    def follow(self, other: "TorchState") -> None:
        """Take the state that another object has now."""
        self._own = other._own


def _torch_states() -> tuple[Any, ...]:
    return _torch().get_rng_state(), _torch().cuda.get_rng_state_all() if has_gpus() else []


@cache
def has_gpus() -> bool:
    """Whether torch finds a GPU; looked up once a process, because it takes milliseconds."""
    return bool(_torch().cuda.is_available())


def _set_torch_states(states: tuple[Any, ...]) -> None:
    _torch().set_rng_state(states[0])
    if states[1]:
        _torch().cuda.set_rng_state_all(states[1])


@cache
def _torch() -> Any:
    """The module ``torch``, which strategies and the engine in one process do not need for clients of NumPy."""
    import torch

    return torch
