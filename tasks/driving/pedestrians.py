"""Reads recorded pedestrians: those of ETH [1]_ and UCY [2]_ as the literature does, eight recordings of five places,
one of which is left out of training, or one's own.

A recording is a node. Its file ``NAME.txt`` has rows ``frame id x y``: metres, a row for each person and 0.4 s, in
which frames step by 10; the last fifth is the test. Or ``NAME_train.txt`` and ``NAME_val.txt`` have the two parts. They
lie in the folder, or below it in ``train`` and ``val``; whole recordings of the place that is left out lie in the
folder or in ``all``.

A window is a person at ``history + horizon`` consecutive steps. It is moved and turned so that the person is at the
origin at the last step of the history and has walked along the road; the robot's place is taken by the nearest other
person who is seen during the whole history. A window without one has somebody 10 m ahead who walks alike. Forecasts do
not see the future of that person.

.. [1] S. Pellegrini, A. Ess, K. Schindler, L. van Gool, You'll Never Walk Alone, ICCV 2009.
.. [2] A. Lerner, Y. Chrysanthou, D. Lischinski, Crowds by Example, Computer Graphics Forum 26(3), 2007.
"""

import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from fedapps.tasks.base import Batch, Metrics
from torch import Tensor

from fedapps.base.errors import DataError
from fedapps.base.text_files import COMPRESSIONS, found_in, open_text, refuse_copies

from .data import Recording, Session, cut
from .options import PLACES, SETTINGS, WALKING_STEP, Options, Setting
from .planner import Forecaster, elbo_parts

_FRAMES = 10  # of a step
_AHEAD = 10.0  # metres
_FASTEST = 10.0  # m/s, of which the median of walking people is far away
_LARGEST = 50_000_000  # places of a recording, 16 bytes each
_PARTS = {"_train": "train", "_val": "test"}
_TEST_SHARE = 0.2  # of a recording without parts


def read_pedestrians(folder: Path, options: Options) -> Recording:
    """Read the recordings of all places except the one that is left out.

    Raises
    ------
    DataError
        There is none, a part of one is missing, a file is there twice, or one is malformed or too short.
    """
    stamped = tuple(
        (name, split, path, path.stat().st_mtime_ns)
        for name, parts in files_of_recordings(folder, options).items()
        for split, path in parts.items()
    )
    return _recording(folder, stamped, options)


@lru_cache(maxsize=4)  # all recordings together: every node of a process reads them
def _recording(folder: Path, stamped: tuple[tuple[str, str, Path, int], ...], options: Options) -> Recording:
    sessions: dict[str, tuple[Session, ...]] = {}
    for name, split, path, _ in stamped:
        sessions[name] = sessions.get(name, ()) + _sessions(path, options, split)
    if empty := [name for name, of_name in sessions.items() if not of_name]:
        raise DataError(
            f"{folder}: nobody in the recording {empty[0]} is seen in {options.history + options.horizon} steps in a "
            "row (driving.history + driving.horizon); remove it, or lower these keys"
        )
    return Recording("point", dict(enumerate(sessions.values())), names=dict(enumerate(sessions)))


def left_out(folder: Path, options: Options) -> dict[str, Batch]:
    """Return all windows of the place that is left out, as the split ``unseen``; none if no place is."""
    files = files_left_out(folder, options)
    return {"unseen": _unseen(tuple((path, path.stat().st_mtime_ns) for path in files), options)} if files else {}


@lru_cache(maxsize=2)  # all nodes of a process test on it
def _unseen(stamped: tuple[tuple[Path, int], ...], options: Options) -> Batch:
    sessions = [session for path, _ in stamped for session in windows(read_tracks(path)[1], options, "unseen")]
    return batch_of(SETTINGS[options.scenario], options, sessions)


def track_files(folder: Path) -> list[Path]:
    """Return the files in a folder and in ``train`` and ``val`` below it. Raise :class:`DataError` for copies."""
    files = found_in(folder, *(f"{below}*.txt{end}" for below in ("", "train/", "val/") for end in COMPRESSIONS))
    refuse_copies(files)
    return files


