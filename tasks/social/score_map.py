"""A scene from above, and what a model would give the robot at every place in it: traces to draw."""

from collections.abc import Callable, Sequence

import numpy as np

from sim.social.rooms import inside

from .scenes import RatedScene

SPACING = 0.25  # metres
INTERACTIONS = 3


def telling(scenes: Sequence[RatedScene]) -> RatedScene:
    """The scene to draw: three interactions if there is one, among those the fewest bodies, the lowest identifier."""
    return min(
        scenes,
        key=lambda scene: (
            -min(len(scene.links), INTERACTIONS),
            len(scene.humans) + len(scene.objects),
            scene.identifier,
        ),
    )


def traces(scene: RatedScene, rated: Callable[[Sequence[RatedScene]], np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays to draw ``scene``, whose robot stands at (0, 0), and what ``rated`` predicts with the robot elsewhere.

    ``scene.room`` ``[K, 2]`` holds the corners, ``scene.humans`` ``[H, 3]`` and ``scene.objects`` ``[O, 3]`` x, y and
    orientation (metres and half turns), ``scene.links`` ``[L, 2]`` who interacts, by place among humans, then
    objects; ``scene.truth`` is the recorded score. ``scene.score`` ``[gy, gx]`` is predicted with the robot at
    ``scene.x`` ``[gx]`` and ``scene.y`` ``[gy]``, multiples of 0.25 m, and its orientation unchanged;
    ``scene.inside`` ``[gy, gx]`` tells which of these places are in the room. Scores are 0 to 1.
    """
    room = np.array(scene.room)
    first, last = np.ceil(room.min(axis=0) / SPACING), np.floor(room.max(axis=0) / SPACING)
    x, y = (SPACING * np.arange(low, high + 1) for low, high in zip(first, last, strict=True))
    places = np.stack(np.meshgrid(x, y), axis=-1)
    score = rated([scene.seen_from(*place) for place in places.reshape(-1, 2)])
    return {
        "scene.room": room,
        "scene.humans": np.array(scene.humans).reshape(-1, 3),
        "scene.objects": np.array(scene.objects).reshape(-1, 3),
        "scene.links": np.array(scene.links, dtype=int).reshape(-1, 2) - 1,
        "scene.x": x,
        "scene.y": y,
        "scene.score": score.reshape(len(y), len(x)).clip(0, 1),
        "scene.inside": inside(room, places),
        "scene.truth": np.asarray(scene.score / 100),
    }
