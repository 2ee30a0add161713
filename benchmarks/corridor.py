"""Networks that learned elsewhere, on the corridor of VPR-Bench: 111 queries of a robot, 111 reference images.

Each seed trains the methods of a recipe. Then a network is right about a query if the most similar reference image is
one that the ground truth names (M. Zaffar et al., VPR-Bench, IJCV 2021, Section 3).

    python -m benchmarks.corridor --recipe fedvpr-nordland --images /data/vpr/corridor --seeds 3
"""

import argparse
import csv
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from fedapps.tasks.vpr.trained import VprTrained

import fedapps
from fedapps.comparison.matrix import assignments
from fedapps.config.parsing import parse
from fedapps.config.recipe_files import read_recipe
from fedapps.launch.launch import Simulation, launch

from .commands import add_seeds, recipe_parser, run, show


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table; returns 2 if the settings are invalid, else 0."""
    parser = recipe_parser("corridor", __doc__)
    add_seeds(parser)
    parser.add_argument("--images", type=Path, required=True, help="folder with images.tar and ground_truth.csv")
    return run(parser, _run, arguments)


def _run(options: argparse.Namespace) -> None:
    settings = {**read_recipe(Path(options.recipe)), **assignments(options.set)}
    methods = list(parse(settings).methods)
    recalls: dict[str, list[float]] = {name: [] for name in methods}
    with TemporaryDirectory(prefix="fedapps-corridor-") as name:
        folder = Path(name)
        queries, references, truth = read(options.images, folder / "images")
        for seed in range(options.seeds):
            trained = launch({**settings, "seed": seed}, Simulation("inline"), str(folder / str(seed)))
            for method in methods:
                model = fedapps.load(trained, method)
                assert isinstance(model, VprTrained)
                recalls[method].append(recall_at_1(model, queries, references, truth))
    show([{"method": method, "recall_at_1": values} for method, values in recalls.items()], options.json)


def read(data: Path, folder: Path) -> tuple[list[Path], list[Path], list[set[int]]]:
    """Unpack the images into a folder. Returns the queries, the references, and which of these are right for each
    query.

    Raises
    ------
    ValueError
        A file is missing, or the ground truth does not fit the images.
    """
    if missing := [file for file in ("images.tar", "ground_truth.csv") if not (data / file).is_file()]:
        raise ValueError(f"--images {data}: has no {' and no '.join(missing)}")
    with tarfile.open(data / "images.tar") as archive:
        archive.extractall(folder, filter="data")
    with (data / "ground_truth.csv").open(encoding="utf-8", newline="") as lines:
        truth = [set(map(int, row["references"].split())) for row in csv.DictReader(lines)]
    queries, references = (sorted((folder / part).glob("*.jpg")) for part in ("query", "ref"))
    if len(truth) != len(queries) or not all(named < set(range(len(references))) for named in truth):
        raise ValueError(f"--images {data}: the ground truth does not fit its {len(queries)} queries")
    return queries, references, truth


def recall_at_1(
    model: VprTrained, queries: Sequence[Path], references: Sequence[Path], truth: Sequence[set[int]]
) -> float:
    """The share of queries whose nearest reference is a right one."""
    index = model.index(references, [[float(row), 0.0] for row in range(len(references))])
    nearest = model.locate(queries, index, k=1).rows[:, 0]
    return fmean(int(row) in right for row, right in zip(nearest, truth, strict=True))


if __name__ == "__main__":
    sys.exit(main())
