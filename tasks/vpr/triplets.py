"""The triplet loss: a query must be nearer to its place than to others, by a margin (FedVPR, Equation 3).

As in the benchmark of Berton et al. (CVPR 2022), distances are Euclidean and not squared, the margin is 0.1 and the
loss is the mean over negatives.
"""

import torch
from torch import Tensor


def triplet_terms(queries: Tensor, positives: Tensor, negatives: Tensor, *, margin: float = 0.1) -> Tensor:
    """Return max(|q - p| - |q - n| + margin, 0) for each negative, ``[b, k]``.

    Parameters
    ----------
    queries, positives : Tensor [b, d]
        Descriptors.
    negatives : Tensor [b, k, d]
        Descriptors.
    margin : float
        The margin.

    The gradient of a distance of 0 is 0. The share of zero terms shows how many triplets no longer contribute to
    training.
    """
    # torch's gradient of a norm at 0 is 0.
    near = torch.linalg.vector_norm(queries - positives, dim=-1)
    far = torch.linalg.vector_norm(queries[:, None] - negatives, dim=-1)
    terms: Tensor = (near[:, None] - far + margin).relu()
    return terms


def triplet_loss(terms: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean of :func:`triplet_terms` over negatives, then over queries, a scalar.

    Negatives for which ``mask`` ``[b, k]`` is false do not count, nor do queries without negatives. The loss is 0 if
    nothing counts.
    """
    if mask is None:
        mask = torch.ones_like(terms, dtype=torch.bool)
    counts = mask.sum(dim=1)
    of_queries = torch.where(mask, terms, 0).sum(dim=1) / counts.clamp(min=1)
    return of_queries.sum() / (counts > 0).sum().clamp(min=1)
