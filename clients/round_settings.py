"""How a node trains: the hyper-parameters of a round, from the message or else from the run config."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from tasks.options import key_of

from .ewc_state import Anchors
from .fisher import Estimator
from .training import OptimizerName, Phase

Decomposition = Literal["none", "apd", "fedweit"]


@dataclass(frozen=True)
class RoundSettings:
    """This round's orders to a node. Every field has a key of the same name in the message's config.

    ``run`` and ``method`` name the folder of the node's private state; ``stage`` is counted from 0: of a node whose
    data has stages it is the one to train on, any other trains on the given data at first, later on what was
    collected too; ``personalise`` trains a copy of the received model before it is
    evaluated; ``final`` asks for the costly metrics, ``collect`` for new experience for the next stage;
    ``pooled`` trains on the data of all nodes (the Cloud baseline; only where one folder holds them all);
    ``durable_round`` is the last round that the server can go back to. ``steps`` above 0 takes so many optimizer steps
    in place of ``epochs``; ``virtual_examples`` above 0 makes one pass over so many examples, drawn from the node's
    without replacement where it has as many, and ``virtual_draw`` counts the virtual clients that a node is in one
    round (FedVC, :class:`strategies.virtual_clients.VirtualClients`).

    ``plateau_patience`` above 0 multiplies the learning rate by ``plateau_factor``, down to ``min_learning_rate``,
    after so many epochs without a lower validation loss; each stage starts at ``learning_rate`` again. ``ewc`` is
    the weight λ of what the node's own earlier stages found, ``ewc_anchors`` how several of them are held, with
    ``fisher_estimator`` for their precision; ``l2_transfer`` the weight of a pull towards the last stage's solution.
    ``fresh_stages`` forgets the private parameters when a stage begins.

    ``decomposition`` trains every weight as shared times masked plus stage-own (APD, FedWeIT); ``l1_adaptive`` and
    ``l1_mask`` weigh the absolute values of these parts, ``drift`` the changes of earlier stages' parameters;
    ``mask_share`` is the share of a layer's units that a FedWeIT node sends, ``sparsity`` the absolute value up to
    which what it tells others of a stage is left out.

    ``clip_norm`` above 0 clips the gradient, ``linear_decay`` lowers the learning rate to 0 within the round
    (:class:`~clients.training.Phase`). ``adapt_epochs`` above 0 trains the private parameters alone for so many epochs
    before all are trained (FedVocab, :mod:`clients.adaptive_updating`). ``reconstruct_epochs`` above 0 trains them
    anew in every round, on the share ``support_share`` of the node's examples, between 0 and 1, and the shared ones on
    the rest (FedRecon, :class:`~clients.reconstruction.ReconstructingClient`).

    Raises ``ValueError`` where more than one of ``adapt_epochs``, ``reconstruct_epochs`` and ``decomposition`` is set,
    and where ``run`` or ``method`` could lead out of the folder of private states.
    """

    server_round: int = 1
    run: str = "run"
    method: str = "fedavg"
    stage: int = 0
    epochs: int = 1
    learning_rate: float = 0.001
    batch_size: int = 32
    optimizer: OptimizerName = "adam"
    proximal: float = 0.0
    personalise: bool = False
    personal_epochs: int = 1
    personal_learning_rate: float = 0.001
    final: bool = False
    collect: bool = False
    pooled: bool = False
    durable_round: int = 0
    steps: int = 0
    virtual_examples: int = 0
    virtual_draw: int = 0
    weight_decay: float = 0.0
    plateau_patience: int = 0
    plateau_factor: float = 0.5
    min_learning_rate: float = 1e-5
    ewc: float = 0.0
    ewc_anchors: Anchors = "separate"
    fisher_estimator: Estimator = "per-sample"
    l2_transfer: float = 0.0
    fresh_stages: bool = False
    decomposition: Decomposition = "none"
    l1_adaptive: float = 0.0
    l1_mask: float = 0.0
    drift: float = 0.0
    mask_share: float = 0.7
    sparsity: float = 0.0
    clip_norm: float = 0.0
    linear_decay: bool = False
    adapt_epochs: int = 0
    reconstruct_epochs: int = 0
    support_share: float = 0.5

    def __post_init__(self) -> None:
        for key, name in (("run", self.run), ("method", self.method)):
            if name in ("", ".", "..") or not name.isprintable() or set(name) & set("/\\"):
                raise ValueError(f"config {key} = {name!r}: must be the name of a folder, not a path")
        own_plans = {"adapt_epochs": 0, "reconstruct_epochs": 0, "decomposition": "none"}
        chosen = [f"{key_of(n)} = {getattr(self, n)!r}" for n, off in own_plans.items() if getattr(self, n) != off]
        if len(chosen) > 1:
            raise ValueError(f"{', '.join(chosen)}: only one of them can be set, each is a way to train of its own")

    def phase(self, epochs: int) -> Phase:
        """So many epochs of plain training of all parameters as these settings say."""
        return Phase(
            epochs=epochs,
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            optimizer=self.optimizer,
            weight_decay=self.weight_decay,
            clip_norm=self.clip_norm,
            linear_decay=self.linear_decay,
        )

    def updated(self, config: Mapping[str, Any]) -> "RoundSettings":
        """These settings with the message's values in place of the defaults; unknown keys are not for us.

        Raises ``ValueError`` naming the key when a value has another type than the setting.
        """
        changes: dict[str, Any] = {}
        for setting in fields(self):
            key = key_of(setting.name)
            if key not in config:
                continue
            value, kind = config[key], type(getattr(self, setting.name))
            if kind is float and isinstance(value, int):
                value = float(value)
            if type(value) is not kind:
                raise ValueError(f"config {key} = {value!r}: must be of type {kind.__name__}")
            changes[setting.name] = value
        return replace(self, **changes)
