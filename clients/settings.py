"""What a node reads from a message: the settings of local training and of a round, and arrays of real numbers.

A message comes from outside. Each of its values is checked here, by the type and range that its field declares, before
any work. What it does not set comes from the run config.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import pairwise
from math import isfinite
from typing import Any, Literal, Self, TypeVar, get_args

import numpy as np
from fedapps.strategies.arrays import from_record, shared_record
from fedapps.strategies.stopwatch import timed
from fedapps.strategies.wire import ARRAYS, CLIPPING_NORM, LAST_ROUND, UNTRAINED, names_in
from flwr.app import ArrayRecord, Message

from fedapps.base.options import Around, allowed, key_of, option, within

from .arrays import Arrays

Fields = TypeVar("Fields")
OptimizerName = Literal["adam", "adamw", "rmsprop", "sgd"]
_REAL = frozenset("fiub")
#: Key of a message's config: the labels of the runs before this one, from the last one on.
LINEAGE = "lineage"
#: Key of a message's config: for each champion, the label of its run and those before it, and an empty one behind them.
CHAMPION_RUNS = "champion-runs"


def with_config(settings: Fields, config: Mapping[str, Any]) -> Fields:
    """Return a dataclass instance with the values of a message's config in its fields.

    Parameters
    ----------
    settings : dataclass instance
        Its numbers, strings and booleans can be in the config, within the limits that a field declares
        (:func:`fedapps.base.options.option`). Fields of other types come from the message's records.
    config : mapping
        Values by key: a field ``batch_size`` has the key ``batch-size``. Other keys are ignored. A whole number is
        allowed for a float.

    Raises
    ------
    ValueError
        A value has another type than the field, is out of its range or not finite; the message names the key.
    """
    changes: dict[str, Any] = {}
    for key, name, limits in _declared(type(settings)):  # type: ignore[arg-type]
        kind = type(getattr(settings, name)) if key in config else None
        if kind not in (bool, int, float, str):
            continue
        value = config[key]
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not kind:
            raise ValueError(f"config {key} = {value!r}: must be of type {kind.__name__}")
        if kind is float and not isfinite(value):
            raise ValueError(f"config {key} = {value!r}: must be finite")
        if not within(value, limits):
            raise ValueError(f"config {key} = {value!r}: must be {allowed(limits, kind)}")
        changes[name] = value
    return replace(settings, **changes)  # type: ignore[type-var]


@cache
def _declared(settings: type) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Of each field the key in a message's config, the name, and the limits."""
    return [(key_of(setting.name), setting.name, setting.metadata) for setting in fields(settings)]


def clipping_norm(config: Mapping[str, Any]) -> float | None:
    """The norm to which a message asks to clip the update; ``None`` if it asks for none. It can be infinite.

    Raises
    ------
    ValueError
        It is no number above 0. A norm below 0 would reverse the update, and NaN would send it as it is.
    """
    norm = config.get(CLIPPING_NORM)
    if norm is None:
        return None
    if isinstance(norm, bool) or not isinstance(norm, (int, float)) or not norm > 0:
        raise ValueError(f"config {CLIPPING_NORM} = {norm!r}: must be a number above 0")
    return float(norm)


def read_arrays(name: str, record: ArrayRecord) -> Arrays:
    """The arrays of the record ``name`` of a message. Raises ``ValueError`` for one that cannot be decoded, and as
    :func:`check_real`.
    """
    arrays = from_record(record)
    check_real(name, arrays)
    return arrays


def check_fits(name: str, arrays: Arrays | None, received: Arrays, strategy: str) -> None:
    """Check the record ``name`` of a message, which belongs to parameters.

    Raises
    ------
    ValueError
        The message brought no such record, or one of its arrays has no received parameter of its name and shape.
    """
    if arrays is None:
        raise ValueError(f"the message has no ArrayRecord {name!r}: train with the strategy {strategy}")
    for key, array in arrays.items():
        parameter = received.get(key)
        if parameter is None or parameter.shape != array.shape:
            reason = "it was not received" if parameter is None else f"the parameter is {list(parameter.shape)}"
            raise ValueError(f"{name}: {key!r} is {list(array.shape)}, but {reason}")


def received_arrays(message: Message) -> Arrays:
    """The shared arrays in a message. Raises ``ValueError`` if it has none, and as :func:`read_arrays`."""
    with timed("decode"):
        arrays = from_record(shared_record(message.content))
        check_real(ARRAYS, arrays)
        return arrays


