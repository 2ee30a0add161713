"""Predict and imitate a linear-quadratic regulator (APFL, Section IV-A, Table II and Figure 4).

The model has eight parameters: shared dynamics and a personal gain.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TextIO, cast

import numpy as np
import torch
from fedapps.tasks.answers import Network, finite_answer, finite_numbers
from fedapps.tasks.base import WEIGHT, Batch, Evaluation, Metrics, NodeData, Task
from fedapps.tasks.profiles import ModelRoles, NodeProfile, Secret
from fedapps.tasks.trained import TrainedModel
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn.functional import linear, mse_loss

from fedapps.base.errors import DataError
from fedapps.base.options import option
from fedapps.base.tables import stream_rows

from .world import SPLITS, VALUES, A, B, FloatArray, optimal_gain, read_rollouts, robot_file, robot_files, write_world

INPUTS = ("y", "v", "u")
TARGETS = ("next_y", "next_v", "u")
#: The floor of a comparison: the state does not change, and the control is zero.
REST = "no motion, no control"


@dataclass(frozen=True)
class LqrOptions:
    """Options of the task "lqr". The defaults are the paper's, except for the range of initial states (ours)."""

    start_range: float = option(
        10.0, "Initial positions and velocities are uniform in ±start-range", above=0, data=True
    )
    trajectories: int = option(
        40, "Rollouts per robot; at least one is for training and one for testing", minimum=2, data=True
    )
    horizon: int = option(30, "Steps per rollout", minimum=1, data=True)
    test_fraction: float = option(
        0.1, "Share of each robot's rollouts held out for testing", minimum=0, maximum=1, data=True
    )
    validation_share: float = option(
        0.0,
        "Share of a robot's training steps held out for validation, the last ones of its file, if the file has no "
        "validation split",
        minimum=0,
        maximum=0.9,
    )
    noise_variance: float = option(
        0.01, "Variance of the noise on the control and on each component of the state", minimum=0, data=True
    )


class Dynamics(nn.Module):
    """The matrices ``A [2, 2]`` and ``B [2, 1]`` of ``x' = A x + B u``."""

    def __init__(self) -> None:
        super().__init__()
        self.A = nn.Parameter(torch.empty(2, 2))
        self.B = nn.Parameter(torch.empty(2, 1))


class Policy(nn.Module):
    """The gain ``K [1, 2]`` of ``u = -K x``."""

    def __init__(self) -> None:
        super().__init__()
        self.K = nn.Parameter(torch.empty(1, 2))


class LqrModel(nn.Module):
    """Predicts the next state and the control, with the parameters ``dynamics.A``, ``dynamics.B`` and ``policy.K``.

    Initial values are uniform in ``±1 / sqrt(inputs)``, as in torch's linear layers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.dynamics = Dynamics()
        self.policy = Policy()
        with torch.no_grad():
            for parameter, inputs in ((self.dynamics.A, 3), (self.dynamics.B, 3), (self.policy.K, 2)):
                parameter.uniform_(-(inputs**-0.5), inputs**-0.5)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Predict the next state ``[N, 2]`` and the control ``[N, 1]`` from ``inputs [N, 3] = (y, v, u)``."""
        state = inputs[:, :2]
        following = linear(inputs, torch.cat((self.dynamics.A, self.dynamics.B), dim=1))
        return following, linear(state, -self.policy.K)


def read_robots(paths: Iterable[Path], validation_share: float = 0.0) -> NodeData:
    """Read files of robots as the data of one node (:func:`.read_rollouts`).

    Returns
    -------
    NodeData
        Its splits hold ``inputs [N, 3] = (y, v, u)`` and ``targets [N, 3] = (next_y, next_v, u)``, float32.
        ``extra["control-weights"]`` maps each split to the cost ``R`` of every row, float64 ``[N]``.

    Raises
    ------
    DataError
        A file is malformed, or no row belongs to the split train or test.
    """
    rollouts = read_rollouts(paths, validation_share)
    inputs, targets = ([VALUES.index(name) for name in names] for names in (INPUTS, TARGETS))
    splits = {
        split: {
            "inputs": torch.tensor(table[:, inputs], dtype=torch.float32),
            "targets": torch.tensor(table[:, targets], dtype=torch.float32),
        }
        for split, table in rollouts.tables.items()
    }
    weights = {split: table[:, VALUES.index("control_weight")] for split, table in rollouts.tables.items()}
    return NodeData(rollouts.key, splits, rollouts.groups, {"control-weights": weights})


