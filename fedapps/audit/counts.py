"""What the gradient of one linear layer tells without a search: how often each class occurs, and the layer's inputs."""

from collections.abc import Sequence

import numpy as np
import scipy
import torch
from torch import Tensor, nn

from fedapps.base.options import matches


def head_layer(model: nn.Module, head: Sequence[str]) -> str:
    """The name of the last linear layer with a bias among the parameters of the head; empty if there is none."""
    names = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module.bias is not None and matches(f"{name}.weight", head)
    ]
    return names[-1] if names else ""


def label_counts(gradient: Tensor, answers: Tensor, count: int, *, scaled: bool = False) -> Tensor:
    """How many of the examples are of each class, from the gradient of the bias of the last layer.

    Under the cross-entropy the gradient of one example of class y is p - e_y with its probabilities p (Zhao et al.,
    iDLG, 2020, Equation 4). With the mean probabilities P_c of class c on public examples, the gradient of n examples
    is Σ_c λ_c (P_c - e_c) / n, which is solved for the counts λ >= 0 (as LLG*, Wainakh et al., PETS 2022, Section 3.4).

    Parameters
    ----------
    gradient : Tensor [C]
        Of the mean loss.
    answers : Tensor [C, C]
        The row c is P_c.
    count : int
        n, at least 1.
    scaled : bool
        Whether the gradient is known up to a factor only.

    Returns
    -------
    Tensor int64 [C]
        The sum is n.
    """
    system = (answers.T - torch.eye(len(answers))).double().numpy()
    right = gradient.double().numpy()
    if scaled:
        right = right / max(float(np.abs(right).max()), np.finfo(float).tiny)
    else:
        system, right = np.vstack([system, np.ones(len(answers))]), np.append(right, 1.0)
    shares, _ = scipy.optimize.nnls(system, right)
    shares = shares / shares.sum() if shares.sum() else np.full(len(answers), 1 / len(answers))
    whole = np.floor(shares * count + 1e-9).astype(int)
    largest = np.argsort(whole - shares * count, kind="stable")[: count - whole.sum()]  # largest remainders
    whole[largest] += 1
    return torch.from_numpy(whole)


def mean_answers(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean probabilities of each class's examples ``[C, C]``; of all examples where a class has none."""
    probabilities = logits.double().softmax(1)
    answers = probabilities.mean(0).expand(logits.shape[1], -1).clone()
    for label in labels.unique().tolist():
        answers[label] = probabilities[labels == label].mean(0)
    return answers


def right_share(counts: Tensor, true: Tensor) -> float:
    """The share of a node's examples whose class is among those counted."""
    return float(torch.minimum(counts, true).sum()) / float(true.sum())


def linear_inputs(weight: Tensor, bias: Tensor) -> Tensor:
    """What a linear layer was given: gradient of the weight ``[o, i]`` divided by that of the bias ``[o]``.

    Of one example every row is its input exactly (Geiping et al., 2020, Proposition 3.1); of several it is a mean of
    their inputs, weighted by how much each moves the output. Rows without a gradient are left out.

    Returns
    -------
    Tensor [r, i]
    """
    rows = bias != 0
    return weight[rows] / bias[rows, None]


def input_errors(true: Tensor, read: Tensor) -> Tensor:
    """The distance of each true input ``[n, i]`` to the nearest of those read ``[r, i]``, relative to its length."""
    if not len(read):
        return torch.full((len(true),), torch.inf)
    nearest: Tensor = torch.cdist(true.double(), read.double()).min(1).values
    lengths: Tensor = true.double().norm(dim=1)
    return nearest / lengths.clamp(min=1e-12)
