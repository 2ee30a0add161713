"""A node that trains as a virtual client: on a fixed number of examples, whatever it has (FedVC).

Hsu, Qi and Brown, Federated Visual Classification with Real-World Data Distribution, ECCV 2020, Section 4.2,
https://arxiv.org/abs/2003.08082. The server's strategy ``VirtualClients`` sends the config keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from fedapps.clients.local_part import LocalPart, NodeRound
from fedapps.clients.training import Phase
from fedapps.tasks.base import NodeData
from torch import nn

from fedapps.base.options import option


@dataclass(frozen=True)
class VirtualClient(LocalPart):
    """Draw the examples of the round.

    Parameters
    ----------
    virtual_examples : int
        Train one epoch on this many examples, drawn without replacement if the node has as many, otherwise with
        replacement; 0 = train on all examples.
    virtual_draw : int
        Counts the virtual clients that one node is in a round, from 0; each draws different examples.
    """

    virtual_examples: int = option(0, "examples to train on", minimum=0, maximum=10**8)
    virtual_draw: int = option(0, "which virtual client of the round", minimum=0)

    def seed_labels(self) -> tuple[int | str, ...]:
        return (self.virtual_draw,) if self.virtual_draw else ()

    def draw(self, data: NodeData, node_round: NodeRound) -> NodeData:
        return of_virtual_client(data, self.virtual_examples)

    def plan(self, plan: Sequence[Phase], model: nn.Module, data: NodeData, node_round: NodeRound) -> Sequence[Phase]:
        if not self.virtual_examples:
            return plan
        joint = plan[-1]
        return [*plan[:-1], replace(joint, training=replace(joint.training, epochs=1))]


def of_virtual_client(data: NodeData, count: int) -> NodeData:
    """Draw ``count`` training examples, with replacement only if the node has fewer; 0 = all examples, as they are."""
    held = data.count("train")
    if count == 0 or held == 0:
        return data
    chosen = torch.randperm(held)[:count] if count <= held else torch.randint(held, (count,))
    train = {name: tensor[chosen] for name, tensor in data.splits["train"].items()}
    return replace(data, splits={**data.splits, "train": train})
