"""What other nodes learned in the last stage (FedWeIT).

Yoon et al., Federated Continual Learning with Weighted Inter-client Transfer (FedWeIT), ICML 2021, Section 3.2 and
Algorithm 1 (https://arxiv.org/abs/2003.03196). The records are those of the server's strategy ``FedWeIT``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from .decomposition import Layout
from .named_arrays import Arrays

ORDER = "fedweit"
KNOWLEDGE = "fedweit.knowledge."


@dataclass(frozen=True)
class Knowledge:
    """What a TRAIN message brings of the last stage: the adaptive parameters of every node in ``keys``. Empty: none."""

    stage: int = 0
    keys: tuple[str, ...] = ()
    adaptive: tuple[Arrays, ...] = ()

    @classmethod
    def read(cls, content: RecordDict) -> Knowledge:
        """From a message's records; a message without the ConfigRecord ``fedweit`` brings none.

        Raises ``ValueError`` when one of the models that it announces is missing.
        """
        order = content.get(ORDER)
        if not isinstance(order, ConfigRecord):
            return cls()
        stage, keys = order.get("stage"), order.get("keys")
        if not isinstance(stage, int) or not isinstance(keys, list):
            raise ValueError(f"{ORDER} stage = {stage!r}, keys = {keys!r}: must be an integer and a list of node keys")
        adaptive = []
        for index, key in enumerate(keys):
            record = content.get(f"{KNOWLEDGE}{index}")
            if not isinstance(record, ArrayRecord):
                raise ValueError(f"{KNOWLEDGE}{index}, of node {key}: must come as an ArrayRecord with {ORDER}")
            adaptive.append({name: array.numpy() for name, array in record.items()})
        return cls(stage, tuple(map(str, keys)), tuple(adaptive))

    def flat(self, layout: Layout) -> Tensor:
        """``[K, n]``; zeros for weights of which nothing came.

        Raises ``ValueError`` for what does not fit the model.
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