def check_real(name: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Check that the arrays of a record hold real numbers.

    Raises
    ------
    ValueError
        One is neither floating-point, integer nor boolean, or has another byte order.
        A model would lose the imaginary part of a complex one.
    """
    for key, array in arrays.items():
        if array.dtype.kind not in _REAL:
            raise ValueError(f"{name}: {key!r} is {array.dtype}: must be floating-point, integer or boolean")
        if not array.dtype.isnative:
            raise ValueError(f"{name}: {key!r} is {array.dtype}: must have the byte order of this machine")


@dataclass(frozen=True)
class LocalTraining:
    """The settings of local training. Each is a key of the run config and of the messages' config.

    Parameters
    ----------
    epochs, steps : int
        Passes over the training data, or optimizer steps where ``steps`` > 0.
    learning_rate : float
        Above 0.
    batch_size : int
        At least 1.
    optimizer : "adam", "adamw", "rmsprop" or "sgd"
    momentum : float
        In [0, 1), of "sgd" alone. Each phase of a round starts without it.
    weight_decay : float
        λ ≥ 0. The optimizer adds λθ to the gradient; "adamw" instead subtracts λθ times the learning rate from the
        parameters (Loshchilov and Hutter 2019).
    clip_norm : float
        Above 0: scale the gradient, with the prior's, down to this Euclidean norm over all trainable parameters.
    linear_decay : bool
        Step s of n, counted from 0, has the learning rate times (n − s) / n.
    plateau_patience, plateau_factor, min_learning_rate
        After ``plateau_patience`` > 0 epochs without a lower validation loss, multiply the learning rate by
        ``plateau_factor``, but not below ``min_learning_rate``. Each stage starts at ``learning_rate`` again.
    """

    epochs: int = option(10, "local epochs per round", minimum=1)
    steps: int = option(0, "local optimizer steps per round instead of epochs; 0 = use epochs", minimum=0)
    learning_rate: float = option(0.001, "local learning rate", above=0, search=Around(10))
    batch_size: int = option(128, "examples per local step", minimum=1)
    optimizer: OptimizerName = option("adam", "local optimizer", choices=get_args(OptimizerName))
    momentum: float = option(0.0, "momentum of the local optimizer sgd, from 0 in each round", minimum=0, maximum=0.999)
    weight_decay: float = option(0.0, "weight decay of the local optimizer", minimum=0)
    clip_norm: float = option(0.0, "clip local gradients to this norm; 0 = no clipping", minimum=0)
    linear_decay: bool = option(False, "decay the local learning rate linearly to 0 within each round")
    plateau_patience: int = option(
        0, "epochs without a lower validation loss before the local learning rate is reduced; 0 = never", minimum=0
    )
    plateau_factor: float = option(0.5, "factor of that reduction", above=0, maximum=1)
    min_learning_rate: float = option(1e-5, "lower bound of the reduced learning rate", above=0)

    def for_epochs(self, epochs: int) -> Self:
        """The same settings for a number of epochs."""
        return replace(self, epochs=epochs, steps=0)


@dataclass(frozen=True)
class RoundSettings:
    """The settings of a round that are no local algorithm's. Each field has a key of its name in the message's config.

    Parameters
    ----------
    server_round : int
        Counted from 1.
    run, method : str
        Name the folder of the node's private state, whatever characters they have (:mod:`fedapps.base.atomic`).
    repeat : int
        How often the node has trained in this round before. It goes on from the private state that this has left.
    stage : int
        Counted from 0. A node whose data has stages trains on the data of this one; any other node trains on its given
        data in stage 0 and on what it collected, too, later.
    training : LocalTraining
        Its keys stand beside the others in the message's config.
    final : bool
        Compute the costly metrics, too.
    collect : bool
        Collect new experience for the next stage.
    durable_round : int
        The last round that the server can go back to.
    best_round : int
        The best round so far, 0 if no metric is tracked.
    held_out_epochs : int
        Epochs, also 0, in which a new node fits its personal part, in place of those of ``training``; -1: the same.
    attempts : str
        The attempts that the rounds belong to (:meth:`fedapps.clients.state.Attempts.read`).
    untrained : tuple of str
        The names of received arrays that the node neither trains nor returns.
    lineage : tuple of str
        The labels of the runs that this one goes on from, the last one first.
    registry : str
        The label of the registry of champions that the run belongs to; empty: none, or one without a champion.
    champions : tuple of tuples of str
        For each champion in it: the label of its run, then the labels of the runs that it started from.
    """

    server_round: int = option(1, "the round", minimum=1, maximum=LAST_ROUND)
    repeat: int = option(0, "how often the node has trained in this round before", minimum=0, maximum=LAST_ROUND)
    run: str = "run"
    method: str = "fedavg"
    stage: int = option(0, "the stage", minimum=0, maximum=999)
    training: LocalTraining = LocalTraining()
    final: bool = False
    collect: bool = False
    durable_round: int = option(0, "the last round that the server can go back to", minimum=0, maximum=LAST_ROUND)
    best_round: int = option(0, "the best round so far", minimum=0, maximum=LAST_ROUND)
    held_out_epochs: int = option(-1, "epochs of a new node in place of those of training; -1 = these", minimum=-1)
    attempts: str = ""
    untrained: tuple[str, ...] = ()
    lineage: tuple[str, ...] = ()
    registry: str = ""
    champions: tuple[tuple[str, ...], ...] = ()

    def with_config(self, config: Mapping[str, Any]) -> Self:
        """The settings with the values of a message's config. Raises ``ValueError`` as :func:`with_config`."""
        settings, training = with_config(self, config), with_config(self.training, config)
        if settings.held_out_epochs >= 0:
            training = training.for_epochs(settings.held_out_epochs)
        untrained = tuple(names_in(config, UNTRAINED)) if UNTRAINED in config else ()
        lineage = tuple(names_in(config, LINEAGE)) if LINEAGE in config else ()
        champions: tuple[tuple[str, ...], ...] = ()
        if CHAMPION_RUNS in config:
            labels = names_in(config, CHAMPION_RUNS)
            ends = [index for index, label in enumerate(labels) if not label]
            champions = tuple(tuple(labels[start + 1 : end]) for start, end in pairwise([-1, *ends]))
        return replace(settings, training=training, untrained=untrained, lineage=lineage, champions=champions)
