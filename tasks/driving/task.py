"""The task "driving": forecast a human driver given the robot's plan, and plan with the forecast."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, cast

import numpy as np
import torch
from fedapps.tasks.base import WEIGHT, Batch, Evaluation, Metrics, NodeData, Task
from fedapps.tasks.driving.world.sessions import HUMAN, WORLD_FILE, World, read_world
from fedapps.tasks.profiles import ModelRoles, NodeProfile, Secret, check_partition
from torch import Tensor

from fedapps.base.errors import DataError
from fedapps.base.seeding import torch_seed

from . import planner
from .closed_loop import Encounters, as_sessions, drive, encounters, session_metrics, simulate_world, traces
from .data import SPLITS, Recording, cut, files_of, read_folder, read_sessions, with_validation
from .options import SETTINGS
from .options import Options as DrivingOptions
from .pedestrians import batch_of, files_left_out, files_of_recordings, left_out, read_pedestrians
from .pedestrians import constant_velocity as same_step
from .pedestrians import scores as walking_scores

#: The floor of a comparison: the human keeps its velocity.
CONSTANT_VELOCITY = "constant velocity"


class DrivingTask(Task):
    """Negotiate a lane change with a human driver (APFL, Sections IV-B and IV-C).

    A node is a robot that always meets the same driver, a block of the files: a simulated one with a certain risk
    tolerance, or one of recorded trials. ``NodeData.extra["encounters"]`` holds a tuple of
    :class:`~fedapps.tasks.driving.closed_loop.Encounters`, empty for recorded trials.

    As in the paper, windows cover whole sessions including lane changes, although the planner only needs forecasts
    before them. With the default ``kl_weight`` the latent variable carries almost no information once the decoder
    receives the state: samples of a forecast lie close together.
    """

    name: ClassVar[str] = "driving"
    Options: ClassVar[type] = DrivingOptions
    options: DrivingOptions
    headline: ClassVar[tuple[str, ...]] = (
        "test.elbo",
        "test.error_1.5s",
        "unseen.ade",
        "unseen.fde",
        "unseen.best_ade",
        "unseen.best_fde",
        "test.ade",
        "closed_loop.mean_cost",
        "closed_loop.mean_time_to_lane_change",
        "closed_loop.mean_distance_at_start",
        "non_proactive.mean_cost",
    )
    files: ClassVar[Mapping[str, str]] = {
        "`*.csv`, a row per 0.1 s": (
            "`trial, block, step, t` (a block is a node), robot `xr yr vxr vyr axr ayr` and human `xh` to "
            "`ayh` (m and s; x along the road)"
        ),
        "`NAME.txt`, or `NAME_{train,val}.txt`": (
            "`frame id x y` (m), a recording of pedestrians each 0.4 s, frames step by 10; the last fifth of "
            '`NAME.txt` is the test; `driving.scenario = "pedestrians"`'
        ),
    }
    floors: ClassVar[tuple[str, ...]] = (CONSTANT_VELOCITY,)
    #: The robot without a forecaster.
    rivals: ClassVar[Mapping[str, tuple[str, str]]] = {
        "closed_loop.mean_cost": ("non-proactive", "non_proactive.mean_cost")
    }
    validation_options: ClassVar[Mapping[str, object]] = {"validation_share": 0.2}
    trained_model: ClassVar[str] = "fedapps.tasks.driving.trained:DrivingTrained"
    log_import: ClassVar[str] = "fedapps.tasks.driving.logs:DrivingImport"
    vectorises: ClassVar[bool] = False  # vmap does not support LSTMs

    def __init__(self, options: DrivingOptions | None = None) -> None:
        """Raise :class:`~fedapps.base.errors.DataError` if an option is invalid, also for the scenario."""
        super().__init__(options)
        self.road = self.options.road
        self.setting = SETTINGS[self.options.scenario]
        if self.walking and self.options.min_history != self.options.history:
            raise DataError(
                f"driving.min-history = {self.options.min_history}: must be driving.history ({self.options.history}) "
                "for pedestrians, whose windows have all steps"
            )
        if self.walking and self.options.history < 2:
            raise DataError(
                "driving.history = 1: must be at least 2 for pedestrians, whose velocity is the difference of two steps"
            )

    @property
    def walking(self) -> bool:
        """Whether the data are recorded pedestrians, without cars and roads."""
        return self.options.scenario == "pedestrians"

    @property
    def roles(self) -> ModelRoles:
        """The head turns the decoder's states into the human's controls."""
        read = ("past.*", "plan.*", "encoder.*", "decoder.*")
        inferred = ("outcome.*", "recognition.*") if self.options.posterior == "cvae" else ()
        return ModelRoles(head=("controls.*",), body=(*read, *inferred), features=True)

    @property
    def has_world(self) -> bool:
        return self.setting.scenario is not None

    def make_world(self, folder: Path, num_nodes: int, seed: int) -> None:
        """Simulate sessions (:func:`~fedapps.tasks.driving.closed_loop.simulate_world`)."""
        simulate_world(folder, self.options, num_nodes, seed)

    def node_profile(self, folder: Path, partition: int, num_partitions: int) -> NodeProfile:
        recording = self._recording(folder)
        return self._profile(folder, recording, block_of(folder, recording.blocks, partition, num_partitions))

    def describe_data(self, folder: Path, *, own: bool = False) -> str:
        recording = self._recording(folder)
        sessions = [session for of_block in recording.blocks.values() for session in of_block]
        counts = ", ".join(f"{sum(s.split == split for s in sessions)} {split}" for split in SPLITS)
        if self.walking:
            names = ", ".join(recording.names.values())
            return f"recordings: {names}; windows: {counts}; left out: {self.options.left_out}"
        line = f"{len(recording.blocks)} drivers (column block), sessions: {counts}; m and m/s, x along the road"
        if recording.dynamics == "bicycle":
            return line
        left_out = self.options.demonstrations or "none"
        return f"{line}; line between the lanes at y = {self.road.lane_line:g} m; blocks left out: {left_out}"

    def own_files(self, folder: Path, partition: int, num_partitions: int) -> list[Path]:
        """A simulated node also has ``world.json``, with which it can simulate its driver again, and one of pedestrians
        the place that is left out."""
        if self.walking:
            recordings = list(files_of_recordings(folder, self.options).values())
            (number,) = block_of(folder, range(len(recordings)), partition, num_partitions)
            return [*recordings[number].values(), *files_left_out(folder, self.options)]
        (block,) = block_of(folder, read_sessions(folder, self.road).blocks, partition, num_partitions)
        files, world = files_of(folder, block, self.road), folder / WORLD_FILE
        return [*files, world] if files and world.exists() else files

    def own_profile(self, folder: Path) -> NodeProfile:
        recording = self._recording(folder)
        return self._profile(folder, recording, list(recording.blocks))

    @property
    def world_options(self) -> dict[str, object]:
        """The options that :meth:`make_world` depends on."""
        names = ("scenario", "driver_style", "sessions_train", "sessions_test", "horizon", "candidates")
        return {name: getattr(self.options, name) for name in names}

    def _recording(self, folder: Path) -> Recording:
        read = read_pedestrians(folder, self.options) if self.walking else read_folder(folder, self.road)
        return self.checked(folder, read)

    def checked(self, folder: Path, recording: Recording) -> Recording:
        """Return the sessions with those for validation.

        Raises
        ------
        DataError
            The sessions do not have the dynamics and the number of cars of the scenario.
        """
        expected = ("bicycle" if self.setting.bicycle else "point", self.setting.cars)
        if (recording.dynamics, recording.cars) != expected:
            raise DataError(
                f"{folder}: holds {recording.cars} cars with {recording.dynamics} dynamics; scenario "
                f"{self.options.scenario!r} expects {expected[1]} cars with {expected[0]} dynamics (driving.scenario; "
                "recorded trials of people are 'trials')"
            )
        return with_validation(recording, self.options.validation_share)

    def _profile(self, folder: Path, recording: Recording, blocks: list[int]) -> NodeProfile:
        styles = styles_of(read_world(folder))
        lengths = [len(s.states) for block in blocks for s in recording.blocks[block] if s.split == "train"]
        windows = sum(len(self.options.moments(length)) for length in lengths)
        return NodeProfile(key_of(recording, blocks), windows, groups_of(blocks, styles))

    @property
    def validation_metric(self) -> str:
        return "validation.elbo"

    def without_test(self, data: NodeData) -> NodeData:
        """As :meth:`~fedapps.tasks.base.Task.without_test`, without held-out initial states of the closed loop too."""
        met = tuple(replace(who, test=who.test[:0]) for who in _encounters(data))
        return super().without_test(replace(data, extra={**data.extra, "encounters": met}))

    def build_model(self) -> planner.Forecaster:
        return planner.Forecaster(
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
        recording = self._recording(folder)
        return self._node(folder, recording, block_of(folder, recording.blocks, partition, num_partitions))

    def load_all(self, folder: Path) -> NodeData:
        return replace(self.load_own(folder), key="pooled")

    def load_own(self, folder: Path) -> NodeData:
        recording = self._recording(folder)
        return self._node(folder, recording, list(recording.blocks))

    def loss(self, model: torch.nn.Module, batch: Batch) -> Tensor:
        """The :func:`~fedapps.tasks.driving.planner.reconstruction` error + ``kl_weight`` x KL."""
        error, divergence = planner.elbo_parts(_forecaster(model), self.setting, self.options, batch)
        return error.mean() + self.options.kl_weight * divergence.mean()

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """The driver's path from the middle of the road, at a common speed, and what it did before."""
        setting = self.setting

        def with_past(batch: Batch, unknown: Tensor) -> Batch:
            seen = batch["history"][..., -1:]
            return {**batch, "history": torch.cat([(6 * unknown[..., :-1] - 3) * seen, seen], dim=-1)}

        def across(batch: Batch) -> Tensor:
            human = setting.middle + setting.lateral * batch["history"][..., HUMAN]
            return torch.where(batch["history"][..., -1] != 0, human, torch.nan)

        def ahead(car: str) -> Secret:
            def fill(batch: Batch, unknown: Tensor) -> Batch:
                controls = 2 * unknown - 1
                if car == "robot":
                    return {**batch, "robot_future": controls}
                now = batch["current"][:, HUMAN]
                way = setting.roll_out(now, controls)[..., :2] - now[..., None, :2]
                return {**batch, "human_future": controls, "human_path": way}

            def path(batch: Batch) -> Tensor:
                controls = batch[f"{car}_future"]
                start = controls.new_tensor([0.0, 0.0, 0.0, setting.cruise]).expand(len(controls), -1)
                return setting.roll_out(start, controls)[..., :2]

            return Secret(f"{car}_future", f"path of the {car} ahead", 0.1, fill, path, "m")

        past = Secret("history", "past of the human across the road", 0.1, with_past, across, "m")
        return ahead("human"), ahead("robot"), past

    def evaluate(self, model: torch.nn.Module, data: NodeData, *, seed: int, final: bool) -> Evaluation:
        """``validation.*``, ``test.*`` (:func:`~fedapps.tasks.driving.planner.scores`) and, with ``final``,
        closed-loop metrics.

        If the driver is simulated, ``final`` adds ``closed_loop.*`` and, for a robot without a forecaster,
        ``non_proactive.*`` on the held-out initial states (:func:`~fedapps.tasks.driving.closed_loop.session_metrics`),
        and traces to draw (:func:`~fedapps.tasks.driving.closed_loop.traces`).
        """
        forecaster = _forecaster(model)
        metrics: Metrics = {}
        if self.walking:
            tested = {split: data.splits[split] for split in ("validation", "test") if data.count(split)}
            if final:
                tested |= cast(dict[str, Batch], data.extra["unseen"])
            for split, batch in tested.items():
                with torch_seed(seed, "driving", split):
                    metrics |= walking_scores(forecaster, self.setting, self.options, batch, split)
            return Evaluation(metrics)
        drawn: dict[str, np.ndarray] = {}
        for split in ("validation", "test"):
            with torch_seed(seed, "driving", split), torch.no_grad():
                if data.count(split):
                    metrics |= planner.scores(forecaster, self.setting, self.options, data.splits[split], split)
        if final and (met := [who for who in _encounters(data) if len(who.test)]):
            forecast = planner.Forecast(forecaster, self.setting, self.options)
            naive: planner.Predictor = planner.ConstantVelocity()
            if self.options.non_proactive == "hold-control":
                naive = planner.HoldLastControl(self.setting)
            with torch_seed(seed, "driving", "closed-loop"):
                driven = [drive(self.setting, self.options, forecast, who, who.test) for who in met]
                drawn = traces(self.setting, forecast, driven[0])
            plain = [drive(self.setting, self.options, naive, who, who.test) for who in met]
            metrics |= session_metrics("closed_loop", driven) | session_metrics("non_proactive", plain)
        return Evaluation(metrics, drawn)

    def node_references(self, folder: Path, num_nodes: int) -> Mapping[str, Sequence[Metrics]]:
        """The test metrics of a human that keeps its velocity
        (:func:`~fedapps.tasks.driving.planner.constant_velocity`)."""
        if self.walking:
            return {CONSTANT_VELOCITY: [self._unmoved(data) for data in self.nodes_in(folder, num_nodes)]}
        tested = [(data.evaluated, data.splits.get("test")) for data in self.nodes_in(folder, num_nodes)]
        floor: list[Metrics] = [
            {WEIGHT: count, **planner.constant_velocity(self.setting, self.options, test, "test")} if test else {}
            for count, test in tested
        ]
        return {CONSTANT_VELOCITY: floor}

    def _unmoved(self, data: NodeData) -> Metrics:
        batches = {**data.splits, **cast(dict[str, Batch], data.extra["unseen"])}
        scored = [
            same_step(self.setting, batch, split) for split, batch in batches.items() if split in ("test", "unseen")
        ]
        measured = {name: value for metrics in scored for name, value in metrics.items()}
        return {WEIGHT: data.evaluated, **measured}

    def collect(self, model: torch.nn.Module, data: NodeData, *, seed: int) -> Mapping[str, np.ndarray]:
        """Return windows of the training sessions, simulated again with ``model`` in the loop (APFL, Section IV-B)."""
        met = _encounters(data)
        if not met:
            raise NotImplementedError("recorded trials cannot be simulated again: there is no driver to simulate")
        forecast = planner.Forecast(_forecaster(model), self.setting, self.options)
        with torch_seed(seed, "driving", "collect"):
            driven = [drive(self.setting, self.options, forecast, who, who.train) for who in met]
        sessions = [session for run in driven for session in as_sessions(run, "train")]
        return {name: tensor.numpy() for name, tensor in cut(self.setting, self.options, sessions).items()}

    def with_collected(self, data: NodeData, collected: Mapping[str, np.ndarray]) -> NodeData:
        before = data.splits["train"]
        joined = {name: torch.cat((before[name], torch.from_numpy(collected[name]))) for name in before}
        return replace(data, splits={**data.splits, "train": joined})

    def _node(self, folder: Path, recording: Recording, blocks: list[int]) -> NodeData:
        sessions = [session for block in blocks for session in recording.blocks[block]]
        cut_all = batch_of if self.walking else cut
        splits = {
            split: cut_all(self.setting, self.options, [session for session in sessions if session.split == split])
            for split in SPLITS
        }
        world = recording.world
        met: tuple[Encounters, ...] = ()
        if world:
            met = tuple(
                encounters(world.drivers[block], world.seed, recording.blocks[block])
                for block in blocks
                if block in world.drivers
            )
        return NodeData(
            key=key_of(recording, blocks),
            splits={split: windows for split, windows in splits.items() if len(windows["history"])},
            groups=groups_of(blocks, styles_of(world)),
            extra={"encounters": met, "unseen": left_out(folder, self.options) if self.walking else {}},
        )


