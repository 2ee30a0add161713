"""Cuts sessions into training windows: what was seen up to a moment, and what happened next."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from .data import Session
from .options import Options
from .setting import Setting


def past(setting: Setting, motions: Tensor, controls: Tensor, length: int) -> Tensor:
    """The forecaster's history ``[N, length, features]`` of the last rows of ``motions [N, t, cars, 4]``.

    ``controls [N, t, cars, 2]``; a row's controls are those that brought its motions about. Where ``t`` is
    less than ``length``, zeros stand in front, mask included.
    """
    seen = setting.describe(motions[:, -length:], controls[:, -length:])
    return torch.nn.functional.pad(seen, (0, 0, length - seen.shape[1], 0))


def cut(setting: Setting, options: Options, sessions: Iterable[Session]) -> dict[str, Tensor]:
    """All windows of ``sessions``, every ``window_stride`` steps, as float32 tensors with N in front.

    * ``history [N, history, features]``, zero where nothing had happened yet (at most
      ``history - min_history`` steps);
    * ``robot_future``, ``human_future`` ``[N, H, 2]``: standardised controls of the next H steps;
    * ``human_path [N, H, 2]``: the human's positions then, in metres from where it is now;
    * ``current [N, cars, 4]``: motions now, along the road measured from the human.

    A session shorter than ``min_history + horizon`` gives none.
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
