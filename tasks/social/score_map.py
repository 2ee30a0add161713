"""Traces to draw: a scene from above, and the score that a model predicts for the robot at every place in it."""

from collections.abc import Callable, Sequence

import numpy as np
from fedapps.sim.social.scenes import inside

from .scenes import RatedScene

SPACING = 0.25  # metres
INTERACTIONS = 3


def scene_to_draw(scenes: Sequence[RatedScene]) -> RatedScene:
    """Return the scene to draw: up to three interactions, then the fewest people and objects, then the lowest
    identifier.
    """
    return min(
        scenes,
        key=lambda scene: (
            -min(len(scene.links), INTERACTIONS),
            len(scene.humans) + len(scene.objects),
            scene.identifier,
        ),
    )


def traces(scene: RatedScene, rated: Callable[[Sequence[RatedScene]], np.ndarray]) -> dict[str, np.ndarray]:
    """Return arrays that show a scene and the predicted scores.

    Parameters
    ----------
    scene : RatedScene
        The scene; its robot stands at (0, 0).
    rated : callable
        Predicts the scores of scenes.

    Returns
    -------
    dict of str to ndarray
        ``scene.room [K, 2]``: corners. ``scene.humans [H, 3]`` and ``scene.objects [O, 3]``: x, y and orientation in
        metres and half turns. ``scene.links [L, 2]``: interactions, as indices among humans and then objects.
        ``scene.truth``: the recorded score. ``scene.score [gy, gx]``: the score predicted with the robot at ``scene.x
        [gx]`` and ``scene.y [gy]``, multiples of 0.25 m, with unchanged orientation. ``scene.inside [gy, gx]``: whether
        the place is in the room. Scores are 0 to 1.
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