def _forecaster(model: torch.nn.Module) -> planner.Forecaster:
    return cast(planner.Forecaster, model)


def _encounters(data: NodeData) -> tuple[Encounters, ...]:
    return cast(tuple[Encounters, ...], data.extra.get("encounters", ()))


def block_of(folder: Path, known: Iterable[int], partition: int, num_partitions: int) -> list[int]:
    """Return the block of node ``partition``. Raise :class:`DataError` if there is no such node, or none for each."""
    check_partition(partition, num_partitions)
    blocks = list(known)
    if num_partitions > len(blocks):
        raise DataError(
            f"{folder}: holds {len(blocks)} blocks (drivers or recordings), one for a node, but num-nodes is "
            f"{num_partitions}; set num-nodes = {len(blocks)} or fewer"
        )
    return blocks[partition : partition + 1]


def key_of(recording: Recording, blocks: Sequence[int]) -> str:
    """Return the key of a node that has these blocks."""
    return "+".join(recording.names.get(block, f"driver-{block:02d}") for block in blocks)


def styles_of(world: World | None) -> dict[int, float]:
    """Return the risk tolerance gamma of each simulated block's driver."""
    return {block: driver.gamma for block, driver in world.drivers.items()} if world else {}


def groups_of(blocks: Sequence[int], styles: Mapping[int, float]) -> dict[str, str]:
    """Return the style of the driver, for a node that meets a single, simulated driver."""
    return {"style": f"{styles[blocks[0]]:+.2f}"} if len(blocks) == 1 and blocks[0] in styles else {}
