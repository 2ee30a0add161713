"""The split of a participant's scenes into training, validation and test."""

from collections.abc import Mapping, Sequence

from fedapps.sim.seeding import generator
from fedapps.tasks.profiles import DataError

from .scenes import RatedScene

SPLITS = ("train", "validation", "test")
FEWEST = 4  # of 3 scenes, 2 would train, 1 would test and none would validate


def split_scenes(
    scenes: Sequence[RatedScene], participant: str, *, seed: int, train_fraction: float = 1.0, augment: bool = False
) -> Mapping[str, list[RatedScene]]:
    """Split the scenes of one participant.

    Of n scenes, ⌊0.7 n⌋ are for training, half of the remaining ones (rounded down) for validation, and the others for
    testing. This gives Table 3 of Guerdan and Gunes, 2022, Appendix A. Participants rated partly the same scenes, so a
    test scene of one may be a training scene of another.

    Parameters
    ----------
    scenes : sequence of RatedScene
        The scenes in the order of the file.
    participant : str
        The participant's name, which keys the draw together with ``seed``.
    seed : int
        The seed.
    train_fraction : float
        The share of the training scenes to keep, in (0, 1]; at least one is kept. It does not change the other splits.
    augment : bool
        Whether to add the mirror image of every training scene.

    Raises
    ------
    DataError
        There are fewer than 4 scenes.
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
