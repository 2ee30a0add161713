"""How a node trains: the hyper-parameters of a round, from the message or else from the run config."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from fedapps.tasks.options import key_of

from .training import OptimizerName, Phase

Fields = TypeVar("Fields")


@dataclass(frozen=True)
class RoundSettings:
    """The settings of a round that are no local algorithm's. Each field has a key of its name in the message's config.

    Parameters
    ----------
    server_round : int
        Counted from 1.
    run, method : str
        Name the folder of the node's private state, whatever characters they have (:mod:`fedapps.clients.path_names`).
    stage : int
        Counted from 0. A node whose data has stages trains on the data of this one; any other node trains on its given
        data in stage 0 and on what it collected, too, later.
    epochs, steps : int
        Local epochs, or optimizer steps where ``steps`` > 0.
    learning_rate : float
        Above 0.
    batch_size : int
        At least 1.
    optimizer : "adam", "adamw", "rmsprop" or "sgd"
    weight_decay : float
        The optimizer's, at least 0.
    clip_norm : float
        Clip the gradient to this norm; 0 = no clipping (:class:`~fedapps.clients.training.Phase`).
    linear_decay : bool
        Lower the learning rate to 0 within the round.
    plateau_patience, plateau_factor, min_learning_rate
        After ``plateau_patience`` > 0 epochs without a lower validation loss, multiply the learning rate by
        ``plateau_factor``, but not below ``min_learning_rate``. Each stage starts at ``learning_rate`` again.
    final : bool
        Compute the costly metrics, too.
    collect : bool
        Collect new experience for the next stage.
    pooled : bool
        Train on the data of all nodes. Possible only where one folder holds them all.
    durable_round : int
        The last round that the server can go back to.
    attempts : str
        The attempts that the rounds belong to (:meth:`fedapps.clients.attempts.Attempts.read`).
    """

    server_round: int = 1
    run: str = "run"
    method: str = "fedavg"
    stage: int = 0
    epochs: int = 1
    steps: int = 0
    learning_rate: float = 0.001
    batch_size: int = 32
    optimizer: OptimizerName = "adam"
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    linear_decay: bool = False
    plateau_patience: int = 0
    plateau_factor: float = 0.5
    min_learning_rate: float = 1e-5
    final: bool = False
    collect: bool = False
    pooled: bool = False
    durable_round: int = 0
    attempts: str = ""

    def phase(self, epochs: int) -> Phase:
        """Plain training of all parameters for a number of epochs."""
        return Phase(
            epochs=epochs,
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            optimizer=self.optimizer,
            weight_decay=self.weight_decay,
            clip_norm=self.clip_norm,
            linear_decay=self.linear_decay,
        )


def with_config(settings: Fields, config: Mapping[str, Any]) -> Fields:
    """Return a dataclass instance with the values of a message's config in its fields.

    Parameters
    ----------
    settings : dataclass instance
        Its numbers, strings and booleans can be in the config. Fields of other types come from the message's records.
    config : mapping
        Values by key: a field ``batch_size`` has the key ``batch-size``. Other keys are ignored. A whole number is
        allowed for a float.

    Raises
    ------
    ValueError
        A value has another type than the field; the message names the key.
    """
    changes: dict[str, Any] = {}
    for setting in fields(settings):  # type: ignore[arg-type]
        key, kind = key_of(setting.name), type(getattr(settings, setting.name))
        if key not in config or kind not in (bool, int, float, str):
            continue
        value = config[key]
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not kind:
            raise ValueError(f"config {key} = {value!r}: must be of type {kind.__name__}")
        changes[setting.name] = value
    return replace(settings, **changes)  # type: ignore[type-var]


def check_choice(key: str, value: str, allowed: Sequence[str]) -> None:
    """Raise ``ValueError`` if a value of a message's config is not among the ``allowed``."""
    if value not in allowed:
        raise ValueError(f"config {key} = {value!r}: must be one of {', '.join(map(repr, allowed))}")
