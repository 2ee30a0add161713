"""Cuts sessions into training windows of a history and the future that followed."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from .data import Session
from .options import Options
from .setting import Setting


def past(setting: Setting, motions: Tensor, controls: Tensor, length: int) -> Tensor:
    """Return the history ``[N, length, features]`` of the last rows of ``motions [N, t, cars, 4]``.

    ``controls [N, t, cars, 2]`` are those that led to the motions of the same row. If ``t`` is less than ``length``,
    the history is padded with zeros at the front, including the mask.
    """
    seen = setting.describe(motions[:, -length:], controls[:, -length:])
    return torch.nn.functional.pad(seen, (0, 0, length - seen.shape[1], 0))


def cut(setting: Setting, options: Options, sessions: Iterable[Session]) -> dict[str, Tensor]:
    """Return all windows of ``sessions``, every ``window_stride`` steps, as float32 tensors of N windows.

    Sessions shorter than ``min_history + horizon`` have no window.

    Returns
    -------
    dict of str to Tensor
        ``history [N, history, features]``: zero before the session starts, for at most ``history - min_history`` steps.
        ``robot_future`` and ``human_future [N, H, 2]``: standardised controls of the next H steps.
        ``human_path [N, H, 2]``: the human's positions relative to the current one, in metres.
        ``current [N, cars, 4]``: current motions, with longitudinal positions relative to the human.
    """
    pieces = [_cut_one(setting, options, session) for session in sessions]
    return (
        {name: torch.cat([piece[name] for piece in pieces]) for name in _shapes(setting, options)}
        if pieces
        else {name: torch.zeros(0, *shape) for name, shape in _shapes(setting, options).items()}
    )


def _cut_one(setting: Setting, options: Options, session: Session) -> dict[str, Tensor]:
    now = np.array(options.moments(len(session.states)), dtype=np.int64)
    rows = now[:, None] + np.arange(1 - options.history, 1)
    ahead = now[:, None] + np.arange(1, options.horizon + 1)
    described = setting.describe(torch.from_numpy(session.states), torch.from_numpy(session.controls))
    history = described[np.maximum(rows, 0)] * torch.from_numpy(rows >= 0)[..., None]
    futures = session.controls[ahead] / np.asarray(setting.control)
    origin = session.states[now, 1, :2]
    current = session.states[now].copy()
    current[..., 1] -= origin[:, None, 1]
    arrays = {
        "history": history,
        "robot_future": torch.from_numpy(futures[:, :, 0]),
        "human_future": torch.from_numpy(futures[:, :, 1]),
        "human_path": torch.from_numpy(session.states[ahead, 1, :2] - origin[:, None]),
        "current": torch.from_numpy(current),
    }
    return {name: array.float() for name, array in arrays.items()}


def _shapes(setting: Setting, options: Options) -> dict[str, tuple[int, ...]]:
    future = (options.horizon, 2)
    return {
        "history": (options.history, setting.features),
        "robot_future": future,
        "human_future": future,
        "human_path": future,
        "current": (setting.cars, 4),
    }