def files_of_recordings(folder: Path, options: Options) -> dict[str, dict[str, Path]]:
    """Return the files of each recording that is trained on, by their split; "" stands for all splits.

    Raises
    ------
    DataError
        There is none, a part of one is missing, or a file is there twice.
    """
    recordings: dict[str, dict[str, Path]] = {}
    for path in track_files(folder):
        name = path.name.split(".txt")[0]
        ending = next((ending for ending in _PARTS if name.endswith(ending)), "")
        name = name.removesuffix(ending)
        if name in PLACES[options.left_out]:
            continue
        parts = recordings.setdefault(name, {})
        if (other := parts.setdefault(_PARTS.get(ending, ""), path)) != path:
            raise DataError(f"{path}: the recording {name} is also in {other}; keep one of them")
    for name, parts in recordings.items():
        if set(parts) not in ({""}, {"train", "test"}):
            found = ", ".join(path.name for path in parts.values())
            raise DataError(
                f"{folder}: the recording {name} has {found}; expected {name}.txt, or {name}_train.txt and "
                f"{name}_val.txt"
            )
    if not recordings:
        raise DataError(
            f"{folder}: no recordings of pedestrians; expected files NAME.txt, or NAME_train.txt and NAME_val.txt, "
            "also in the folders train and val"
        )
    return dict(sorted(recordings.items()))


def files_left_out(folder: Path, options: Options) -> list[Path]:
    """Return the files of the place that is left out. Raise :class:`DataError` if one is missing or there twice."""
    files = []
    for name in PLACES[options.left_out]:
        found = found_in(folder, *(f"{below}{name}.txt{end}" for below in ("", "all/") for end in COMPRESSIONS))
        if len(found) != 1:
            raise DataError(
                f"{folder}: {len(found)} files {name}.txt, .txt.gz or .txt.xz, here or in the folder all; expected "
                f"one, of the place that is left out (driving.left-out = {options.left_out!r}, or 'none')"
            )
        files += found
    return files


def read_tracks(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids ``[P]`` of all people of a file, and their positions ``[T, P, 2]``, NaN where one is not seen.

    Raises
    ------
    DataError
        The file is malformed.
    """
    with open_text(path) as file:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of a file without rows, which is an error here
                rows = np.loadtxt(file, ndmin=2)
        except ValueError as error:
            raise DataError(f"{path}: {error}; expected rows of frame, id, x and y") from error
    if not rows.size:
        raise DataError(f"{path}: no rows; expected frame, id, x and y")
    if rows.shape[1] != 4 or not np.isfinite(rows).all():
        raise DataError(f"{path}: rows with {rows.shape[1]} columns, or not finite; expected frame, id, x and y")
    since = rows[:, 0] - rows[:, 0].min()
    steps = np.round(since / _FRAMES).astype(int)
    people, numbers = np.unique(rows[:, 1], return_inverse=True)
    if len(off := np.flatnonzero(since != _FRAMES * steps)):
        raise DataError(f"{path}: frame {rows[off[0], 0]:g} lies between two steps; expected steps of 10 frames, 0.4 s")
    if len(np.unique(np.stack([steps, numbers]), axis=1).T) < len(rows):
        raise DataError(f"{path}: a person is twice in one frame; keep one row")
    if (size := (int(steps.max()) + 1) * len(people)) > _LARGEST:
        raise DataError(
            f"{path}: {len(people)} people in {steps.max() + 1} steps are {size} places, at most {_LARGEST} fit; split "
            "it into several files"
        )
    places = np.full((steps.max() + 1, len(people), 2), np.nan)
    places[steps, numbers] = rows[:, 2:]
    speeds = np.linalg.norm(np.diff(places, axis=0), axis=2) / WALKING_STEP
    speeds = speeds[np.isfinite(speeds)]
    if len(speeds) and (median := float(np.median(speeds))) > _FASTEST:
        raise DataError(f"{path}: people move at {median:.3g} m/s (median); expected x and y in metres, 0.4 s a step")
    return people, places


def _sessions(path: Path, options: Options, split: str) -> tuple[Session, ...]:
    """The windows of a file with one split, or of a whole recording, whose splits have no step in common."""
    places = read_tracks(path)[1]
    first = round(len(places) * (1 - _TEST_SHARE))
    parts = {split: places} if split else {"train": places[:first], "test": places[first:]}
    return tuple(session for name, part in parts.items() for session in windows(part, options, name))


def windows(places: np.ndarray, options: Options, split: str) -> Iterator[Session]:
    """Yield every window of people at ``places [T, P, 2]``, by person and time."""
    length, seen = options.history + options.horizon, options.history
    for person in range(places.shape[1]):
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
