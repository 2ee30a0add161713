"""A trained model of the task "driving" in use: forecasts of the human, and a controller that plans with them."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from itertools import groupby
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, TextIO

import numpy as np
import torch
from fedapps.tasks.answers import Network, finite_answer, finite_numbers
from fedapps.tasks.base import NodeData
from fedapps.tasks.driving.world.sessions import HUMAN
from fedapps.tasks.trained import TrainedModel
from numpy.typing import ArrayLike
from torch import Tensor, nn

from fedapps.base.errors import DataError
from fedapps.base.seeding import torch_seed

from .closed_loop import Controller
from .data import STEP, Session, past, read_file, read_sessions
from .options import WALKING_STEP, Options
from .pedestrians import read_tracks, track_files, turned
from .planner import Forecast, Forecaster
from .task import DrivingTask


class ForecastNetwork(nn.Module):
    """The forecaster with one plan to each history, as other programs run it."""

    def __init__(self, forecaster: Forecaster) -> None:
        super().__init__()
        self.forecaster = forecaster

    def forward(self, history: Tensor, plan: Tensor, noise: Tensor) -> Tensor:
        """Return the human's standardised controls ``[b, K, H, 2]`` of :meth:`Forecaster.forecast`.

        Parameters
        ----------
        history : Tensor [b, T, features]
        plan : Tensor [b, H, 2]
            The robot's standardised controls.
        noise : Tensor [b, K, latent]
        """
        return self.forecaster.forecast(history, plan[:, None], noise)[:, 0]


class DrivingTrained(TrainedModel):
    """A forecaster of a human driver.

    Motions are ``(x, y, vx, vy)`` in m and m/s, x lateral and y along the road; the cars are the robot, the human and,
    in the scenario "three-cars", the gray car. Controls are throttle (m/s²) and steering angle (radians), or lateral
    and longitudinal acceleration (m/s²) in recorded trials. A step is 0.1 s.

    In recorded trials, whose files have x along the road, lateral positions are measured from the line between the
    lanes, ``y - driving.lane-line`` of the file. If the human starts below 0, lateral positions, velocities and
    accelerations are negated, so that the human starts on the positive side and the robot on the negative one.

    Among pedestrians a step is 0.4 s, the cars are the nearest other person and the person, y points the way that the
    person has walked, and x to the right of it.
    """

    task: DrivingTask
    module: Forecaster
    pipeline_tag: ClassVar[str] = "robotics"

    def forecast(
        self,
        motions: ArrayLike | Tensor,
        controls: ArrayLike | Tensor,
        plan: ArrayLike | Tensor | None = None,
        *,
        samples: int | None = None,
        seed: int = 0,
        noise: ArrayLike | Tensor | None = None,
        limit: float = np.inf,
    ) -> np.ndarray:
        """Return K sampled motions of the human in the next H steps.

        Parameters
        ----------
        motions : array-like [t, cars, 4] or [S, t, cars, 4]
            What was observed, of one encounter or of S; the last ``driving.history`` steps count, and there must be
            ``driving.min-history``. Those of recorded trials are not in the coordinates of their files: x is measured
            from ``driving.lane-line``, and mirrored so that the human starts its trial on the positive side.
        controls : array-like [t, cars, 2] or [S, t, cars, 2]
            Those that led to the motions of the same row; zeros for the gray car. In recorded trials mirrored with the
            motions.
        plan : array-like [H, 2] or [S, H, 2], optional
            The controls that the robot plans for the next H = ``driving.horizon`` steps; by default none, it coasts.
        samples : int, optional
            K, by default ``driving.samples``.
        seed : int
            Seed of the samples.
        noise : array-like [S, K, latent], optional
            Standard normal numbers that decide the samples, instead of those drawn from ``seed``.
        limit : float
            ≥ 0, metres along x and y that the human moves at most from where it was seen last.

        Returns
        -------
        float64 ndarray [K, H, 4] or [S, K, H, 4]
            The human's motions after each step, in the frame of ``motions``.

        Raises
        ------
        DataError
            A shape is wrong, the history is too short, a number is not finite, also of the forecast, or the human moves
            further than the limit.
        """
        options, setting = self._options, self.task.setting
        seen = _checked(motions, (setting.cars, 4), "motions", "[t, cars, 4] or [S, t, cars, 4]")
        single = seen.ndim == 3
        seen = seen[None] if single else seen
        acting = _checked(controls, (setting.cars, 2), "controls", "those of motions, with 2 for 4")
        acting = acting[None] if acting.ndim == 3 else acting
        if acting.shape[:2] != seen.shape[:2]:
            raise DataError(f"motions of {list(seen.shape[:2])} steps and controls of {list(acting.shape[:2])}")
        if seen.shape[1] < self._least:
            raise DataError(
                f"a history of {seen.shape[1]} steps; expected at least {self._least} (driving.min-history)"
            )
        count, horizon = len(seen), options.horizon
        ahead = torch.zeros(count, horizon, 2)
        if plan is not None:
            shapes = f"[{horizon}, 2] or [{count}, {horizon}, 2]"
            ahead = _checked(plan, (horizon, 2), "plan", shapes, dimensions=(2, 3))
            if ahead.ndim == 3 and len(ahead) != count:
                raise DataError(f"plan of shape {list(ahead.shape)}; expected {shapes}")
            ahead = ahead.expand(count, -1, -1)
        draws = self._noise(noise, count, options.samples if samples is None else samples, seed)
        if not count:
            return np.empty((0, draws.shape[1], horizon, 4))
        device = self.device
        history = past(setting, seen, acting, options.history).float().to(device)
        standard = (ahead / ahead.new_tensor(setting.control)).float().to(device)
        with torch.no_grad():
            expected = self.module.forecast(history, standard[:, None], draws.to(device))[:, 0]
        # In float64, because float32 rounds map coordinates to 0.25 m and more.
        human: np.ndarray = setting.roll_out(seen[:, -1, HUMAN][:, None], expected.cpu().double()).numpy()
        finite_answer(human, "forecast")
        finite_answer(human[..., :2] - seen[:, -1:, HUMAN, :2][:, None].numpy(), "movement", limit)
        return human[0] if single else human

    def forecast_people(
        self, positions: ArrayLike, *, samples: int | None = None, seed: int = 0, limit: float = np.inf
    ) -> np.ndarray:
        """Return K sampled paths of each person in the next H steps of 0.4 s, of a model of pedestrians.

        Parameters
        ----------
        positions : array-like [T, P, 2]
            Where P people were in the last steps, in metres; NaN where one was not seen. The last ``driving.history``
            steps count.
        samples, seed, limit
            As of :meth:`forecast`.

        Returns
        -------
        float64 ndarray [P, K, H, 2]
            Positions after each step; NaN for people who were not seen in all of the steps that count.

        Raises
        ------
        DataError
            The model is not one of pedestrians, the shape is wrong, there are fewer steps, a position is infinite or no
            number, ``samples`` is not a whole number of at least 1, or as of :meth:`forecast`.
        """
        options = self._options
        if options.scenario != "pedestrians":
            raise DataError(f"the model forecasts drivers (driving.scenario = {options.scenario!r}); call forecast")
        draws = _whole(options.samples if samples is None else samples)
        tracks = finite_numbers(positions, "positions", missing=True).astype(np.float64)
        if tracks.ndim != 3 or tracks.shape[2] != 2 or len(tracks) < options.history:
            raise DataError(
                f"positions of shape {list(tracks.shape)}; expected [T, P, 2] with T of at least {options.history} "
                "(driving.history), and NaN where somebody was not seen"
            )
        tracks = tracks[-options.history :]
        seen = np.flatnonzero(np.isfinite(tracks).all(axis=(0, 2)))
        paths = np.full((tracks.shape[1], draws, options.horizon, 2), np.nan)
        if len(seen):
            views = [turned(tracks[:, person], tracks, int(person)) for person in seen]
            motions, controls = (np.stack([getattr(view, name) for view in views]) for name in ("states", "controls"))
            ahead = self.forecast(motions, controls, samples=draws, seed=seed, limit=limit)[..., :2]
            for person, view, path in zip(seen, views, ahead, strict=True):
                paths[person] = path @ view.turn + view.origin
        return paths

    def controller(self, seed: int = 0) -> Controller:
        """Return a controller of the robot that plans with the forecast, for one encounter or several at once.

        Parameters
        ----------
        seed : int
            Seed of the samples. With the seed of an evaluation it drives as the closed loop of that evaluation.

        Raises
        ------
        DataError
            The scenario is "trials" or "pedestrians", which have no planner.
        """
        return Controller(self.predictor(), seed)

    def predictor(self) -> Forecast:
        """Return the predictor of the human for a planner, such as :meth:`.Controller.use` takes it."""
        return Forecast(self.module, self.task.setting, self._options)

    def rows(self, inputs: Sequence[Path | TextIO], batch_size: int = 128) -> Iterator[dict[str, Any]]:
        """Yield the forecast after the last row of each session.

        An input is a file of sessions in the format of a node's data (:mod:`fedapps.tasks.driving.data`), or a folder
        of them. The robot coasts. A file of pedestrians (:mod:`fedapps.tasks.driving.pedestrians`) has a row for each
        person who is seen in its last steps, with ``person``, ``x`` and ``y`` in place of ``block``, ``session``,
        ``along`` and ``lateral``.

        Yields
        ------
        dict
            ``file`` (the input), ``block``, ``session`` (the number of the session or trial), ``seconds`` [H] from the
            last row on, and the forecast positions in metres: ``lateral`` and ``along`` [H], means over samples, and
            ``samples`` [K, H, 2] of both. ``along`` is x in the files; ``lateral`` is y, in recorded trials measured
            from the line between the lanes, towards the human's.
        """
        road = self.task.road
        for source in inputs:
            if not isinstance(source, Path):
                raise DataError("task 'driving' reads sessions from files: name a file or a folder")
            if self.task.walking:
                files = track_files(source) if source.is_dir() else [source]
                if not files:
                    raise DataError(f"{source}: no recordings of pedestrians; expected files NAME.txt")
                for path in files:
                    yield from self._people(path)
                continue
            read = read_sessions(source, road) if source.is_dir() else read_file(source, road)
            recording = self.task.checked(source, read)
            sessions_read = [(block, session) for block, sessions in recording.blocks.items() for session in sessions]
            for block, session in sessions_read:
                if len(session.states) < self._least:
                    raise DataError(
                        f"{source}: session {session.number} of block {block} has {len(session.states)} steps; "
                        f"expected at least {self._least} (driving.min-history)"
                    )
            for start in range(0, len(sessions_read), batch_size):
                some = sessions_read[start : start + batch_size]
                for (block, session), samples in zip(some, self._after([session for _, session in some]), strict=True):
                    mean = samples.mean(axis=0)
                    yield {
                        "file": str(source),
                        "block": block,
                        "session": session.number,
                        "seconds": [round(STEP * (step + 1), 1) for step in range(len(mean))],
                        "lateral": mean[:, 0].tolist(),
                        "along": mean[:, 1].tolist(),
                        "samples": samples.tolist(),
                    }

    def network(self, example: NodeData | None = None) -> Network:
        """The forecaster for one plan of each of b histories (:class:`ForecastNetwork`)."""
        options, setting = self._options, self.task.setting
        with torch_seed(0, "driving", "network"):
            history = torch.randn(2, options.history, setting.features)
            plan = torch.randint(-1, 2, (2, options.horizon, 2)).float()
            noise = torch.randn(2, options.samples, options.latent)
        return Network(
            ForecastNetwork(deepcopy(self.module).cpu()).eval(),
            (history, plan, noise),
            ("history", "plan", "noise"),
            ("controls",),
            {name: {0: "batch"} for name in ("history", "plan", "noise")},
            "The features of a history (Setting.describe), the cars' dynamics and the planner stay outside.",
        )

    # -- steps ---------------------------------------------------------------------------------------------------

    @property
    def _options(self) -> Options:
        options: Options = self.task.options
        return options

    @property
    def _least(self) -> int:
        """The fewest steps of a history."""
        return min(self._options.min_history, self._options.history)

    def _after(self, sessions: Sequence[Session]) -> Iterator[np.ndarray]:
        """The forecast positions ``[K, H, 2]`` after each session, with the same samples for all of them."""
        noise = self._noise(None, 1, self._options.samples, 0)
        for _, alike in groupby(sessions, key=lambda session: min(len(session.states), self._options.history)):
            some = list(alike)
            seen = min(len(some[0].states), self._options.history)
            motions = np.stack([session.states[-seen:] for session in some])
            controls = np.stack([session.controls[-seen:] for session in some])
            yield from self.forecast(motions, controls, noise=noise.expand(len(some), -1, -1))[..., :2]

    def _people(self, path: Path) -> Iterator[dict[str, Any]]:
        people, tracks = read_tracks(path)
        history = self._options.history
        seen = np.flatnonzero(np.isfinite(tracks[-history:]).all(axis=(0, 2)))
        if len(tracks) < history or not len(seen):
            raise DataError(f"{path}: nobody is seen in all of the last {history} steps (driving.history)")
        samples = self.forecast_people(tracks)
        for person in seen:
            x, y = samples[person].mean(axis=0).T.tolist()
            seconds = [round(WALKING_STEP * (step + 1), 1) for step in range(len(x))]
            row = {"file": str(path), "person": int(people[person]), "seconds": seconds, "x": x, "y": y}
            yield {**row, "samples": samples[person].tolist()}

    def _noise(self, noise: ArrayLike | Tensor | None, count: int, samples: int, seed: int) -> Tensor:
        latent = self._options.latent
        if noise is not None:
            tensor = torch.as_tensor(finite_numbers(noise, "noise"), dtype=torch.float32)
            if tensor.ndim != 3 or tensor.shape[0] != count or not tensor.shape[1] or tensor.shape[2] != latent:
                raise DataError(f"noise of shape {list(tensor.shape)}; expected [{count}, K, {latent}]")
            return tensor
        draws = _whole(samples)
        with torch_seed(seed, "driving", "forecast"):
            return torch.randn(count, draws, latent)


def _whole(samples: object) -> int:
    if not isinstance(samples, Integral) or samples < 1:
        raise DataError(f"samples = {samples}: must be a whole number of at least 1")
    return int(samples)


def _checked(
    numbers: ArrayLike | Tensor, last: tuple[int, int], what: str, expected: str, *, dimensions: Sequence[int] = (3, 4)
) -> Tensor:
    """Numbers of float64 whose last two dimensions are ``last``."""
    tensor = torch.from_numpy(finite_numbers(numbers, what).astype(np.float64))
    if tensor.shape[-2:] != last or tensor.ndim not in dimensions:
        raise DataError(f"{what} of shape {list(tensor.shape)}; expected {expected}, here {list(last)} at the end")
    finite_numbers(tensor, what)  # as float64
    return tensor
