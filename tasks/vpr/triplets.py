"""The triplet loss: a query nearer to its place than to others, by a margin (FedVPR, eq. 3).

With Euclidean distances that are not squared, a margin of 0.1 and the mean over negatives, as in the benchmark of
Berton et al. (CVPR 2022).
"""

import torch
from torch import Tensor


def triplet_terms(queries: Tensor, positives: Tensor, negatives: Tensor, *, margin: float = 0.1) -> Tensor:
    """max(|q - p| - |q - n| + margin, 0) for each negative, ``[b, k]``.

    ``queries`` and ``positives`` are ``[b, d]``, ``negatives`` ``[b, k, d]``. The gradient of a distance of 0 counts
    as 0. The share of terms that are 0 tells how many triplets have nothing left to teach.
    """
    # torch's gradient of a norm at 0 is 0.
    near = torch.linalg.vector_norm(queries - positives, dim=-1)
    far = torch.linalg.vector_norm(queries[:, None] - negatives, dim=-1)
    terms: Tensor = (near[:, None] - far + margin).relu()
    return terms


def triplet_loss(terms: Tensor, mask: Tensor | None = None) -> Tensor:
    """The mean over negatives, then over queries, of :func:`triplet_terms`, a scalar.

    Negatives where ``mask`` ``[b, k]`` is false do not count, nor do queries with none; without any the loss is 0.
    """
    if mask is None:
        mask = torch.ones_like(terms, dtype=torch.bool)
    counts = mask.sum(dim=1)
    of_queries = torch.where(mask, terms, 0).sum(dim=1) / counts.clamp(min=1)
    return of_queries.sum() / (counts > 0).sum().clamp(min=1)