class LqrTask(Task):
    """Identify ``x' = A x + B u``, which all robots share, and imitate each robot's ``u = -K x``.

    A node is a robot; its file holds its rollouts.
    """

    name: ClassVar[str] = "lqr"
    Options: ClassVar[type] = LqrOptions
    in_order: ClassVar[bool] = True
    headline: ClassVar[tuple[str, ...]] = ("test.state_loss", "test.control_loss", "test.total_loss", "test.excess")
    files: ClassVar[Mapping[str, str]] = {
        "`robot-NAME.csv`": (
            "`y, v, u, next_y, next_v` (position, velocity, control; the next ones), `control_weight` (R of "
            "the cost, above 0), `split` (train, validation, test)"
        )
    }
    floors: ClassVar[tuple[str, ...]] = (REST,)
    trained_model: ClassVar[str] = "fedapps.tasks.lqr.task:LqrTrained"
    log_import: ClassVar[str] = "fedapps.tasks.lqr.logs:LqrImport"
    squared_residuals: ClassVar[int] = 3  # two components of the state and the control
    validation_options: ClassVar[Mapping[str, object]] = {"validation_share": 0.2}

    @cached_property  # every message asks for the folder of the world
    def world_options(self) -> dict[str, object]:
        """All but the share of the training steps for validation, which is held out when the files are read."""
        return {name: value for name, value in asdict(self.options).items() if name != "validation_share"}

    @property
    def roles(self) -> ModelRoles:
        """The head is the personal gain, which is not computed from the dynamics."""
        return ModelRoles(head=("policy.*",), body=("dynamics.*",))

    def make_world(self, folder: Path, num_nodes: int, seed: int) -> None:
        """Simulate robots with ``R`` = 1, 50 and 100; any other number of robots is spaced logarithmically over [1,
        100].
        """
        options = self.options
        write_world(
            folder,
            num_nodes,
            seed,
            count=options.trajectories,
            horizon=options.horizon,
            test_fraction=options.test_fraction,
            start_range=options.start_range,
            noise_variance=options.noise_variance,
        )

    def node_profile(self, folder: Path, partition: int, num_partitions: int) -> NodeProfile:
        return self._profile([robot_file(folder, partition, num_partitions)])

    def describe_data(self, folder: Path, *, own: bool = False) -> str:
        files = robot_files(folder)
        tables = read_rollouts(files, self.options.validation_share).tables
        counts = ", ".join(f"{len(tables.get(split, ()))} {split}" for split in SPLITS)
        return f"{len(files)} robots ({files[0].name} to {files[-1].name}), steps by the column split: {counts}"

    def own_files(self, folder: Path, partition: int, num_partitions: int) -> list[Path]:
        return [robot_file(folder, partition, num_partitions)]

    def own_profile(self, folder: Path) -> NodeProfile:
        return self._profile(robot_files(folder))

    def _profile(self, files: list[Path]) -> NodeProfile:
        rollouts = read_rollouts(files, self.options.validation_share)
        return NodeProfile(rollouts.key, len(rollouts.tables.get("train", ())), rollouts.groups)

    @property
    def validation_metric(self) -> str:
        return "validation.total_loss"

    def build_model(self) -> LqrModel:
        return LqrModel()

    def load_node(self, folder: Path, partition: int, num_partitions: int) -> NodeData:
        return read_robots([robot_file(folder, partition, num_partitions)], self.options.validation_share)

    def load_all(self, folder: Path) -> NodeData:
        return read_robots(robot_files(folder), self.options.validation_share)

    def within(self, data: NodeData, start: int, end: int, *, test: bool) -> NodeData:
        """Cut the control weights of the rows, too."""
        weights = dict(cast(Mapping[str, FloatArray], data.extra["control-weights"]))
        weights |= {"test": weights["train"][end:]} if test else {}
        weights["train"] = weights["train"][start:end]
        return super().within(replace(data, extra={"control-weights": weights}), start, end, test=test)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean squared error of the state, averaged over its two components, plus that of the control."""
        state_loss, control_loss = _losses(model(batch["inputs"]), batch["targets"])
        return state_loss + control_loss

    def batches(self, data: NodeData, split: str, batch_size: int) -> Iterator[Batch]:
        """Yield the batches of :meth:`fedapps.tasks.base.Task.batches`, indexing once per epoch because indexing is
        slow here.
        """
        order = torch.randperm(data.count(split))
        inputs, targets = (data.splits[split][name][order] for name in ("inputs", "targets"))
        for start in range(0, len(order), batch_size):
            stop = start + batch_size
            yield {"inputs": inputs[start:stop], "targets": targets[start:stop]}

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """The states, searched within 1.5 times the range of the first ones. The gradient of a linear model does not
        change with the sign of its inputs and targets.
        """
        size = 3 * self.options.start_range

        def with_inputs(batch: Batch, unknown: Tensor) -> Batch:
            inputs = (unknown - 0.5) * size
            return {"inputs": inputs, "targets": torch.cat([batch["targets"][:, :2], inputs[:, 2:]], dim=1)}

        def with_targets(batch: Batch, unknown: Tensor) -> Batch:
            following = (unknown[:, :2] - 0.5) * size
            return {**batch, "targets": torch.cat([following, batch["targets"][:, 2:]], dim=1)}

        def position(batch: Batch) -> Tensor:
            return batch["inputs"][:, :1]

        def following(batch: Batch) -> Tensor:
            return batch["targets"][:, :1]

        return (
            Secret("inputs", "positions, up to the sign", 0.1, with_inputs, position, "m", either_sign=True),
            Secret("targets", "next positions, up to the sign", 0.1, with_targets, following, "m", either_sign=True),
        )

    def node_references(self, folder: Path, num_nodes: int) -> Mapping[str, Sequence[Metrics]]:
        """The test losses of the prediction that the state does not change and the control is zero."""
        return {REST: [_at_rest(data) for data in self.nodes_in(folder, num_nodes)]}

    @torch.no_grad()
    def evaluate(self, model: nn.Module, data: NodeData, *, seed: int, final: bool) -> Evaluation:
        """Return losses and distances of an :class:`LqrModel` from the true parameters.

        The metrics are ``state_loss``, ``control_loss`` and ``total_loss`` (Table II); ``excess``, the total loss minus
        that of the true parameters on the same rows, which removes the noise of the test set; and ``dynamics_distance``
        and ``gain_distance``, the Euclidean distances of Figure 4. In pooled data every row is compared with its own
        robot, and the distance of the gain is averaged over rows.
        """
        model = cast(LqrModel, model)
        weights = cast(Mapping[str, np.ndarray], data.extra["control-weights"])
        learned = torch.cat((model.dynamics.A, model.dynamics.B), dim=1).cpu().double()
        dynamics = torch.from_numpy(np.concatenate((A, B), axis=1))
        metrics: Metrics = {}
        for split in ("validation", "test"):
            if not data.count(split):
                continue
            batch = {name: data.splits[split][name].to(model.dynamics.A.device) for name in ("inputs", "targets")}
            gains = torch.tensor([optimal_gain(float(weight)) for weight in weights[split]]).double()
            exact = batch["inputs"].cpu().double()
            truth = exact @ dynamics.t(), -(gains * exact[:, :2]).sum(dim=1, keepdim=True)
            floor = sum(_losses(truth, batch["targets"].cpu().double()))
            predicted = tuple(part.double() for part in model(batch["inputs"]))
            state_loss, control_loss = _losses(predicted, batch["targets"].double())
            total = state_loss + control_loss
            measured = {
                "state_loss": state_loss,
                "control_loss": control_loss,
                "total_loss": total,
                "excess": total.cpu() - floor,
                "dynamics_distance": torch.linalg.vector_norm(learned - dynamics),
                "gain_distance": torch.linalg.vector_norm(model.policy.K.cpu() - gains, dim=1).mean(),
            }
            metrics |= {f"{split}.{name}": float(value) for name, value in measured.items()}
        return Evaluation(metrics)


def _at_rest(data: NodeData) -> Metrics:
    if not data.count("test"):
        return {}
    inputs, targets = (data.splits["test"][name].double() for name in ("inputs", "targets"))
    state, control = _losses((inputs[:, :2], torch.zeros(len(inputs), 1)), targets)
    measured = {"state_loss": state, "control_loss": control, "total_loss": state + control}
    return {WEIGHT: data.evaluated, **{f"test.{name}": float(value) for name, value in measured.items()}}


def _losses(predicted: tuple[Tensor, ...], targets: Tensor) -> tuple[Tensor, Tensor]:
    """Mean squared errors of the state, averaged over components, and of the control."""
    following, control = predicted
    return mse_loss(following, targets[:, :2]), mse_loss(control, targets[:, 2:])


class LqrTrained(TrainedModel):
    """A robot's linear controller ``u = -K x`` with the shared dynamics ``x' = A x + B u``; ``x = (y, v)``.

    The unit of the position ``y`` is that of the robot's files, the velocity ``v`` is per control step, and ``u``
    changes the velocity in one step.
    """

    module: LqrModel
    pipeline_tag: ClassVar[str] = "robotics"

    #: The columns that :meth:`rows` reads.
    columns: ClassVar[tuple[str, ...]] = ("y", "v")

    @property
    def gain(self) -> FloatArray:
        """``K``, float64 ``[1, 2]``."""
        return _array(self.module.policy.K)

    @property
    def dynamics(self) -> tuple[FloatArray, FloatArray]:
        """``A`` ``[2, 2]`` and ``B`` ``[2, 1]``, float64."""
        return _array(self.module.dynamics.A), _array(self.module.dynamics.B)

    def control(self, state: ArrayLike, limit: float = np.inf) -> FloatArray:
        """Return the control ``-K x``.

        Parameters
        ----------
        state : array [2] or [n, 2]
            Position and velocity, of one or of several robots.
        limit : float
            ≥ 0, the largest absolute value of the control.

        Returns
        -------
        ndarray float64 [1] or [n, 1]

        Raises
        ------
        DataError
            A shape is wrong, a number of the state or of the control is not finite, or a control is beyond the limit.
        """
        return finite_answer(self._control(_state(state)), "control", limit)

    def step(self, state: ArrayLike) -> FloatArray:
        """Return the state after one step of the closed loop, ``(A - B K) x``, with the learned dynamics.

        Parameters
        ----------
        state : array [2] or [n, 2]
            As in :meth:`control`.

        Returns
        -------
        ndarray float64 [2] or [n, 2]

        Raises
        ------
        DataError
            As :meth:`control`.
        """
        A, B = self.dynamics
        current = _state(state)
        with np.errstate(over="ignore", invalid="ignore"):  # reported as an error
            following = current @ A.T + self._control(current) @ B.T
        return finite_answer(following, "state")

    def _control(self, state: FloatArray) -> FloatArray:
        with np.errstate(over="ignore", invalid="ignore"):  # reported as an error
            control = -state @ self.gain.T
        return finite_answer(control, "control")

    def rows(self, inputs: Sequence[Path | TextIO], batch_size: int = 128) -> Iterator[dict[str, Any]]:
        """Yield ``u``, ``next_y`` and ``next_v`` for each state, whose columns are ``y`` and ``v``, in CSV or JSON
        lines.
        """
        for source in inputs:
            for row in stream_rows(source, self.columns):
                state = np.array([row.number(name) for name in self.columns])
                (u,), (y, v) = self.control(state), self.step(state)
                yield {"y": state[0], "v": state[1], "u": u, "next_y": y, "next_v": v}

    def network(self, example: NodeData | None = None) -> Network:
        """Map ``inputs`` ``[n, 3] = (y, v, u)`` to ``next_state`` ``[n, 2]`` and ``control`` ``[n, 1]``."""
        inputs = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        return Network(
            deepcopy(self.module).cpu(), (inputs,), ("inputs",), ("next_state", "control"), {"inputs": {0: "batch"}}
        )


def _array(parameter: torch.Tensor) -> FloatArray:
    return parameter.detach().cpu().numpy().astype(np.float64)


def _state(values: ArrayLike) -> FloatArray:
    state = finite_numbers(values, "state").astype(np.float64)
    if state.shape[-1:] != (2,) or state.ndim > 2:
        raise DataError(f"state: must have the shape [2] or [n, 2], not {list(state.shape)}")
    return state
