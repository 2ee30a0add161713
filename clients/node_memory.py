"""The layout of the arrays that a node keeps from round to round.

Private parameters have their names. Everything else that a node keeps, its *memory*, has names with a prefix: the state
of a plateau, the terms of earlier stages, the stage that was trained.
"""

from .named_arrays import Arrays

STAGE = "stage"
PREFIX = "memory."


def kept_arrays(private: Arrays, memory: Arrays) -> Arrays:
    """The arrays to keep of a round; :func:`memory_of` and :func:`private_of` take them apart again."""
    return private | {PREFIX + name: array for name, array in memory.items()}


def memory_of(kept: Arrays) -> Arrays:
    """The memory among the kept arrays, without the prefix."""
    return {name.removeprefix(PREFIX): array for name, array in kept.items() if name.startswith(PREFIX)}


def private_of(kept: Arrays) -> Arrays:
    """The private parameters among the kept arrays."""
    return {name: array for name, array in kept.items() if not name.startswith(PREFIX)}


def from_other_stage(kept: Arrays, stage: int) -> bool:
    """Whether a node whose data has stages kept the arrays in another stage than this one."""
    memory = memory_of(kept)
    return STAGE in memory and int(memory[STAGE]) != stage
