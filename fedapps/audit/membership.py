"""Membership inference: which examples the nodes trained on, from an update, or from the final model alone.

Among candidates, those are taken for the examples of an update whose own updates explain it. It takes an attacker who
has the examples, such as pictures of streets, and wants to know which of them a node has.

To attack final models, several are trained with FedAvg, each on a random half of the examples of every node but the
last. Each model is attacked in turn: its training examples are members, the other half are not.

The first attack reads the loss (Yeom et al., Privacy Risk in Machine Learning, CSF 2018,
https://arxiv.org/abs/1709.01604, Section 3.2). The second one compares it, for each example, with the losses of the
other models that were trained without the example (Carlini et al., Membership Inference Attacks From First Principles,
S&P 2022, https://arxiv.org/abs/2112.03570, offline LiRA of Section V, with one variance for all examples, as they
advise for few reference models). Its attacker has data like the nodes', and trains as they do.
"""

from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import scipy
import torch
from torch import Tensor, nn

from fedapps.base.seeding import derive_seed, torch_seed
from fedapps.clients.training import Phase, run_plan
from fedapps.config.run_config import RunConfig
from fedapps.tasks.base import NodeData, Task

from .observed import model_of_node, sent

#: Models that are trained and attacked, an even number; each example trains half of them.
MODELS = 8
#: Examples whose membership is inferred, over all nodes, and as many of the node that took no part.
_ATTACKED = 256
#: Examples that follow each other, such as windows of one drive, are alike: a node's are in or out in so many runs.
_RUNS = 32
#: The rate of false positives at which the true ones are counted.
RATE = 0.01
FINAL = "final model"
#: Values of updates that are multiplied at once, in float64.
_VALUES = 2**15


