"""One update of a node, as an honest server sees it: after the optimizer, compression, noise, or in a sum.

The attacker knows the model that the node received, the run config, how many examples the node trained on, and the
random draws of its training, which follow from the seed. It does not know the examples.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from fedapps.base.seeding import torch_seed
from fedapps.clients.data import DataSource, cached_load
from fedapps.clients.fisher import diagonal_fisher, evaluating
from fedapps.clients.settings import OptimizerName
from fedapps.clients.training import ModelWithLoss, Phase, run_plan
from fedapps.config.parsing import parse
from fedapps.config.run_config import RunConfig
from fedapps.launch.inputs import check_folder
from fedapps.tasks.base import Batch, NodeData, Task
from fedapps.tasks.profiles import zero_padded

from .victim import compressed, noise_of

_DRAWS = ("audit", "train")
#: Below this, in the unit of a squared gradient, the root of a Fisher term is no longer steep.
_FLAT = 1e-16
#: Two gradients are equal up to this relative distance.
_ALIKE = 1e-4


@dataclass(frozen=True)
class Situation:
    """What a node trains on, and what becomes of its update.

    Attributes
    ----------
    name : str
        For the table.
    examples, steps : int
        Examples of a step, and steps of the optimizer.
    nodes : int
        How many such nodes are in the sum that the server sees, if there is secure aggregation; 1 without it.
    optimizer : str
        "sgd", of which an update is a sum of gradients, or "adam".
    settings : mapping
        Fields of the run config that it changes.
    fisher : bool
        The server sees the diagonal of the Fisher information, the mean of squared gradients, in place of the update.
    """

    name: str
    examples: int = 1
    steps: int = 1
    nodes: int = 1
    optimizer: OptimizerName = "sgd"
    settings: Mapping[str, Any] = field(default_factory=dict)
    fisher: bool = False


#: The first one is the attacker's best case; the others change it in one way.
SITUATIONS = (
    Situation("1 example"),
    Situation("8 examples", 8),
    Situation("2 steps of 8", 8, 2),
    Situation("Adam", optimizer="adam"),
    Situation("Fisher terms", fisher=True),
    Situation("Fisher of 8", 8, fisher=True),
    Situation("int8", settings={"compression": "int8"}),
    Situation("top-k", settings={"compression": "top-k"}),
    Situation("noise", settings={"dp": "local"}),
    *(Situation(f"sum of {nodes}", nodes=nodes) for nodes in (2, 10, 100)),
)

Changes = dict[str, Tensor]


def run_in(run: RunConfig, situation: Situation) -> RunConfig:
    """The run config of a situation; it trains with a plain optimizer."""
    training = replace(run.training, optimizer=situation.optimizer, momentum=0.0, weight_decay=0.0, clip_norm=0.0)
    return replace(run, training=training, **situation.settings)


def model_of_node(task: Task, model: nn.Module, data: NodeData) -> nn.Module:
    """A copy of a model as a node has it; that of an agent, for example, knows the node's houses."""
    if task.model_key(data) == ():
        return deepcopy(model)
    with torch_seed(0):
        local = task.build_model_for(data)
    local.load_state_dict(model.state_dict())
    return local


def drawn_batches(
    task: Task, model: nn.Module, data: NodeData, situation: Situation, seed: int, *labels: str | int
) -> list[Batch]:
    """Draw the batches of a node, one for each step.

    Raises
    ------
    ValueError
        The node has too few examples.
    """
    with torch_seed(seed, "audit", "examples", *labels):
        epoch = task.training_batches(model, data, situation.examples)
        batches = list(islice(epoch, situation.steps))
    if len(batches) < situation.steps or _count(batches[-1]) < situation.examples:
        raise ValueError(
            f"node {data.key} has {data.count('train')} training examples: the audit needs "
            f"{situation.examples * situation.steps}; use fewer nodes, or more data"
        )
    return batches


