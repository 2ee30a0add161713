"""Reads recorded pedestrians, ETH [1]_ and UCY [2]_, as the literature does: eight recordings of five places, one of
which is left out of training.

The folders ``all``, ``train`` and ``val`` have files ``RECORDING[_SPLIT].txt`` with rows ``frame id x y``: metres, a
row for each person and 0.4 s, in which frames step by 10. A window is a person at ``history + horizon`` consecutive
steps. It is moved and turned so that the person is at the origin at the last step of the history and has walked along
the road; the robot's place is taken by the nearest other person who is seen during the whole history. A window without
one has somebody 10 m ahead who walks alike. Forecasts do not see the future of that person.

.. [1] S. Pellegrini, A. Ess, K. Schindler, L. van Gool, You'll Never Walk Alone, ICCV 2009.
.. [2] A. Lerner, Y. Chrysanthou, D. Lischinski, Crowds by Example, Computer Graphics Forum 26(3), 2007.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from fedapps.tasks.base import Batch, Metrics
from torch import Tensor

from fedapps.base.errors import DataError
from fedapps.base.text_files import COMPRESSIONS, open_text

from .data import Recording, Session, cut
from .options import PLACES, SETTINGS, WALKING_STEP, Options, Setting
from .planner import Forecaster, elbo_parts

_FRAMES = 10  # of a step
_AHEAD = 10.0  # metres
#: The recordings in the order of the numbers of nodes.
RECORDINGS = tuple(sorted([*(name for names in PLACES.values() for name in names), "crowds_zara03", "uni_examples"]))


@lru_cache(maxsize=2)
def read_pedestrians(folder: Path, options: Options) -> Recording:
    """Read all recordings but those of the place that is left out; ``val`` is their test.

    Raises
    ------
    DataError
        A file is missing or malformed.
    """
    left_out = PLACES[options.left_out]
    blocks = {
        number: tuple(
            session
            for split, name in (("train", "train"), ("val", "test"))
            for session in windows(file_of(folder / split, f"{recording}_{split}"), options, name)
        )
        for number, recording in enumerate(RECORDINGS)
        if recording not in left_out
    }
    return Recording("point", blocks)


@lru_cache(maxsize=2)  # all nodes of a process test on it
def left_out(folder: Path, options: Options) -> Batch:
    """Return all windows of the place that is left out."""
    sessions = [
        session
        for recording in PLACES[options.left_out]
        for session in windows(file_of(folder / "all", recording), options, "unseen")
    ]
    return batch_of(SETTINGS[options.scenario], options, sessions)


def file_of(folder: Path, name: str) -> Path:
    """Return the file of a recording. Raise :class:`DataError` if there is none."""
    paths = [path for ending in COMPRESSIONS if (path := folder / f"{name}.txt{ending}").exists()]
    if len(paths) != 1:
        raise DataError(f"{folder}: {len(paths)} files {name}.txt, .txt.gz or .txt.xz; expected one")
    return paths[0]


def read_tracks(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids ``[P]`` of all people of a file, and their positions ``[T, P, 2]``, NaN where one is not seen.

    Raises
    ------
    DataError
        The file is malformed.
    """
    with open_text(path) as file:
        try:
            rows = np.loadtxt(file, ndmin=2)
        except ValueError as error:
            raise DataError(f"{path}: {error}; expected rows of frame, id, x and y") from error
    if rows.shape[1] != 4 or not np.isfinite(rows).all():
        raise DataError(f"{path}: rows with {rows.shape[1]} columns, or not finite; expected frame, id, x and y")
    steps = np.round((rows[:, 0] - rows[:, 0].min()) / _FRAMES).astype(int)
    people, numbers = np.unique(rows[:, 1], return_inverse=True)
    places = np.full((steps.max() + 1, len(people), 2), np.nan)
    places[steps, numbers] = rows[:, 2:]
    return people, places


def windows(path: Path, options: Options, split: str) -> Iterator[Session]:
    """Yield every window of a file, by person and time."""
    people, places = read_tracks(path)
    length, seen = options.history + options.horizon, options.history
    for person in range(len(people)):
        present = np.flatnonzero(np.isfinite(places[:, person, 0]))
        for first in present[: len(present) - length + 1]:
            way = places[first : first + length, person]
            if np.isfinite(way).all() and len(way) == length:
                view = turned(way, places[first : first + seen], person)
                yield Session(0, split, view.states, view.controls)