def membership_rows(task: Task, first: nn.Module, nodes: list[NodeData], run: RunConfig) -> list[dict[str, Any]]:
    """Attack the final models of a run.

    Parameters
    ----------
    task : Task
    first : Module
        The untrained model.
    nodes : list of NodeData
        Those of which the last takes no part.
    run : RunConfig
        With the rounds, the share of nodes in a round, local training, compression and local noise.

    Returns
    -------
    list of dict
        One for each attack: ``attack``; ``error``, the area under the ROC curve; ``read``, the share of the training
        examples that are recognised where 1 % of the others are taken for them; and ``another``, the share of the
        examples of the node that took no part that are taken for training examples.

    Raises
    ------
    ValueError
        Fewer than two nodes have at least two training examples.
    """
    nodes = [data for data in nodes if data.count("train") > 1]
    if len(nodes) < 2:
        raise ValueError(f"num-nodes = {run.num_nodes}: at least two nodes must have two training examples or more")
    *taking, absent = nodes
    splits = [halves(data.count("train"), derive_seed(run.seed, "audit", "members", data.key)) for data in taking]
    attacked = [_drawn(data, -(-_ATTACKED // len(taking)), run.seed) for data in taking]
    strange = _rows(absent, _drawn(absent, _ATTACKED, run.seed))
    confidences, others = [], []
    for number in range(MODELS):
        parts = [_rows(data, split[number].nonzero()[:, 0]) for data, split in zip(taking, splits, strict=True)]
        model = federated(task, first, parts, replace(run, seed=derive_seed(run.seed, "audit", "model", number)))
        measure = partial(_confidences, task, model, seed=run.seed)
        pairs = zip(taking, attacked, strict=True)
        confidences.append(torch.cat([measure(_rows(data, rows)) for data, rows in pairs]))
        others.append(measure(strange))
    member = torch.cat([split[:, rows] for split, rows in zip(splits, attacked, strict=True)], dim=1)
    inside, outside = torch.stack(confidences), torch.stack(others)
    scores = {
        "membership by the loss": (inside, outside),
        "membership, calibrated": (
            calibrated(inside, member),
            calibrated(outside, torch.zeros_like(outside, dtype=torch.bool)),
        ),
    }
    return [
        {"attack": name, "unit": "AUC", "error": auc(own[member], own[~member])}
        | {"read": recognised(own[member], own[~member]), "another": recognised(absent_scores, own[~member])}
        for name, (own, absent_scores) in scores.items()
    ]


def explaining(update: Tensor, candidates: Tensor, count: int) -> Tensor:
    """Which candidates explain an update.

    An update is the sum of what each of its examples adds. With c_i for what a candidate would add, the weights λ >= 0
    minimise the squared distance of Σ λ_i c_i / |c_i| to the update.

    Parameters
    ----------
    update : Tensor [P]
    candidates : Tensor [k, r, P]
        What each candidate would add in each of r places of the batch.
    count : int
        How many candidates to name, at most k.

    Returns
    -------
    Tensor bool [k]
        The largest sums of weights over places.
    """
    aim = nn.functional.normalize(update.double(), dim=0)
    products, onto = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for part, of in zip(candidates.flatten(0, 1).split(_VALUES, dim=1), aim.split(_VALUES), strict=True):
        products, onto = products + part.double() @ part.double().T, onto + part.double() @ of
    lengths = products.diagonal().sqrt().clamp(min=torch.finfo(torch.float64).tiny)
    # With the eigenvectors V and eigenvalues d of C Cᵀ, |Cᵀ λ - u|² is |√d Vᵀ λ - √d⁻¹ Vᵀ C u|² and a constant.
    values, vectors = torch.linalg.eigh(products / lengths / lengths[:, None])
    kept = values > 1e-10
    roots, rotation = values[kept].sqrt(), vectors[:, kept].T
    right = rotation @ (onto / lengths) / roots
    weights = torch.from_numpy(scipy.optimize.nnls((roots[:, None] * rotation).numpy(), right.numpy())[0])
    named = torch.zeros(len(candidates), dtype=torch.bool)
    named[weights.view(len(candidates), -1).sum(1).topk(count).indices] = True
    return named


def halves(count: int, seed: int) -> Tensor:
    """Which of ``count`` examples train which model, bool ``[MODELS, count]``: each example trains half of them."""
    generator = torch.Generator().manual_seed(seed)
    length = max(1, count // _RUNS)
    orders = torch.rand(MODELS, -(-count // length), generator=generator).argsort(dim=0)
    return (orders < MODELS // 2).repeat_interleave(length, dim=1)[:, :count]


def federated(task: Task, first: nn.Module, nodes: list[NodeData], run: RunConfig) -> nn.Module:
    """The final model of FedAvg: in each round, the mean change of the nodes that train is taken from the model."""
    model = deepcopy(first)
    most = max(1, min(len(nodes), round(run.fraction_train * len(nodes))))
    for turn in range(run.rounds):
        with torch_seed(run.seed, "audit", "round", turn):
            chosen = torch.randperm(len(nodes))[:most].tolist()
        total, weights = dict.fromkeys(model.state_dict(), torch.zeros(())), 0.0
        for data in (nodes[index] for index in chosen):
            local = model_of_node(task, model, data)
            own = replace(run, seed=derive_seed(run.seed, "audit", turn, data.key))
            with torch_seed(own.seed):
                run_plan(local, [Phase(run.training)], partial(task.training_batches, local, data), task.loss)
            weight = float(data.count("train")) if run.weighting == "num-examples" else 1.0
            kept = model.state_dict()
            changes = {name: kept[name] - one for name, one in local.named_buffers() if name in kept}
            changes = {**changes, **sent(model, local, own)}
            total = {name: total[name] + weight * one for name, one in changes.items()}
            weights += weight
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                if name in total and tensor.is_floating_point():
                    tensor.sub_(total[name] / weights)
    return model


def calibrated(confidences: Tensor, member: Tensor) -> Tensor:
    """How much more confident each of m models is of each of n examples than the other models without the example.

    Parameters
    ----------
    confidences : Tensor [m, n]
    member : Tensor [m, n]
        Whether an example trained a model; each leaves out at least two models.

    Returns
    -------
    Tensor [m, n]
    """
    out = (~member).double()
    # The mean over the models without the example, and without the attacked one.
    total, count = (out * confidences).sum(0) - out * confidences, out.sum(0) - out
    return confidences - total / count


def confidence(losses: Tensor) -> Tensor:
    """The logit of the probability exp(-loss) (Carlini et al., Section IV-B); of other losses than likelihoods, a
    function that falls with the loss, and is steep at 0.
    """
    losses = losses.double().clamp(1e-9, 1e9)
    return -losses - torch.log(-torch.expm1(-losses))


def auc(members: Tensor, others: Tensor) -> float:
    """The area under the ROC curve: how often a member has the higher score than another; equal ones count half."""
    gaps = members[:, None] - others
    return float(((gaps > 0).double() + (gaps == 0).double() / 2).mean())


def recognised(members: Tensor, others: Tensor) -> float:
    """The share of members above the lowest threshold that at most :data:`RATE` of the others exceed."""
    allowed = int(RATE * len(others))
    threshold = others.sort(descending=True).values[allowed]
    return float((members > threshold).double().mean())


def _confidences(task: Task, model: nn.Module, data: NodeData, *, seed: int) -> Tensor:
    with torch_seed(seed, "audit", "losses"), torch.no_grad():
        return confidence(task.example_losses(model_of_node(task, model, data).eval(), data, "train"))


def _drawn(data: NodeData, most: int, seed: int) -> Tensor:
    """At most so many rows of a node's training examples."""
    with torch_seed(seed, "audit", "attacked", data.key):
        return torch.randperm(data.count("train"))[:most].sort().values


def _rows(data: NodeData, rows: Tensor) -> NodeData:
    """A node with these training examples alone."""
    return replace(data, splits={"train": {name: tensor[rows] for name, tensor in data.splits["train"].items()}})
