"""Which examples a node works on in a round: those of its stage, and of them what a virtual client draws."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from tasks.base import NodeData, Task

from .state import PrivateState


def of_stage(task: Task, data: NodeData, collectors: Sequence[PrivateState], stage: int) -> NodeData:
    """The data of a stage, counted from 0, of a node.

    Data that has stages gives its own. Any other is the given data with all that was collected for the stages up to
    this one (under the name of :func:`collection`).

    Raises ``ValueError`` when none of ``collectors`` has data collected for one of them.
    """
    if data.stages:
        return data.at(stage)
    for collected_in in range(1, stage + 1):
        found = [collector.load_extra(collection(collected_in)) for collector in collectors]
        present = [collected for collected in found if collected is not None]
        if not present:
            raise ValueError(
                f"node {data.key} is asked to train in stage {stage}, but has no data collected for stage "
                f"{collected_in}: it was not evaluated at the end of the stage before"
            )
        for collected in present:
            data = task.with_collected(data, collected)
    return data


def collection(stage: int) -> str:
    """The name under which a node keeps what it collected for a stage, which is at least 1."""
    return f"collected-{stage}"


def of_virtual_client(data: NodeData, count: int) -> NodeData:
    """``count`` training examples of a node, drawn with replacement only where it has fewer; all of them for 0."""
    held = data.count("train")
    if count == 0 or held == 0:
        return data
    chosen = torch.randperm(held)[:count] if count <= held else torch.randint(held, (count,))
    train = {name: tensor[chosen] for name, tensor in data.splits["train"].items()}
    return replace(data, splits={**data.splits, "train": train})
