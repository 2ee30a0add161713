"""The adaptive parameters that a node borrows from other nodes (FedWeIT).

Yoon et al., Federated Continual Learning with Weighted Inter-client Transfer (FedWeIT), ICML 2021, Section 3.2 and
Algorithm 1 (https://arxiv.org/abs/2003.03196). The server's strategy ``FedWeIT`` sends them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from fedapps.strategies.wire import FEDWEIT, FEDWEIT_KEYS, FEDWEIT_KNOWLEDGE_PREFIX, STAGE
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from .decomposition import Layout
from .named_arrays import Arrays


@dataclass(frozen=True)
class Knowledge:
    """What other nodes learned in the last stage. Without arguments: nothing.

    Parameters
    ----------
    stage : int
        The stage to use the knowledge in, counted from 0.
    keys : tuple of str
        The nodes that it is from.
    adaptive : tuple of dicts of arrays
        The adaptive parameters of each of them, by weight.
    """

    stage: int = 0
    keys: tuple[str, ...] = ()
    adaptive: tuple[Arrays, ...] = ()

    @classmethod
    def read(cls, content: RecordDict) -> Knowledge:
        """Return the knowledge in a message; none if it has no ConfigRecord ``fedweit``.

        Raises
        ------
        ValueError
            The ConfigRecord is malformed, or the model of one of its nodes is missing.
        """
        order = content.get(FEDWEIT)
        if not isinstance(order, ConfigRecord):
            return cls()
        stage, keys = order.get(STAGE), order.get(FEDWEIT_KEYS)
        if not isinstance(stage, int) or not isinstance(keys, list):
            raise ValueError(
                f"{FEDWEIT} {STAGE} = {stage!r}, {FEDWEIT_KEYS} = {keys!r}: must be an integer and a list of node keys"
            )
        adaptive = []
        for index, key in enumerate(keys):
            record = content.get(f"{FEDWEIT_KNOWLEDGE_PREFIX}{index}")
            if not isinstance(record, ArrayRecord):
                raise ValueError(
                    f"{FEDWEIT_KNOWLEDGE_PREFIX}{index}, of node {key}: must come as an ArrayRecord with {FEDWEIT}"
                )
            adaptive.append({name: array.numpy() for name, array in record.items()})
        return cls(stage, tuple(map(str, keys)), tuple(adaptive))

    def flat(self, layout: Layout) -> Tensor:
        """Return the models as a tensor ``[K, n]``, with zeros for missing weights.

        Raises
        ------
        ValueError
            An array does not fit the model.
        """
        for key, arrays in zip(self.keys, self.adaptive, strict=True):
            for name, array in arrays.items():
                if name not in layout.weights:
                    raise ValueError(
                        f"what node {key} learned: {name!r} is no weight of the model: {', '.join(layout.weights)}"
                    )
                if array.shape != layout.weights[name]:
                    raise ValueError(
                        f"what node {key} learned: {name!r} is {list(array.shape)}, not {list(layout.weights[name])}"
                    )
        return torch.stack(
            [
                layout.flat(layout.weights, {n: torch.from_numpy(a) for n, a in arrays.items()})
                for arrays in self.adaptive
            ]
        )
