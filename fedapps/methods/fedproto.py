"""FedProto: nodes keep their models, and share the mean representation of each class.

Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022, Section 4, Equations 3, 7
and 8, https://arxiv.org/abs/2105.00243.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from glob import escape
from typing import Any, ClassVar, Self

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from torch import Tensor, nn

from fedapps.base.options import Range, option
from fedapps.clients.arrays import Arrays, load_arrays, matches
from fedapps.clients.local_part import EVALUATED_MODEL, LocalPart, NodeRound, Prepared
from fedapps.clients.settings import read_arrays
from fedapps.clients.training import EXAMPLES_AT_ONCE, Loss
from fedapps.strategies import FedProto as FedProtoStrategy
from fedapps.strategies.wire import FEDPROTO_GLOBAL, FEDPROTO_LOCAL
from fedapps.tasks.base import Batch, Task, with_features
from fedapps.tasks.profiles import PrivateParameters

from .base import Method

#: The logit of a class without a prototype, which no example is nearest to.
_NEVER = -1e30


@dataclass(frozen=True)
class FedProtoOptions:
    """The options of FedProto."""

    weight: float = option(
        0.1,
        "weight λ of the distance to the prototypes in the loss; 0 = every node alone, if its head predicts",
        minimum=0,
        search=Range(0.01, 10, log=True),
    )
    predict: str = option(
        "head",
        "head: nodes predict by the head of their model; prototypes: by the nearest prototype, also among classes that "
        "they have no examples of",
        choices=["head", "prototypes"],
    )


class FedProto(Method):
    """Nodes train all their parameters alone, drawn to the means of the representations of each class.

    The paper's λ is 1. Here the default is a tenth of it, with which nodes with few classes of the digits are not below
    nodes that train alone.
    """

    name = "fedproto"
    summary = (
        "FedProto: every node keeps its model; the mean representations of the classes are shared and draw the nodes'"
    )
    citation = (
        "Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022, "
        "https://arxiv.org/abs/2105.00243"
    )
    sends = "mean features by class"
    work = "+ 1 forward pass"
    good_for = "few classes on each node; slow links"
    needs = ("features", "classes")
    needs_model = True
    Options = FedProtoOptions
    Strategy = FedProtoStrategy

    def private(self, task: Task) -> PrivateParameters:
        """All parameters by name: the pattern ``*`` would also keep the prototypes on the node."""
        return PrivateParameters(tuple(map(escape, _names(task))))

    def local_parts(self) -> Sequence[LocalPart]:
        return [FedProtoPart(self.options)]


@lru_cache(maxsize=32)
def _names(task: Task) -> tuple[str, ...]:
    with torch.random.fork_rng(devices=[]):
        names = task.build_model().state_dict()
    return tuple(name for name in names if not matches(name, task.fixed))


@dataclass(frozen=True)
class FedProtoPart(LocalPart):
    """Add λ · mean (e(x) − C_y)² to the loss of a batch, over its examples and the dimensions of e.

    e(x) are the features of an example and C_y is the global prototype of its class, the mean of the features of its
    examples. Examples of classes without a prototype, as all in the first round, count 0. The mean over dimensions and
    the sum by examples are those of the authors' code; Equation 7 has the distance of the means of the classes. After
    training the node sends the mean features of its training examples of each class, in evaluation mode, and their
    numbers.

    Parameters
    ----------
    prototypes : dict of arrays, or None
        From the record ``fedproto.global`` of the message.
    """

    exclusive: ClassVar[frozenset[str]] = frozenset({EVALUATED_MODEL})

    options: FedProtoOptions = FedProtoOptions()

    prototypes: Arrays | None = field(default=None, compare=False)

    def read(self, config: Mapping[str, object], content: RecordDict) -> Self:
        record = content.array_records.get(FEDPROTO_GLOBAL)
        if record is None:
            return self
        arrays = read_arrays(FEDPROTO_GLOBAL, record)
        shapes = {name: array.shape for name, array in arrays.items()}
        classes, prototypes = shapes.get("classes", ()), shapes.get("prototypes", ())
        if set(shapes) != {"classes", "prototypes"} or len(prototypes) != 2 or classes != prototypes[:1]:
            raise ValueError(f"{FEDPROTO_GLOBAL}: must have classes [k] and prototypes [k, d], got {shapes}")
        return replace(self, prototypes=arrays)

    def before_training(self, model: nn.Module, node_round: NodeRound) -> Mapping[str, Any]:
        """Change nothing. Raise ``ValueError`` if no linear layer can stand for the nearest prototype."""
        if self._nearest:
            _linear_head(model, node_round.task)
        return {}

    def loss(self, loss: Loss, model: nn.Module, node_round: NodeRound) -> Loss:
        if self.options.weight == 0 or self.prototypes is None:
            return loss
        task = node_round.task
        table, known = (tensor.to(node_round.device) for tensor in self._table(task))

        def pulled(model: nn.Module, batch: Batch) -> Tensor:
            value, features = with_features(task, loss, model, batch)
            if features.shape[1] != table.shape[1]:
                raise ValueError(_other_size(features.shape[1], table.shape[1]))
            label = batch["label"].long()
            # Equation 7: λ times the distance of the features to the prototype of their class
            squares = (features - table[label].to(features)) ** 2
            return value + self.options.weight * (squares * known[label, None].to(squares)).mean()

        return pulled

    @torch.no_grad()
    def records(self, trained: Arrays, model: nn.Module, node_round: NodeRound) -> Mapping[str, ArrayRecord]:
        task, sums = node_round.task, torch.zeros(0)
        counts = torch.zeros(task.num_classes, dtype=torch.int64)
        model.eval()
        for batch in task.examples(node_round.data, "train", EXAMPLES_AT_ONCE):
            tensors = {name: tensor.to(node_round.device) for name, tensor in batch.items()}
            features, label = task.features(model, tensors).cpu().double(), batch["label"].cpu().long()
            sums = sums if len(sums) else torch.zeros(task.num_classes, features.shape[1], dtype=torch.float64)
            sums.index_add_(0, label, features)
            counts += torch.bincount(label, minlength=task.num_classes)
        model.train()
        least = node_round.guard.rules.min_count
        (classes,) = torch.nonzero(counts >= least, as_tuple=True)
        if not len(classes):
            raise ValueError(f"no class of this node has {least} training examples, the min-count of its node config")
        # Algorithm 1: the prototype of a class is the mean of the features of its examples
        means = sums[classes] / counts[classes, None]
        arrays = {"classes": classes, "prototypes": means.float(), "counts": counts[classes]}
        return {FEDPROTO_LOCAL: ArrayRecord({name: Array(tensor.numpy()) for name, tensor in arrays.items()})}

    def before_evaluation(self, model: nn.Module, node_round: NodeRound) -> Prepared:
        if self._nearest and self.prototypes is not None:
            name, head = _linear_head(model, node_round.task)
            table, known = self._table(node_round.task)
            if table.shape[1] != head.in_features:
                raise ValueError(_other_size(head.in_features, table.shape[1]))
            # The nearest prototype: argmin ‖e − C_y‖² = argmax 2 C_yᵀe − ‖C_y‖²
            bias = torch.where(known, -(table**2).sum(dim=1), _NEVER)
            load_arrays(model, {f"{name}.weight": 2 * table, f"{name}.bias": bias})
        return Prepared()

    @property
    def _nearest(self) -> bool:
        return bool(self.options.predict == "prototypes")

    def _table(self, task: Task) -> tuple[Tensor, Tensor]:
        """The prototypes of all classes ``[classes, d]``, 0 where there is none, and whether there is one."""
        assert self.prototypes is not None
        classes, prototypes = self.prototypes["classes"], self.prototypes["prototypes"]
        own = (classes >= 0) & (classes < task.num_classes)
        table = np.zeros((task.num_classes, prototypes.shape[1]), prototypes.dtype)
        known = np.zeros(task.num_classes, np.bool_)
        table[classes[own]], known[classes[own]] = prototypes[own], True
        return torch.from_numpy(table), torch.from_numpy(known)


def _linear_head(model: nn.Module, task: Task) -> tuple[str, nn.Linear]:
    """The name and the module of the head. Raises ``ValueError`` if it is not one linear layer with a bias."""
    names = {name for name in model.state_dict() if matches(name, task.roles.head)}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and names == {f"{name}.weight", f"{name}.bias"}:
            return name, module
    raise ValueError(
        f"the head of the model ({', '.join(sorted(names)) or 'none'}) is not one linear layer with a bias, which the "
        "nearest prototype could replace: set fedproto.predict to 'head'"
    )


def _other_size(features: int, prototypes: int) -> str:
    return (
        f"the features of this node have {features} dimensions, the prototypes {prototypes}: all nodes need the same "
        "number"
    )
