"""Predict and imitate a linear-quadratic regulator (APFL, Section IV-A, Table II and Figure 4).

The model has eight parameters: shared dynamics and a personal gain.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, cast

import numpy as np
import torch
from fedapps.tasks.base import Batch, Evaluation, Metrics, NodeData, Task
from fedapps.tasks.lqr import world as lqr
from torch import Tensor, nn
from torch.nn.functional import linear, mse_loss

from .profile import COLUMNS, INPUTS, REST, TARGETS, LqrProfiles, read_rollouts, robot_file, robot_files


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
    found = read_rollouts(paths, validation_share)
    inputs, targets = ([COLUMNS.index(name) for name in names] for names in (INPUTS, TARGETS))
    splits = {
        split: {
            "inputs": torch.tensor(table[:, inputs], dtype=torch.float32),
            "targets": torch.tensor(table[:, targets], dtype=torch.float32),
        }
        for split, table in found.tables.items()
    }
    weights = {split: table[:, COLUMNS.index("control_weight")] for split, table in found.tables.items()}
    return NodeData(found.key, splits, found.groups, {"control-weights": weights})


class LqrTask(LqrProfiles, Task):
    """Identify ``x' = A x + B u``, which all robots share, and imitate each robot's ``u = -K x``."""

    trained_model: ClassVar[str] = "fedapps.tasks.lqr.trained:LqrTrained"
    squared_residuals: ClassVar[int] = 3  # two components of the state and the control
    validation_options: ClassVar[Mapping[str, object]] = {"validation_share": 0.2}

    @property
    def validation_metric(self) -> str:
        return "validation.total_loss"

    def build_model(self) -> LqrModel:
        return LqrModel()

    def load_node(self, folder: Path, partition: int, num_partitions: int) -> NodeData:
        return read_robots([robot_file(folder, partition, num_partitions)], self.options.validation_share)

    def load_all(self, folder: Path) -> NodeData:
        return read_robots(robot_files(folder), self.options.validation_share)

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
        dynamics = torch.from_numpy(np.concatenate((lqr.A, lqr.B), axis=1))
        metrics: Metrics = {}
        for split in ("validation", "test"):
            if not data.count(split):
                continue
            batch = data.splits[split]
            gains = torch.tensor([lqr.optimal_gain(float(weight)) for weight in weights[split]]).double()
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
    return {f"test.{name}": float(value) for name, value in measured.items()}


def _losses(predicted: tuple[Tensor, ...], targets: Tensor) -> tuple[Tensor, Tensor]:
    """Mean squared errors of the state, averaged over components, and of the control."""
    following, control = predicted
    return mse_loss(following, targets[:, :2]), mse_loss(control, targets[:, 2:])
