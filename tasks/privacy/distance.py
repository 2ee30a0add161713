"""The distance between the gradient of a guess and the shared gradient.

The objective of DLG (Zhu, Liu, Han, Deep Leakage from Gradients, NeurIPS 2019, Algorithm 1, line 4) and, with an L1
distance, of TAG (Deng et al., Findings of EMNLP 2021). The gradient is that of the *loss*. The code released with
FedVocab uses that of the sum of hidden states, which no node shares.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from .sharing import Observation, cross_entropy


def gradient_distance(
    observation: Observation,
    body: nn.Module,
    embedded: Tensor,
    labels: Tensor,
    *,
    l1_weight: float = 0.0,
    vectorised: bool = True,
) -> Tensor:
    """Return Σ ‖∇ - ∇_shared‖² + l1_weight Σ ‖∇ - ∇_shared‖₁ over the shared parameters, for each of L guesses: [L].

    ∇ is the gradient of the loss at a guess. The result is differentiable.

    Parameters
    ----------
    observation : Observation
        What the victim shares.
    body : Module
        The model above the word vectors.
    embedded : Tensor [L, B, T, d]
        Guessed embeddings.
    labels : Tensor [L, B, C]
        Guessed soft labels.
    l1_weight : float
        Weight of the L1 distance.
    vectorised : bool
        Whether to compute all guesses at once with ``vmap``.
    """
    named = dict(body.named_parameters())
    shared = {name: named[name].detach() for name in observation.gradients}

    def loss(parameters: Mapping[str, Tensor], embedded: Tensor, labels: Tensor) -> Tensor:
        # The implementation of attention in torch that has a second derivative.
        with sdpa_kernel(SDPBackend.MATH):
            logits = functional_call(body, dict(parameters), (embedded, observation.lengths))
        return cross_entropy(logits, labels)

    if vectorised:
        guessed = vmap(grad(loss), in_dims=(None, 0, 0))(shared, embedded, labels)
    else:
        variables = {name: value.requires_grad_() for name, value in shared.items()}
        inputs = list(variables.values())
        losses = [loss(variables, *guess) for guess in zip(embedded, labels, strict=True)]
        singles = [torch.autograd.grad(one, inputs, create_graph=True, materialize_grads=True) for one in losses]
        guessed = {name: torch.stack(lanes) for name, lanes in zip(shared, zip(*singles, strict=True), strict=True)}
    distance = embedded.new_zeros(len(embedded))
    for name, true in observation.gradients.items():
        difference = (guessed[name] - true).flatten(1)
        distance = distance + difference.square().sum(1)
        if l1_weight:
            distance = distance + l1_weight * difference.abs().sum(1)
    return distance
