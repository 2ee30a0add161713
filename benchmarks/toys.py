"""Small problems of the papers of six standard methods, run by the methods themselves in one process.

- ``drift``: two nodes with θ² + Gθ and -Gθ. Local steps of FedAvg drift, the more the larger G is; those of SCAFFOLD do
  not (Karimireddy et al., ICML 2020).
- ``steps``: two nodes with ½ (θ - e)², where one takes three times as many local steps. FedAvg ends at the mean of the
  e weighted by steps, FedNova at the plain mean (Wang et al., NeurIPS 2020).
- ``curvature``: two nodes with ½ a (θ - b)². FedDyn ends at the optimum of the mean, FedAvg does not (Acar et al., ICLR
  2021).
- ``points``: each node observes its own point a few times, with noise (Li et al., Ditto, ICML 2021). The best λ is the
  variance of the mean of a node's observations, divided by the variance of the points.
- ``representation``: linear regression on a representation that nodes share and a head that they do not. The distance
  is that of the learned subspace to the true one (Collins et al., FedRep, ICML 2021).
- ``fair``: three nodes with ½ θ² and one with ½ (θ - 4)². q-FFL ends nearer to the one the larger q is (Li et al., ICLR
  2020), where Σ F^(q+1) is least: at θ = 4 / (1 + 3^(1 / (2 q + 1))).

The metric ``error`` is the distance to the optimum, the squared error of a node's point, the sine of the largest angle
between the subspaces, or the distance to the optimum of the fourth node.

    python -m benchmarks.toys --json rows.json
"""

import argparse
import logging
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
import torch
from fedapps.tasks.base import Batch, Evaluation, NodeData, Task
from fedapps.tasks.profiles import ModelRoles
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from fedapps.base.options import option
from fedapps.base.seeding import derive_seed
from fedapps.config.recipe_files import Value

from .commands import new_parser, run, show_methods
from .recipe_runs import final_metrics

Table = dict[str, np.ndarray]
#: Width of the inputs, width of the representation, and examples of a node of ``representation``.
WIDTH, RANK, EXAMPLES = 10, 2, 20
#: Observations of a node of ``points``, with variance 1, and their width.
OBSERVATIONS, COORDINATES = 4, 30


@dataclass(frozen=True)
class ToyOptions:
    """Which problem, and how much its nodes differ."""

    world: str = option(
        "drift", "the problem", choices=["drift", "steps", "curvature", "points", "representation", "fair"]
    )
    spread: float = option(1.0, "G of drift; standard deviation of the points", above=0)


class Toys(Task):
    """Quadratics ½ a θ² - h θ + c, whose examples have the columns a, h and c, and a linear regression of y on x."""

    name: ClassVar[str] = "toys"
    Options: ClassVar[type[Any]] = ToyOptions
    headline: ClassVar[tuple[str, ...]] = ("test.error",)
    metric_means: ClassVar[Mapping[str, Any]] = {"test.error": "uniform"}

    @property
    def roles(self) -> ModelRoles:
        return ModelRoles(head=("head.*",), body=("body.*",)) if self._linear else ModelRoles()

    @property
    def _linear(self) -> bool:
        return bool(self.options.world == "representation")

    def make_world(self, folder: Path, num_nodes: int, seed: int) -> None:
        for node, table in enumerate(WORLDS[self.options.world](self.options.spread, num_nodes, seed)):
            np.savez(folder / f"node-{node:03d}.npz", **table)

    def load_node(self, folder: Path, partition: int, num_partitions: int) -> NodeData:
        with np.load(folder / f"node-{partition:03d}.npz") as table:
            columns = {name: torch.from_numpy(table[name]) for name in table.files}
        return NodeData(f"node-{partition:03d}", {"test": {"goal": columns.pop("goal")}, "train": columns})

    def load_all(self, folder: Path) -> NodeData:
        raise NotImplementedError("no toy has pooled data")

    def build_model(self) -> nn.Module:
        if self._linear:
            layers: OrderedDict[str, nn.Module] = OrderedDict(
                body=nn.Linear(WIDTH, RANK, bias=False), head=nn.Linear(RANK, 1, bias=False)
            )
            return nn.Sequential(layers).double()
        size, start = (COORDINATES, 0.0) if self.options.world == "points" else (1, 1.0)
        return nn.ParameterDict({"theta": nn.Parameter(torch.full((size,), start, dtype=torch.float64))})

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        if self._linear:
            return 0.5 * mse_loss(model(batch["x"]), batch["y"])
        theta = model.get_parameter("theta")
        return (0.5 * batch["a"] * theta**2 - batch["h"] * theta + batch["c"]).sum(dim=1).mean()

    @torch.no_grad()
    def evaluate(self, model: nn.Module, data: NodeData, *, seed: int, final: bool) -> Evaluation:
        goal = data.splits["test"]["goal"]
        if self._linear:
            return Evaluation({"test.error": subspace_distance(model.get_parameter("body.weight").T, goal)})
        error = model.get_parameter("theta") - goal
        points = self.options.world == "points"
        return Evaluation({"test.error": float((error**2).mean() if points else error.abs().max())})


def subspace_distance(measured: Tensor, true: Tensor) -> float:
    """The sine of the largest angle between the spaces that the columns ``[width, rank]`` span, from 0 to 1."""
    basis, _ = torch.linalg.qr(measured)
    goal, _ = torch.linalg.qr(true)
    return float(torch.linalg.matrix_norm(goal - basis @ (basis.T @ goal), 2).clamp(max=1.0))


