"""A trained model of the task "social" in use: scores of scenes with a robot among people."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from math import isnan
from pathlib import Path
from typing import Any, ClassVar, TextIO

import numpy as np
from fedapps.tasks.answers import Network, finite_answer, finite_numbers, several
from fedapps.tasks.base import NodeData
from fedapps.tasks.trained import TrainedModel

from fedapps.base.errors import DataError

from .scenes import RatedScene, participant_files, read_scenes, scene_of
from .task import CHUNK, SocialTask

#: A scene, or an object as a line of a file has it (:mod:`fedapps.tasks.social.scenes`), without a score.
Scene = RatedScene | Mapping[str, Any]
#: A scene for the shapes of a network's inputs: two people who talk, one who uses an object, in a room of 4 m x 6 m.
_EXAMPLE = RatedScene(
    "example",
    0.0,
    ((1.0, 1.0, 0.5), (-1.0, 1.0, -0.5), (1.5, 2.0, 1.0)),
    ((1.5, 3.0, 0.0), (-1.5, 3.5, 0.5)),
    ((1, 2), (3, 4)),
    ((-2.0, -2.0), (2.0, -2.0), (2.0, 4.0), (-2.0, 4.0)),
)


class SocialTrained(TrainedModel):
    """A network that rates the behaviour of a robot among people."""

    task: SocialTask
    pipeline_tag: ClassVar[str] = "robotics"

    def score(
        self, scenes: Scene | str | Path | Sequence[Scene], *, batch_size: int = CHUNK, limit: float = np.inf
    ) -> np.ndarray:
        """Return the score of each of n scenes, float32 ``[n]``.

        The scale is that of the ratings: 100 disturbs nobody, 0 is the worst. The network is not clipped, so that a
        score may lie a little below 0. The robot is at the origin and faces +y; for its score elsewhere, move it with
        :meth:`.RatedScene.seen_from`.

        Parameters
        ----------
        scenes : scene, sequence of scenes, str or Path
            A :class:`~fedapps.tasks.social.scenes.RatedScene` (metres, half turns), an object as a line of a SocNav1
            file has it (``humans``, ``objects``, ``links``, ``room`` and ``robot``, in centimetres and degrees), or a
            file of such lines. ``score`` and ``identifier`` may be missing.
        batch_size : int
            The number of graphs in memory at a time.
        limit : float
            ≥ 0, the largest absolute value of a score.

        Raises
        ------
        DataError
            A scene is malformed or no scene, or a number of it is not finite; there is no such file, or its
            orientations are in radians; or a score is not finite, or beyond the limit.
        """
        if batch_size < 1:
            raise DataError(f"batch_size = {batch_size}: must be at least 1")
        if isinstance(scenes, (str, Path)):
            scene_list: Sequence[Scene] = read_scenes(Path(scenes).expanduser())
        else:
            scene_list = [scenes] if isinstance(scenes, (RatedScene, Mapping)) else scenes
            several(scene_list, "scenes", (RatedScene, Mapping))
        rated = [
            scene if isinstance(scene, RatedScene) else scene_of(scene, f"scene {index}")
            for index, scene in enumerate(scene_list)
        ]
        for index, scene in enumerate(rated):
            _check(scene, f"scene {index}")
        parts = [rated[start : start + batch_size] for start in range(0, len(rated), batch_size)]
        scored = [self.task.rated(self.module, part, batch_size) for part in parts]
        return finite_answer(100 * np.concatenate([np.empty(0, dtype=np.float32), *scored]), "score", limit)

    def rows(self, inputs: Sequence[Path | TextIO], batch_size: int = CHUNK) -> Iterator[dict[str, Any]]:
        """Yield the score of each scene.

        An input is a file of JSON lines in the format of a node's data (:mod:`fedapps.tasks.social.scenes`), or a
        folder of ``*.json`` files.

        Yields
        ------
        dict
            ``file``, ``identifier``, ``score`` (0 to 100), and ``rated``, the score in the file or ``None``.
        """
        for source in inputs:
            if not isinstance(source, Path):
                raise DataError("task 'social' reads scenes from files: name a file of JSON lines or a folder")
            paths = list(participant_files(source).values()) if source.is_dir() else [source]
            if not paths:
                raise DataError(f"{source}: no scenes; expected files *.json, here or in the folder raw_data")
            for path in paths:
                scenes = read_scenes(path)
                for scene, score in zip(scenes, self.score(scenes, batch_size=batch_size).tolist(), strict=True):
                    rated = None if isnan(scene.score) else scene.score
                    yield {"file": str(path), "identifier": scene.identifier, "score": score, "rated": rated}

    def network(self, example: NodeData | None = None) -> Network:
        """The network on graphs of scenes: their number and those of people, objects and walls may differ."""
        graphs = self.task.graphs.build([_EXAMPLE, _EXAMPLE.mirrored()])
        return Network(
            deepcopy(self.module).cpu(),
            tuple(graphs.values()),
            tuple(graphs),
            ("score",),
            {name: {0: "batch"} | _sizes(name) for name in graphs},
            "The graph of a scene is built outside (fedapps.tasks.social.graphs or relational); the score is 1/100 of "
            "the rating.",
        )


def _check(scene: RatedScene, location: str) -> None:
    """Raise :class:`DataError` unless a scene is as its attributes are described."""
    for name in ("humans", "objects"):
        poses = _table(scene, name, 3, location, "poses (x, y, orientation)")
        if len(wrong := np.flatnonzero(np.abs(poses[:, 2]) > 1)):
            raise DataError(
                f"{location}, {name}[{wrong[0]}, 2] = {poses[wrong[0], 2]:g}: an orientation is in half turns, from -1 "
                "to 1; divide degrees by 180"
            )
    room = _table(scene, "room", 2, location, "corners (x, y)")
    if len(corners := np.unique(room, axis=0)) < 3:
        raise DataError(f"{location}, room: {len(corners)} different corners; expected at least 3")
    links, humans = _table(scene, "links", 2, location, "pairs of nodes"), len(scene.humans)
    nodes = humans + len(scene.objects)
    for first, second in links.tolist():
        if first not in range(1, humans + 1) or second not in range(1, nodes + 1) or first == second:
            raise DataError(
                f"{location}, links: ({first}, {second}); expected a human, 1 to {humans}, and another human or an "
                f"object, up to {nodes} (0 is the robot)"
            )


def _table(scene: RatedScene, name: str, width: int, location: str, expected: str) -> np.ndarray:
    """An attribute of a scene as an array ``[n, width]`` of finite numbers."""
    rows = finite_numbers(getattr(scene, name), f"{location}, {name}")
    if rows.shape == (0,):
        return rows.reshape(0, width)
    if rows.shape[1:] != (width,):
        raise DataError(f"{location}, {name} of shape {list(rows.shape)}; expected {expected}")
    return rows


def _sizes(name: str) -> dict[int, str]:
    """The dimensions of a tensor of graphs that differ from batch to batch."""
    return {
        "nodes": {1: "nodes"},
        "adjacency": {1: "nodes", 2: "nodes"},
        "human": {1: "humans"},
        "object": {1: "objects"},
        "wall": {1: "walls"},
        "with_human": {1: "humans", 2: "humans"},
        "with_object": {1: "humans", 2: "objects"},
    }.get(name, {})