class Audited:
    """A task, its first model, and the data of its nodes, of which the first is attacked."""

    def __init__(self, flat: Mapping[str, Any], seed: int) -> None:
        config = parse(dict(flat))
        self.run: RunConfig = replace(config.run, seed=config.run.seed + seed)
        self.task: Task = config.task
        check_folder(config, self.task)
        sources = [self._source(node) for node in range(self.run.num_nodes)]
        #: The nodes that have training examples; the first one is attacked.
        self.nodes = [node for node, one in enumerate(sources) if one.profile(self.task).num_examples]
        if len(self.nodes) < 2:
            raise ValueError(
                f"num-nodes = {self.run.num_nodes}: two nodes or more must have training examples, because attacks are "
                "compared with another node's data"
            )
        with torch_seed(self.run.seed, "model"):
            self.model: nn.Module = self.task.build_model_for(self.data(0))

    def check(self) -> None:
        """Raise ``ValueError`` if the attacked node, or the one that it is compared with, has too few examples."""
        most = max(SITUATIONS, key=lambda situation: situation.examples * situation.steps)
        for node in (0, -1):
            self.batches(most, node)

    def data(self, node: int) -> NodeData:
        """The data of a node with training examples; they are repeated after the last one."""
        return cached_load(self._source(self.nodes[node % len(self.nodes)]), self.task, False)

    def _source(self, node: int) -> DataSource:
        return self.run.source(self.task, {"partition-id": node, "num-partitions": self.run.num_nodes})

    def model_of(self, node: int) -> nn.Module:
        """The first model as a node has it."""
        return model_of_node(self.task, self.model, self.data(node))

    def batches(self, situation: Situation, node: int) -> list[Batch]:
        """What a node trains on, for each step; another draw for a node with a number below 0."""
        model = self.model_of(abs(node))
        return drawn_batches(self.task, model, self.data(abs(node)), situation, self.run.seed, node)


def joined(batches: Sequence[Batch]) -> Batch:
    """Batches as one, padded to the largest of each dimension but the first."""
    padded = aligned(batches)
    return {name: torch.cat([batch[name] for batch in padded]) for name in padded[0]}


def aligned(batches: Sequence[Batch]) -> list[Batch]:
    """Batches padded with zeros to the largest of each dimension but the first."""
    padded = zip(zero_padded(batches), map(_count, batches), strict=True)
    return [{name: tensor[:count] for name, tensor in batch.items()} for batch, count in padded]


def separate(batch: Batch) -> list[Batch]:
    """The examples of a batch, each a batch of one."""
    return [{name: tensor[row : row + 1] for name, tensor in batch.items()} for row in range(_count(batch))]


def observed(
    task: Task, model: nn.Module, batches: Sequence[Batch], run: RunConfig, *, fisher: bool, node: int = 0
) -> Changes:
    """What the server gets of one node: the weights before minus those after training, in float32, or Fisher terms.

    Each ``node`` draws its own noise.
    """
    if fisher:
        with torch_seed(run.seed, *_DRAWS):
            terms = diagonal_fisher(model, batches[:1], task.loss, vectorised=task.vectorises)
        return {name: one.float() for name, one in terms.items()}
    local = deepcopy(model)
    with torch_seed(run.seed, *_DRAWS):
        run_plan(local, [Phase(replace(run.training, steps=0, epochs=1))], lambda _: iter(batches), task.loss)
    return sent(model, local, run, node)


def sent(model: nn.Module, local: nn.Module, run: RunConfig, node: int = 0) -> Changes:
    """What a node sends that got one model and trained another: the first minus the second, noised and compressed."""
    after = dict(local.named_parameters())
    changes = {name: (one - after[name]).detach() for name, one in model.named_parameters() if one.requires_grad}
    if noise := noise_of(run, node):
        changes = noise(changes)
    if compress := compressed(run):
        changes = dict(compress(changes))
    return changes


def mean_of_rows(task: Task, model: nn.Module, batch: Batch, *, seed: int) -> bool:
    """Whether the gradient of a batch is the mean of the gradients of its examples, each computed alone.

    The draws begin with the same seed each time. The two differ if the loss draws other numbers for each row, or if
    rows depend on each other, as with batch normalisation.
    """
    local = deepcopy(model)
    named = {name: one for name, one in local.named_parameters() if one.requires_grad}

    def gradient(of: Batch) -> Tensor:
        with torch_seed(seed, *_DRAWS):
            return torch.cat([one.detach().flatten() for one in _gradients(task.loss(local, of), named)])

    together, singles = gradient(batch), separate(batch)
    apart = sum((gradient(one) / len(singles) for one in singles), torch.zeros(()))
    return bool((together - apart).norm() <= _ALIKE * together.norm())


