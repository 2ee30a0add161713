"""Gradient matching: search for sentences and labels whose gradient equals the shared one.

DLG: Zhu, Liu, Han, Deep Leakage from Gradients, NeurIPS 2019, Algorithm 1, https://arxiv.org/abs/1906.08935, applied to
embeddings, which are then mapped to the nearest rows of the attacker's table.
TAG: Deng et al., TAG: Gradient Attack on Transformer-based Language Models, Findings of EMNLP 2021,
https://arxiv.org/abs/2103.06819, adds the L1 distance, here with the same weight for all parameters.

The gradient that is compared is that of the *loss* (:func:`gradient_distance`). The code released with FedVocab uses
that of the sum of hidden states, which no node shares.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from .sharing import Observation, cross_entropy
from .tokens import TokenTable


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


Optimizer = Literal["adam", "lbfgs"]
#: Called with the step and the smallest distance of every restart, relative to the squared norm of the gradient.
Progress = Callable[[int, Tensor], None]


@dataclass(frozen=True)
class Inversion:
    """Parameters of an attack; the defaults are DLG.

    Parameters
    ----------
    l1_weight : float
        Weight >= 0 of the L1 distance besides the squared L2 distance. 0 is DLG; TAG uses about 0.1.
    optimizer : Optimizer
        "lbfgs", as in DLG, makes up to 20 evaluations per step and runs the restarts one after another. "adam", as in
        the code released with FedVocab, runs all restarts at once with one evaluation per step. On a wide LSTM it is
        far slower.
    learning_rate : float
        > 0. For L-BFGS, the first step of the line search, 1. For Adam, in units of the attacker's embeddings, well
        below their standard deviation.
    steps : int
        Maximum number of steps per restart, >= 1: tens for L-BFGS, thousands for Adam.
    restarts : int
        Number of random initialisations, >= 1. The one with the smallest distance counts.
    tolerance : float
        Stop at this distance, relative to the squared norm of the shared gradient, >= 0. 0 never stops early.
    decrease : float
        Stop a restart whose distance has fallen by less than this share since the last check, in [0, 1). 0 stops it
        only if the distance has not fallen at all.
    check_every : int
        Steps between checks of ``tolerance`` and ``decrease``, >= 1. Progress is reported at every check.
    seed : int
        Seed of the initialisations.
    vectorised : bool
        Whether to compute the gradients of all restarts by ``vmap``, which the body must support (as
        :class:`~fedapps.tasks.text.privacy.LoopLSTM` does). Otherwise they are computed one after another, as
        required for packed sequences. The values agree up to rounding.

    Raises
    ------
    ValueError
        Parameters are out of range; the message lists all of them.
    """

    l1_weight: float = 0.0
    optimizer: Optimizer = "lbfgs"
    learning_rate: float = 1.0
    steps: int = 50
    restarts: int = 4
    tolerance: float = 1e-6
    decrease: float = 0.01
    check_every: int = 5
    seed: int = 0
    vectorised: bool = True

    def __post_init__(self) -> None:
        least = {"l1_weight": 0, "steps": 1, "restarts": 1, "tolerance": 0, "decrease": 0, "check_every": 1}
        wrong = [
            f"{name} = {getattr(self, name)}: must be at least {bound}"
            for name, bound in least.items()
            if not getattr(self, name) >= bound
        ]
        if self.decrease >= 1:
            wrong.append(f"decrease = {self.decrease}: must be below 1")
        if not self.learning_rate > 0:
            wrong.append(f"learning_rate = {self.learning_rate}: must be above 0")
        if self.optimizer not in get_args(Optimizer):
            allowed = ", ".join(map(repr, get_args(Optimizer)))
            wrong.append(f"optimizer = {self.optimizer!r}: must be one of {allowed}")
        if wrong:
            raise ValueError("; ".join(wrong))


@dataclass(frozen=True, eq=False)
class Inverted:
    """The best of all restarts: embeddings [B, T, d], soft labels [B, C], and their relative distance >= 0.

    The distance is ``inf`` if no guess has a finite one.
    """

    embedded: Tensor
    labels: Tensor
    distance: float

    def read(self, lengths: Tensor, table: TokenTable) -> list[list[str]]:
        """Return the sentences in words of ``table``, for B ``lengths``."""
        return [
            table.nearest(sentence[:length]) for sentence, length in zip(self.embedded, lengths.tolist(), strict=True)
        ]


def invert(
    observation: Observation, body: nn.Module, table: TokenTable, settings: Inversion, progress: Progress | None = None
) -> Inverted:
    """Search for the batch behind an observation.

    Parameters
    ----------
    observation : Observation
        What the victim shares.
    body : Module
        The model, as in :class:`.Victim`, with the shared weights and twice differentiable.
    table : TokenTable
        Sets width and scale of the initial embeddings.
    settings : Inversion
        Parameters of the attack.
    progress : Progress, optional
        Receives the progress.

    Raises
    ------
    ValueError
        The shared gradient is zero.
    """
    search = _Search(observation, body, table, settings)
    lanes = range(settings.restarts)
    for together in [list(lanes)] if settings.optimizer == "adam" else [[lane] for lane in lanes]:
        search.run(together, progress)
    return search.best()


class _Search:
    """The state of all restarts: the best guess of each."""

    def __init__(self, observation: Observation, body: nn.Module, table: TokenTable, settings: Inversion) -> None:
        self.observation, self.body, self.settings = observation, body, settings
        self.scale = sum(float(g.square().sum()) for g in observation.gradients.values())
        if not self.scale:
            raise ValueError("the shared gradient is zero: there is nothing to match")
        size, length = len(observation.lengths), int(observation.lengths.max())
        generator = torch.Generator().manual_seed(settings.seed)
        self.embedded = table.draw((settings.restarts, size, length), generator)
        with torch.no_grad():
            classes = body(self.embedded[0], observation.lengths).shape[1]
        drawn = torch.randn(settings.restarts, size, classes, generator=generator, dtype=self.embedded.dtype)
        self.logits = drawn.to(self.embedded.device)
        self.distance = self.embedded.new_full((settings.restarts,), torch.inf)

    def run(self, lanes: list[int], progress: Progress | None) -> None:
        """Optimise some restarts until one reaches the tolerance, unless an earlier one has, or none gets closer."""
        if self._done():
            return
        embedded = self.embedded[lanes].requires_grad_()
        logits = self.logits[lanes].requires_grad_()
        variables = [embedded, logits]
        rate = self.settings.learning_rate
        optimizer: torch.optim.Optimizer = (
            torch.optim.Adam(variables, lr=rate)
            if self.settings.optimizer == "adam"
            else torch.optim.LBFGS(variables, lr=rate, line_search_fn="strong_wolfe")
        )

        def closure() -> float:
            optimizer.zero_grad()
            distance = self._relative(embedded, logits)
            self._keep(lanes, distance.detach(), embedded.detach(), logits.detach())
            # Restarts are independent, so the gradient of the sum contains that of each.
            total = distance.sum()
            embedded.grad, logits.grad = torch.autograd.grad(total, variables)
            return total.item()

        last = self.distance[lanes]
        for step in range(1, self.settings.steps + 1):
            optimizer.step(closure)
            if step % self.settings.check_every == 0 or step == self.settings.steps:
                if progress is not None:
                    progress(step, self.distance[lanes])
                now = self.distance[lanes]
                if self._done() or bool((now >= (1 - self.settings.decrease) * last).all()):
                    return
                last = now

    def _relative(self, embedded: Tensor, logits: Tensor) -> Tensor:
        distance = gradient_distance(
            self.observation,
            self.body,
            embedded,
            logits.softmax(-1),
            l1_weight=self.settings.l1_weight,
            vectorised=self.settings.vectorised,
        )
        return distance / self.scale

    def _done(self) -> bool:
        return bool(self.distance.min() <= self.settings.tolerance)

    def _keep(self, lanes: list[int], distance: Tensor, embedded: Tensor, logits: Tensor) -> None:
        better = distance < self.distance[lanes]  # False for NaN
        improved = torch.tensor(lanes, device=better.device)[better]
        self.distance[improved] = distance[better]
        self.embedded[improved] = embedded[better]
        self.logits[improved] = logits[better]

    def best(self) -> Inverted:
        lane = int(self.distance.argmin())
        return Inverted(self.embedded[lane], self.logits[lane].softmax(-1), float(self.distance[lane]))
