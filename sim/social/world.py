"""Writes simulated scenes and their ratings in the published format of SocNav1."""

import json
from collections.abc import Sequence
from pathlib import Path

from fedapps.sim.seeding import generator

from .raters import draw_taste, rate
from .scenes import Scene, draw_scene


def write_world(folder: Path, raters: Sequence[str], seed: int, *, scenes: int = 150) -> list[Path]:
    """Write ``<rater>.json`` for every rater into ``folder`` and return the paths.

    The files hold JSON lines in centimetres and degrees, as :mod:`fedapps.tasks.social.scenes` describes. Every rater
    rates ``scenes`` scenes, half of them common to all raters, in a different order. A rater's taste and scenes depend
    only on ``seed`` and the rater's name.

    Raises
    ------
    ValueError
        ``scenes < 1``.
    """
    if scenes < 1:
        raise ValueError(f"scenes = {scenes}: must be at least 1")
    folder.mkdir(parents=True, exist_ok=True)
    shared = [(f"{i:05d} A", draw_scene(generator(seed, "social.scene", "shared", i))) for i in range(scenes // 2)]
    paths = []
    for number, rater in enumerate(raters):
        taste = draw_taste(generator(seed, "social.rater", rater))
        start = len(shared) + number * scenes
        own = [
            (f"{start + i:05d} B", draw_scene(generator(seed, "social.scene", rater, i)))
            for i in range(scenes - len(shared))
        ]
        rng = generator(seed, "social.ratings", rater)
        seen = [*shared, *own]
        lines = [
            json.dumps(_published(identifier, rate(scene, taste, rng), scene))
            for identifier, scene in (seen[index] for index in rng.permutation(len(seen)))
        ]
        path = folder / f"{rater}.json"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        paths.append(path)
    return paths


def _published(identifier: str, score: int, scene: Scene) -> dict[str, object]:
    bodies: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    for number, body in enumerate(scene.bodies, start=1):
        place = {"xPos": round(100 * body.x, 3), "yPos": round(100 * body.y, 3)}
        bodies[body.human].append({"id": number, **place, "orientation": body.orientation})
    links = []
    for first, second in scene.links:
        links.append([first + 1, second + 1, "interact"])
        if scene.bodies[second].human:  # the published files list a conversation from both sides
            links.append([second + 1, first + 1, "interact"])
    corners = [[round(100 * x), round(100 * y)] for x, y in scene.room.tolist()]
    return {
        "identifier": identifier,
        "score": score,
        "robot": {"id": 0},
        "humans": bodies[True],
        "objects": bodies[False],
        "links": links,
        "room": [*corners, corners[0]],
    }