class View(NamedTuple):
    """A person and the nearest other as the forecaster sees them: ``states [T, 2, 4]`` and ``controls [T, 2, 2]``.

    A point p of the recording is ``turn @ (p - origin)`` in these.
    """

    states: np.ndarray
    controls: np.ndarray
    origin: np.ndarray
    turn: np.ndarray


def turned(way: np.ndarray, around: np.ndarray, person: int) -> View:
    """The view of a person from its way ``[T, 2]`` and all people ``[seen, P, 2]`` in the first steps of it."""
    seen = len(around)
    now, walked = way[seen - 1], way[seen - 1] - way[0]
    distances = np.linalg.norm(around[-1] - now, axis=1)
    distances[~np.isfinite(around).all(axis=(0, 2))] = np.inf
    distances[person] = np.inf
    ahead = walked / max(float(np.linalg.norm(walked)), 1e-9) if walked.any() else np.array([0.0, 1.0])
    other = way[:seen] + _AHEAD * ahead
    if np.isfinite(distances).any():
        other = around[:, int(np.argmin(distances))]
    other = np.concatenate([other, np.repeat(other[-1:], len(way) - seen, axis=0)])
    turn = np.array([[ahead[1], -ahead[0]], ahead])  # x to the right of the way, y along it
    position = np.stack([other, way], axis=1) - now
    position = position @ turn.T
    velocity = np.diff(position, axis=0) / WALKING_STEP
    velocity = np.concatenate([velocity[:1], velocity])
    controls = np.diff(velocity, axis=0, prepend=velocity[:1]) / WALKING_STEP
    controls[seen:, 0] = 0  # the future of the other person is not known
    return View(np.concatenate([position, velocity], axis=2), controls, now, turn)


def batch_of(setting: Setting, options: Options, sessions: Sequence[Session]) -> dict[str, Tensor]:
    """The windows as :func:`fedapps.tasks.driving.data.cut` returns them, stacked as all are equally long."""
    if not sessions:
        return cut(setting, options, sessions)
    states = torch.from_numpy(np.stack([session.states for session in sessions])).float()
    controls = torch.from_numpy(np.stack([session.controls for session in sessions])).float()
    seen = options.history
    futures = controls[:, seen:] / controls.new_tensor(setting.control)
    return {
        "history": setting.describe(states[:, :seen], controls[:, :seen]),
        "robot_future": futures[:, :, 0],
        "human_future": futures[:, :, 1],
        "human_path": states[:, seen:, 1, :2],
        "current": states[:, seen - 1],
    }


@torch.no_grad()
def scores(model: Forecaster, setting: Setting, options: Options, batch: Batch, split: str) -> Metrics:
    """Return the metrics ``<split>.*`` of windows on the model's device.

    ``elbo`` is the training loss. ``ade`` and ``fde`` are the mean distance in metres over the horizon and the distance
    at its end, of the forecast with z at its mean; ``best_ade`` and ``best_fde`` are those of the best of ``samples``
    draws of each window.
    """
    device = next(model.parameters()).device
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    reconstruction, kl = (part.mean().item() for part in elbo_parts(model, setting, options, batch))
    human, plans = batch["current"][:, 1], batch["robot_future"][:, None]
    noise = torch.randn(len(human), options.samples, model.latent, device=device)
    metrics: Metrics = {f"{split}.elbo": reconstruction + options.kl_weight * kl, f"{split}.kl": kl}
    for prefix, draws in (("", noise[:, :1] * 0), ("best_", noise)):
        controls = model.forecast(batch["history"], plans, draws)[:, 0]
        metrics |= errors(setting.roll_out(human[:, None], controls), batch["human_path"], f"{split}.{prefix}")
    return metrics


def errors(forecasts: Tensor, path: Tensor, prefix: str) -> Metrics:
    """ADE and FDE in metres of the best of ``forecasts [N, K, H, 4]`` of each window, beside ``path [N, H, 2]``."""
    distance = torch.linalg.vector_norm(forecasts[..., :2] - path[:, None], dim=-1)
    return {
        f"{prefix}ade": float(distance.mean(dim=-1).amin(dim=1).mean()),
        f"{prefix}fde": float(distance[..., -1].amin(dim=1).mean()),
    }


def constant_velocity(setting: Setting, batch: Batch, split: str) -> Metrics:
    """The errors of people who repeat their last step."""
    human = batch["current"][:, None, 1]
    still = torch.zeros(*human.shape[:2], batch["human_path"].shape[1], 2)
    return errors(setting.roll_out(human, still), batch["human_path"], f"{split}.")
