"""Which scenes of a participant train, validate and test."""

from collections.abc import Mapping, Sequence

from sim.seeding import generator
from tasks.profiles import DataError

from .scenes import Scene

SPLITS = ("train", "validation", "test")
FEWEST = 4  # of 3 scenes, 2 train and none is left to validate


def split_scenes(
    scenes: Sequence[Scene], participant: str, *, seed: int, train_fraction: float = 1.0, augment: bool = False
) -> Mapping[str, list[Scene]]:
    """Training, validation and test scenes of one participant, by name of the split.

    Of n scenes ⌊0.7 n⌋ train, half of the rest, rounded down, validate, the others test, which gives Table 3 of
    Guerdan and Gunes, 2022, Appendix A. The draw depends on ``seed`` and ``participant`` alone. ``train_fraction``
    in (0, 1] keeps the first of the training scenes, at least one, and moves no other; ``augment`` then adds the
    mirror image of each. Raises :class:`DataError` for fewer than 4 scenes.

    Participants rated partly the same scenes: a test scene of one may train another.
    """
    if len(scenes) < FEWEST:
        raise DataError(
            f"{participant}.json: participant {participant!r} rated {len(scenes)} scenes; expected at least {FEWEST}, "
            "for training, validation and test"
        )
    order = generator(seed, "social.split", participant).permutation(len(scenes))
    shuffled = [scenes[index] for index in order]
    train = 7 * len(scenes) // 10
    validation = train + (len(scenes) - train) // 2
    used = shuffled[: max(1, round(train_fraction * train))]
    if augment:
        used += [scene.mirrored() for scene in used]
    return dict(zip(SPLITS, (used, shuffled[train:validation], shuffled[validation:]), strict=True))
