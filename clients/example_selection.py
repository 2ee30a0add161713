"""Selection of the examples that a node uses in a round: the data of a stage, and a virtual client's draw from it."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from fedapps.tasks.base import NodeData, Task

from .state import PrivateState


def of_stage(task: Task, data: NodeData, collectors: Sequence[PrivateState], stage: int) -> NodeData:
    """Return a node's data in a stage.

    Parameters
    ----------
    task : Task
    data : NodeData
        If it has stages, the result is the data of the stage. Otherwise it is this data with everything that was
        collected for the stages up to this one.
    collectors : sequence of PrivateState
        Where collected data is kept, under the names of :func:`collection`.
    stage : int
        Counted from 0.

    Raises
    ------
    ValueError
        No collector has data for one of the stages.
    """
    if data.stages:
        return data.at(stage)
    for collected_in in range(1, stage + 1):
        found = [collector.load_extra(collection(collected_in)) for collector in collectors]
        present = [collected for collected in found if collected is not None]
        if not present:
            raise ValueError(
                f"node {data.key} cannot train in stage {stage}: it has no data collected for stage "
                f"{collected_in}, because it was not evaluated at the end of the stage before"
            )
        for collected in present:
            data = task.with_collected(data, collected)
    return data


def collection(stage: int) -> str:
    """The name under which a node keeps the data collected for a stage, counted from 0 and at least 1."""
    return f"collected-{stage}"


def of_virtual_client(data: NodeData, count: int) -> NodeData:
    """Draw ``count`` training examples, with replacement only if the node has fewer; 0 = all examples, as they are."""
    held = data.count("train")
    if count == 0 or held == 0:
        return data
    chosen = torch.randperm(held)[:count] if count <= held else torch.randint(held, (count,))
    train = {name: tensor[chosen] for name, tensor in data.splits["train"].items()}
    return replace(data, splits={**data.splits, "train": train})
