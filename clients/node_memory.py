"""How the arrays are laid out that a node keeps from round to round.

Private parameters have their own names. What else it takes along, its *memory*, stands beside them with a prefix: where
a plateau was, the own past, the stage that was trained.
"""

from .ewc_state import Anchors, EwcState
from .named_arrays import Arrays

STAGE = "stage"
PREFIX = "memory."


def kept_arrays(private: Arrays, memory: Arrays) -> Arrays:
    """What to keep of a round; :func:`memory_of` takes the memory out again."""
    return private | {PREFIX + name: array for name, array in memory.items()}


def memory_of(kept: Arrays) -> Arrays:
    """The memory in what was kept, without the private parameters."""
    return {name.removeprefix(PREFIX): array for name, array in kept.items() if name.startswith(PREFIX)}


def from_other_stage(kept: Arrays, stage: int) -> bool:
    """Whether it was kept in another stage than this one, by a node whose data has stages."""
    memory = memory_of(kept)
    return STAGE in memory and int(memory[STAGE]) != stage


def next_stage(kept: Arrays, anchors: Anchors) -> Arrays:
    """What was kept as a new stage finds it: of the memory only the own past, which the last stage joins."""
    past = EwcState.read(memory_of(kept)).next_stage(anchors).arrays()
    return kept_arrays({name: array for name, array in kept.items() if not name.startswith(PREFIX)}, past)
