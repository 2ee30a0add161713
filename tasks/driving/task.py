"""The task "driving": forecast a human driver given the robot's plan, and plan with the forecast."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from fedapps.tasks.base import Batch, Evaluation, Metrics, NodeData, Task
from torch import Tensor

from fedapps.base.seeding import torch_seed

from .closed_loop import Encounters, as_sessions, drive, encounters, session_metrics, traces
from .data import SPLITS, Recording, read_folder
from .forecaster import Forecaster, constant_velocity, elbo_parts, scores
from .options import Options as DrivingOptions
from .planner import ConstantVelocity, Forecast, HoldLastControl, Predictor
from .profile import CONSTANT_VELOCITY, DrivingProfiles, block_of, groups_of, key_of
from .setting import SETTINGS
from .windows import cut


class DrivingTask(DrivingProfiles, Task):
    """Negotiate a lane change with a human driver (APFL, Sections IV-B and IV-C).

    A node is a robot that always meets the same driver: a simulated one with a certain risk tolerance, or a block of
    recorded trials. ``NodeData.extra["encounters"]`` holds a tuple of
    :class:`~fedapps.tasks.driving.closed_loop.Encounters`, empty for recorded trials.

    As in the paper, windows cover whole sessions including lane changes, although the planner only needs forecasts
    before them. With the default ``kl_weight`` the latent variable carries almost no information once the decoder
    receives the state: samples of a forecast lie close together.
    """

    validation_options: ClassVar[Mapping[str, object]] = {"validation_share": 0.2}
    trained_model: ClassVar[str] = "fedapps.tasks.driving.trained:DrivingTrained"
    vectorises: ClassVar[bool] = False  # vmap does not support LSTMs

    def __init__(self, options: DrivingOptions | None = None) -> None:
        super().__init__(options)
        self.setting = SETTINGS[self.options.scenario]

    @property
    def validation_metric(self) -> str:
        return "validation.elbo"

    def without_test(self, data: NodeData) -> NodeData:
        """As :meth:`~fedapps.tasks.base.Task.without_test`, without held-out initial states of the closed loop too."""
        met = tuple(replace(who, test=who.test[:0]) for who in _encounters(data))
        return super().without_test(replace(data, extra={**data.extra, "encounters": met}))

    def build_model(self) -> Forecaster:
        return Forecaster(
            self.setting.features,
            hidden=self.options.hidden,
            latent=self.options.latent,
            posterior=self.options.posterior,
            context=self.options.context == "state",
        )

    @property
    def can_collect(self) -> bool:
        return self.has_world

    def load_node(self, folder: Path, partition: int, num_partitions: int) -> NodeData:
        recording = self.checked(folder, read_folder(folder, self.road))
        return self._node(recording, block_of(folder, recording, partition, num_partitions))

    def load_all(self, folder: Path) -> NodeData:
        recording = self.checked(folder, read_folder(folder, self.road))
        return self._node(recording, list(recording.blocks))

    def loss(self, model: torch.nn.Module, batch: Batch) -> Tensor:
        """The reconstruction error + ``kl_weight`` x KL (:class:`~fedapps.tasks.driving.forecaster.Forecaster`)."""
        reconstruction, divergence = elbo_parts(_forecaster(model), batch)
        return reconstruction.mean() + self.options.kl_weight * divergence.mean()

    def evaluate(self, model: torch.nn.Module, data: NodeData, *, seed: int, final: bool) -> Evaluation:
        """``validation.*``, ``test.*`` (:func:`~fedapps.tasks.driving.forecaster.scores`) and, with ``final``,
        closed-loop metrics.

        If the driver is simulated, ``final`` adds ``closed_loop.*`` and, for a robot without a forecaster,
        ``non_proactive.*`` on the held-out initial states (:func:`~fedapps.tasks.driving.closed_loop.session_metrics`),
        and traces to draw (:func:`~fedapps.tasks.driving.closed_loop.traces`).
        """
        forecaster = _forecaster(model)
        metrics: Metrics = {}
        drawn: dict[str, np.ndarray] = {}
        for split in ("validation", "test"):
            with torch_seed(seed, "driving", split), torch.no_grad():
                if data.count(split):
                    metrics |= scores(forecaster, self.setting, self.options, data.splits[split], split)
        if final and (met := [who for who in _encounters(data) if len(who.test)]):
            forecast = Forecast(forecaster, self.setting, self.options)
            naive: Predictor = ConstantVelocity()
            if self.options.non_proactive == "hold-control":
                naive = HoldLastControl(self.setting)
            with torch_seed(seed, "driving", "closed-loop"):
                driven = [drive(self.setting, self.options, forecast, who, who.test) for who in met]
                drawn = traces(self.setting, forecast, driven[0])
            plain = [drive(self.setting, self.options, naive, who, who.test) for who in met]
            metrics |= session_metrics("closed_loop", driven) | session_metrics("non_proactive", plain)
        return Evaluation(metrics, drawn)

    def node_references(self, folder: Path, num_nodes: int) -> Mapping[str, Sequence[Metrics]]:
        """The test metrics of a human that keeps its velocity
        (:func:`~fedapps.tasks.driving.forecaster.constant_velocity`)."""
        tested = [data.splits.get("test") for data in self.nodes_in(folder, num_nodes)]
        floor: list[Metrics] = [{**constant_velocity(test, self.options, "test")} if test else {} for test in tested]
        return {CONSTANT_VELOCITY: floor}

    def collect(self, model: torch.nn.Module, data: NodeData, *, seed: int) -> Mapping[str, np.ndarray]:
        """Return windows of the training sessions, simulated again with ``model`` in the loop (APFL, Section IV-B)."""
        met = _encounters(data)
        if not met:
            raise NotImplementedError("recorded trials cannot be simulated again: there is no driver to simulate")
        forecast = Forecast(_forecaster(model), self.setting, self.options)
        with torch_seed(seed, "driving", "collect"):
            driven = [drive(self.setting, self.options, forecast, who, who.train) for who in met]
        sessions = [session for run in driven for session in as_sessions(run, "train")]
        return {name: tensor.numpy() for name, tensor in cut(self.setting, self.options, sessions).items()}

    def with_collected(self, data: NodeData, collected: Mapping[str, np.ndarray]) -> NodeData:
        before = data.splits["train"]
        joined = {name: torch.cat((before[name], torch.from_numpy(collected[name]))) for name in before}
        return replace(data, splits={**data.splits, "train": joined})

    def _node(self, recording: Recording, blocks: list[int]) -> NodeData:
        sessions = [session for block in blocks for session in recording.blocks[block]]
        splits = {
            split: cut(self.setting, self.options, [session for session in sessions if session.split == split])
            for split in SPLITS
        }
        drivers = recording.world.drivers if recording.world else {}
        seed = recording.world.seed if recording.world else 0
        met = tuple(encounters(drivers[block], seed, recording.blocks[block]) for block in blocks if block in drivers)
        return NodeData(
            key=key_of(blocks),
            splits={split: windows for split, windows in splits.items() if len(windows["history"])},
            groups=groups_of(blocks, {block: driver.gamma for block, driver in drivers.items()}),
            extra={"encounters": met},
        )


def _forecaster(model: torch.nn.Module) -> Forecaster:
    if not isinstance(model, Forecaster):
        raise TypeError(f"the model is a {type(model).__name__}: the task 'driving' needs a Forecaster")
    return model


def _encounters(data: NodeData) -> tuple[Encounters, ...]:
    met = data.extra.get("encounters", ())
    assert isinstance(met, tuple)
    return met