def _quadratic(curvature: float, slope: float, goal: float, *, examples: int = 1, constant: float = 0.0) -> Table:
    columns = {"a": curvature, "h": slope, "c": constant}
    return {name: np.full((examples, 1), value) for name, value in columns.items()} | {"goal": np.full((1, 1), goal)}


def _points(spread: float, num_nodes: int, seed: int) -> Iterator[Table]:
    for node in range(num_nodes):
        rng = np.random.default_rng(derive_seed(seed, "point", node))
        point = spread * rng.standard_normal((1, COORDINATES))
        seen = point + rng.standard_normal((OBSERVATIONS, COORDINATES))
        yield _quadratic(1, 0, 0, examples=OBSERVATIONS) | {"h": seen, "goal": point}


def _representation(spread: float, num_nodes: int, seed: int) -> Iterator[Table]:
    truth = np.random.default_rng(derive_seed(seed, "representation")).standard_normal((WIDTH, RANK))
    basis, _ = np.linalg.qr(truth)
    for node in range(num_nodes):
        rng = np.random.default_rng(derive_seed(seed, "head", node))
        x = rng.standard_normal((EXAMPLES, WIDTH))
        yield {"x": x, "y": x @ basis @ rng.standard_normal((RANK, 1)), "goal": basis}


#: The data of the nodes of each world, for spread, number of nodes and seed.
WORLDS: Mapping[str, Callable[[float, int, int], Any]] = {
    "drift": lambda spread, nodes, seed: [_quadratic(2, -spread, 0), _quadratic(0, spread, 0)],
    "steps": lambda spread, nodes, seed: [_quadratic(1, 1, 0), _quadratic(1, -1, 0, examples=3)],
    "curvature": lambda spread, nodes, seed: [_quadratic(1, 2, -0.25), _quadratic(3, -3, -0.25)],
    "points": _points,
    "representation": _representation,
    "fair": lambda spread, nodes, seed: [*[_quadratic(1, 0, 4)] * 3, _quadratic(1, 4, 4, constant=8)],
}


@dataclass(frozen=True)
class Toy:
    """A run of one method on one toy, under the name of its row: ``world: method at setting``."""

    name: str
    methods: str
    keys: Mapping[str, Value]
    seeds: int = 1


_EXACT: dict[str, Value] = {"num-nodes": 2, "weighting": "uniform", "batch-size": 1}


def toys() -> Iterator[Toy]:
    """All runs."""
    keys: dict[str, Value]
    for method, steps, spread in product(("fedavg", "scaffold"), (2, 10), (1, 10, 100)):
        keys = {"toys.spread": spread, "steps": steps, "rounds": 30, "learning-rate": 0.1}
        yield Toy(f"drift: {method} at K={steps} G={spread}", method, _EXACT | keys)
    for method in ("fedavg", "fednova"):
        keys = {"epochs": 1, "rounds": 150, "learning-rate": 0.02}
        yield Toy(f"steps: {method}", method, _EXACT | keys)
    for method in ("fedavg", "feddyn(alpha=0.5)"):
        keys = {"steps": 20, "rounds": 40, "learning-rate": 0.1}
        yield Toy(f"curvature: {method}", method, _EXACT | keys)
    for deviation, weight in product((0.25, 1.0), (0, 0.25, 1, 4, 16)):
        keys = {"num-nodes": 10, "steps": 10, "rounds": 6, "learning-rate": 0.1, "batch-size": OBSERVATIONS}
        keys["toys.spread"] = deviation
        yield Toy(f"points: ditto at λ={weight} σ={deviation}", f"ditto(lambda={weight})", _EXACT | keys, 3)
    for method in ("fedavg", "fedrep"):
        keys = {"num-nodes": 10, "epochs": 1, "rounds": 60, "learning-rate": 0.3, "batch-size": EXAMPLES}
        yield Toy(f"representation: {method}", method, _EXACT | keys, 3)
    for q in (0, 1, 5):
        keys = {"num-nodes": 4, "epochs": 1, "rounds": 100, "learning-rate": 0.5}
        yield Toy(f"fair: q-ffl at q={q}", f"q-ffl(q={q})", _EXACT | keys)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the toys and print their table; returns 2 if the settings are invalid, else 0."""
    return run(new_parser("toys", __doc__), _run, arguments)


def _run(options: argparse.Namespace) -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    with registered():
        show_methods({toy.name: {"error": errors(toy)} for toy in toys()}, options.json)


def errors(toy: Toy) -> list[float]:
    """The error of each seed after the last round."""
    keys: dict[str, Value] = {
        "task": "toys",
        "optimizer": "sgd",
        "collect-after": 0,
        "evaluate-every": 10_000,
        "name": "toy",
    }
    world = toy.name.partition(":")[0]
    with TemporaryDirectory(prefix="toys-") as cache:
        settings = {**keys, "toys.world": world, "cache-dir": cache, "methods": toy.methods, **toy.keys}
        return [final_metrics(settings, seed)["test.error"] for seed in range(toy.seeds)]


@contextmanager
def registered() -> Iterator[None]:
    """Make the task known by an entry point, as that of an installed package."""
    with TemporaryDirectory(prefix="toys-") as folder:
        facts = Path(folder, "toys-1.dist-info")
        facts.mkdir()
        (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1\n", encoding="utf-8")
        entry = f"[fedapps.tasks]\ntoys = {__package__}.toys:Toys\n"
        (facts / "entry_points.txt").write_text(entry, encoding="utf-8")
        sys.path.append(folder)
        try:
            yield
        finally:
            sys.path.remove(folder)


if __name__ == "__main__":
    sys.exit(main())