def parts(
    task: Task, model: nn.Module, example: Batch, filler: Batch, counts: Sequence[int], run: RunConfig, *, fisher: bool
) -> Tensor:
    """What an example adds to :func:`observed` in each place that it may have, which differ in their draws.

    All other places hold a filler. What fillers add there is subtracted: (1 - 1/n) of what n fillers give. The parts of
    the examples of a batch, each in its place, then add up to what is observed. This is exact for one step on a mean
    of losses of examples, and for Fisher terms, if the draws of one example do not depend on the others.

    Parameters
    ----------
    task, model, run, fisher
        As in :func:`observed`.
    example, filler : mapping of names to tensors
        Batches of one.
    counts : sequence of int
        How many examples each step has; with one example in one step, the part is its own update.

    Returns
    -------
    Tensor [places, P]
        float32.
    """
    example, filler = aligned([example, filler])
    total = sum(counts)

    def seen(place: int) -> Tensor:
        rows = iter([example if place == other else filler for other in range(total)])
        changes = observed(task, model, [joined(list(islice(rows, count))) for count in counts], run, fisher=fisher)
        return torch.cat([one.flatten() for one in changes.values()]).double()

    others = (1 - 1 / total) * seen(-1) if total > 1 else torch.zeros(())
    return torch.stack([(seen(place) - others).float() for place in range(total)])


def simulated_sum(task: Task, model: nn.Module, batch: Batch, run: RunConfig) -> Changes:
    """The mean of what :func:`observed` would be of nodes with an example of a batch each, differentiable in them.

    Each node has the draws of a batch of one.
    """
    seen = [simulated(task, model, [one], run) for one in separate(batch)]
    return {name: torch.stack([one[name] for one in seen]).mean(0) for name in seen[0]}


def simulated(task: Task, model: nn.Module, batches: Sequence[Batch], run: RunConfig) -> Changes:
    """What :func:`observed` would be of some batches, differentiable in them (Geiping et al., 2020, Section 5, for
    several steps).

    A step of Adam is the sign of the gradient, for which stands here one that has a slope.
    """
    start: Changes = {name: one for name, one in model.named_parameters() if one.requires_grad}
    current = start
    calculation = ModelWithLoss(model, task.loss)
    with torch_seed(run.seed, *_DRAWS):
        for batch in batches:
            loss = calculation.with_parameters(current, batch)
            gradients: Sequence[Tensor] = _gradients(loss, current)
            if run.training.optimizer != "sgd":
                gradients = [one / (one.abs() + one.abs().mean().detach() + _FLAT) for one in gradients]
            pairs = zip(current.items(), gradients, strict=True)
            current = {name: one - run.training.learning_rate * gradient for (name, one), gradient in pairs}
    return {name: start[name] - one for name, one in current.items()}


def fisher_terms(task: Task, model: nn.Module, batch: Batch, *, seed: int) -> Changes:
    """The mean over examples of their squared gradients, differentiable in the batch; the model is taken in evaluation
    mode, as nodes do.
    """
    named = {name: one for name, one in model.named_parameters() if one.requires_grad}
    sums = {name: torch.zeros_like(one) for name, one in named.items()}
    count = _count(batch)
    with evaluating(model), torch_seed(seed, *_DRAWS):
        for single in separate(batch):
            loss = task.loss(model, single)
            for name, gradient in zip(named, _gradients(loss, named), strict=True):
                sums[name] = sums[name] + gradient.square() / count
    return sums


def roots(terms: Changes) -> Changes:
    """The roots of Fisher terms, which are as large as gradients."""
    return {name: (one + _FLAT).sqrt() for name, one in terms.items()}


def _gradients(loss: Tensor, named: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, list(named.values()), create_graph=True, materialize_grads=True)


def _count(batch: Batch) -> int:
    return len(next(iter(batch.values())))
