"""What a node sends after local training: the change of its weights, in place of one gradient.

Under SGD the change is the sum of the gradients of all steps, times the learning rate, so the row space of the first
layer's change is spanned by the inputs of all steps (:mod:`.subspace`). Adam scales every element separately, and its
steps mix: after several steps, no gradient can be computed from the change. Its first step is
η g / (|g| + ε), from which g follows, with a precision that is limited by the rounding of the weights
(:func:`first_adam_gradient`).

Under local differential privacy the node clips the change and adds noise (:class:`ClippedNoise`). Clipping alone
multiplies all numbers by one factor, which the largest of them tells. A node that compresses its updates does so after
the noise. Rounding hides the gradient behind a first step of Adam, but no row that did not change.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .sharing import Observation, Sharing, Victim

_ADAM_EPSILON = 1e-8  # torch's default
_ROWS = "rows of the embedding table"
#: Gives changes as the server restores them after compression.
Compress = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]


@dataclass(frozen=True, eq=False)
class ClippedNoise:
    """Local differential privacy, as Flower's ``LocalDpMod`` applies it to the shared arrays of a reply.

    Attributes
    ----------
    clip : float
        Largest norm of a change, > 0.
    deviation : float
        Standard deviation of the noise, >= 0.
    generator : Generator
        Draws the noise.
    """

    clip: float
    deviation: float
    generator: torch.Generator

    def __call__(self, changes: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the changes, scaled to a joint norm of at most ``clip``, plus noise."""
        norm = float(torch.stack([change.square().sum() for change in changes.values()]).sum().sqrt())
        scale = min(1.0, self.clip / norm) if norm else 1.0
        return {
            name: change * scale
            + self.deviation * torch.randn(change.shape, generator=self.generator).to(change.device)
            for name, change in changes.items()
        }


@dataclass(frozen=True, eq=False)
class UpdatedVictim(Victim):
    """A victim that trains on a batch and shares the change of its weights.

    Attributes
    ----------
    train : callable
        ``train(rows [B, T], lengths [B], labels [B])`` returns the victim after local training on these sentences, and
        the number of optimizer steps.
    adam_rate : float
        The learning rate if the optimizer is Adam without weight decay, which the attacker knows; otherwise 0.
    privacy : ClippedNoise, optional
        What the node does to the change before it sends it.
    compress : callable, optional
        What is left of the changes, noise included, after they were compressed and restored.
    """

    train: Callable[[Tensor, Tensor, Tensor], tuple[Victim, int]]
    adam_rate: float
    privacy: ClippedNoise | None = None
    compress: Compress | None = None

    @property
    def rows_affect_body(self) -> bool:
        """The joint norm, by which a change is clipped, includes the shared rows."""
        return self.privacy is not None

    def share(self, sentences: Sequence[Sequence[str]], labels: Sequence[int], sharing: Sharing) -> Observation:
        """Return the weights before minus those after local training, as they are sent, in place of gradients.

        After a single step of Adam, the matrices among them are gradients, up to factors for their rows.

        Raises
        ------
        ValueError
            As :meth:`.Victim.share`.
        """
        rows, lengths = self.table.encode(sentences)
        after, steps = self.train(rows, lengths, torch.tensor(list(labels), device=rows.device))
        names = sharing.names(self.body)
        changes = {
            name: self.body.get_parameter(name).detach() - after.body.get_parameter(name).detach() for name in names
        }
        words = tuple(word for word in self.table.words if sharing.row(word))
        shared = [self.table.index[word] for word in words]
        changes[_ROWS] = (self.table.vectors - after.table.vectors)[shared]
        noise, rate = 0.0, self.adam_rate
        if self.privacy:
            changes = self.privacy(changes)
            noise = self.privacy.deviation
            rate = max(float(changes[name].abs().max()) for name in names) if rate else rate
        rounding: dict[str, float] = {}
        if self.compress:
            restored = dict(self.compress(changes))
            rounding = {name: float((restored[name] - changes[name]).square().mean().sqrt()) for name in names}
            changes = restored
        if steps == 1 and rate and not noise and not self.compress:
            for name in names:
                weights = self.body.get_parameter(name).detach()
                if weights.ndim == 2:
                    changes[name] = first_adam_gradient(changes[name], weights, rate)
        rows = changes.pop(_ROWS)
        return Observation(changes, words, rows, lengths, noise, rounding)


def first_adam_gradient(change: Tensor, weights: Tensor, learning_rate: float) -> Tensor:
    """Compute the gradient from the change of ``weights`` [m, n] in Adam's first step, each row divided by its error.

    The change is η g / (|g| + ε), which hardly depends on |g| ≫ ε. The rounding of the weights therefore limits the
    precision, and rows with small gradients are the most precise. Division by the errors keeps the row space and
    prevents imprecise rows from dominating it.
    """
    precision = torch.finfo(change.dtype).eps
    ratio = change.double() / learning_rate
    room = (1 - ratio.abs()).clamp(min=precision)
    gradient = _ADAM_EPSILON * ratio / room
    rounding = precision * (weights.double().abs() / learning_rate + 1)
    error = _ADAM_EPSILON * rounding / room.square()
    return (gradient / error.square().mean(1, keepdim=True).sqrt()).to(change)
