"""Local training of several nodes: at once where their models and phases allow it, otherwise one after another."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import cache
from logging import INFO

import torch
from fedapps.tasks.base import Batch, Task
from flwr.common import log
from torch import Tensor, nn
from torch.func import vmap

from fedapps.base.seeding import TorchState

from . import training
from .local_part import ComposedParts, NodeRound
from .penalties import QuadraticPrior
from .stacked_layers import StackedLayers

#: ``epoch(batch_size)`` yields the batches of one epoch.
Epoch = Callable[[int], Iterator[Batch]]
#: Elements of a stacked parameter from which on :class:`StackedLayers` saves more time than its calls take.
_LARGE = 1 << 19


@dataclass(frozen=True)
class Job:
    """The local training of one node.

    Parameters
    ----------
    model, plan, epoch, loss_of
        As for :func:`~fedapps.clients.training.run_plan`.
    alone : str
        Why the node cannot train together with others; empty if it can.
    context : Context
        That of the node's message, whose limits count the node's steps (:mod:`fedapps.clients.rules`).
    """

    model: nn.Module
    plan: Sequence[training.Phase]
    epoch: Epoch
    loss_of: training.Loss
    alone: str = ""
    context: Context = field(default_factory=copy_context)

    @classmethod
    def of(
        cls, node_round: NodeRound, parts: ComposedParts, model: nn.Module, plan: Sequence[training.Phase], epoch: Epoch
    ) -> "Job":
        """The job of a node with these local parts in a round."""
        task = node_round.task
        alone = ""
        if not task.vectorises:
            alone = f"the task {task.name!r} cannot be vectorised over nodes"
        elif task.ragged:
            alone = f"the examples of the task {task.name!r} differ in shape"
        elif type(task).training_batches is not Task.training_batches:
            alone = f"the batches of the task {task.name!r} can depend on the model"
        elif part := parts.with_own_objective():
            alone = f"{part} changes the model or its loss"
        return cls(model, plan, epoch, parts.loss(task.loss, model, node_round), alone)


#: A node: its job, the phase to train, and the state of its generators.
Member = tuple[Job, training.Phase, TorchState]


class CannotVectoriseError(Exception):
    """The loss cannot be vectorised over nodes. Nothing has been trained yet."""


@dataclass
class _Row:
    """A node that trains together with others: its place in the stack changes when others have finished."""

    index: int
    job: Job
    phase: training.Phase
    state: TorchState
    length: int = 0  # steps of the phase, if the learning rate decays
    count: int = 0  # steps of the current epoch
    steps: int = 0
    batches: Iterator[tuple[bool, Batch]] | None = None

    def next_batch(self) -> tuple[bool, Batch] | None:
        """The next batch, with whether it is the first of its epoch; ``None`` after the last one."""
        if self.batches is None:
            epoch = self.phase.epoch or self.job.epoch
            if self.phase.training.linear_decay:
                epoch, self.length = training.counted(self.phase, epoch)
            self.batches = training.stream(self.phase, epoch)
        return next(self.batches, None)

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        if self.phase.training.linear_decay:  # never with a plateau
            return self.phase.training.learning_rate * (self.length - self.steps) / self.length
        return self.phase.rate


class StackedPhase:
    """A phase of several nodes, each a row of the stacked parameters.

    Parameters
    ----------
    members : sequence of Member
        With the same architecture, names of parameters to train, loss, optimizer, momentum, weight decay and clipping.
        Learning rates, lengths, priors, rates and plateaus can differ.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        first, phase, _ = members[0]
        self.rows = [_Row(index, *member) for index, member in enumerate(members)]
        self.results: list[training.Trained | Exception] = [training.Trained(0, 0.0) for _ in members]
        stacked = _stacked([dict(_named_tensors(job.model)) for job, _, _ in members])
        names = _trained(first.model, phase)
        self.trained = {name: stacked[name].requires_grad_() for name in names}
        self.fixed = {name: tensor for name, tensor in stacked.items() if name not in names}
        self.prior = _stacked_prior([of.prior for _, of, _ in members], self.trained)
        self.rates = _filled([of.rates or {} for _, of, _ in members], self.trained, 1.0)
        self.device = next(iter(stacked.values())).device
        self.total = torch.zeros(len(members), device=self.device)
        self.phase = phase
        self.optimizer = training.new_optimizer(phase, self.trained)
        self.losses = vmap(training.ModelWithLoss(first.model, first.loss_of).with_parameters, randomness="error")

    def train(self) -> list[training.Trained | Exception]:
        """Train all nodes to the end of the phase. Raises ``CannotVectoriseError`` at the first step, or never."""
        while self.rows:
            batches = self._next_batches()
            if not batches:
                continue
            self.optimizer.zero_grad(set_to_none=True)
            for places, batch in _alike(batches):
                self._backward(places, batch)
            if self.prior is not None:
                self.prior.add_gradient(self.trained)  # type: ignore[arg-type]
            if self.phase.training.clip_norm:
                self._clip()
            self._step()
        return self.results

    def _next_batches(self) -> list[Batch]:
        """The next batch of every row, after the rows without one have been dropped. Empty if all have been."""
        batches: list[Batch] = []
        kept: list[int] = []
        for place, row in enumerate(self.rows):
            try:
                with row.state:
                    following = row.job.context.run(row.next_batch)
                    if row.steps and (following is None or following[0]):
                        self._end_epoch(place, row, last=following is None)
                if following is None:
                    mean = float(self.total[place]) / max(row.count, 1)
                    self.results[row.index] = training.Trained.of(row.phase, row.steps, mean)
                    continue
            except Exception as error:
                self.results[row.index] = error
                continue
            if following[0]:
                self.total[place], row.count = 0.0, 0
            batches.append(following[1])
            kept.append(place)
        if len(kept) < len(self.rows):
            self._keep(kept)
        return batches

    def _end_epoch(self, place: int, row: _Row, *, last: bool) -> None:
        if last or row.phase.plateau is not None:
            self._write_back(place, row)
        training.end_epoch(row.phase)

    def _write_back(self, place: int, row: _Row) -> None:
        with torch.no_grad():
            for name, parameter in row.job.model.named_parameters():
                if name in self.trained:
                    parameter.copy_(self.trained[name][place])

    def _keep(self, places: list[int]) -> None:
        """Keep some rows of the stack, in their order."""
        index = torch.tensor(places, dtype=torch.long, device=self.device)
        states = [self.optimizer.state[tensor] for tensor in self.trained.values()]
        self.rows = [self.rows[place] for place in places]
        self.trained = {name: tensor.detach()[index].requires_grad_() for name, tensor in self.trained.items()}
        self.fixed = {name: tensor[index] for name, tensor in self.fixed.items()}
        self.rates = {name: tensor[index] for name, tensor in self.rates.items()}
        if self.prior is not None:
            self.prior = QuadraticPrior(
                {name: tensor[index] for name, tensor in self.prior.precision.items()},
                {name: tensor[index] for name, tensor in self.prior.linear.items()},
            )
        self.total = self.total[index]
        self.optimizer = training.new_optimizer(self.phase, self.trained)
        for tensor, state in zip(self.trained.values(), states, strict=True):
            self.optimizer.state[tensor] = {
                name: value[index] if torch.is_tensor(value) and value.dim() else value for name, value in state.items()
            }

    def _backward(self, places: list[int], batch: Batch) -> None:
        """Compute the gradients of some rows, and add their losses to the totals."""
        named, index = self.trained | self.fixed, torch.tensor(places, device=self.device)
        some = len(places) < len(self.rows)
        if some:
            named = {name: tensor.detach()[index] for name, tensor in named.items()}
            for name in self.trained:
                named[name].requires_grad_()
        try:
            with StackedLayers() if max(tensor.numel() for tensor in named.values()) >= _LARGE else nullcontext():
                losses = self.losses(named, {name: tensor.to(self.device) for name, tensor in batch.items()})
        except RuntimeError as error:
            if any(row.steps for row in self.rows):
                raise
            raise CannotVectoriseError(str(error).partition("\n")[0]) from error
        losses.sum().backward()
        self.total.index_add_(0, index, losses.detach().to(self.total))
        for name, tensor in self.trained.items() if some else ():
            if (gradient := named[name].grad) is not None:
                tensor.grad = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
                tensor.grad.index_copy_(0, index, gradient)

    def _clip(self) -> None:
        """Scale the gradient of each row down to ``clip_norm``, as ``torch.nn.utils.clip_grad_norm_`` does."""
        gradients = [tensor.grad for tensor in self.trained.values() if tensor.grad is not None]
        norms = torch.stack([gradient.reshape(len(gradient), -1).norm(dim=1) for gradient in gradients]).norm(dim=0)
        scale = (self.phase.training.clip_norm / (norms + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(_by_row(scale, gradient))

    @torch.no_grad()
    def _step(self) -> None:
        """Take the optimizer's step; where rates differ, take it at rate 1 and scale each row's change by its rates."""
        learning_rates = [row.rate for row in self.rows]
        if not self.rates and len(set(learning_rates)) == 1:
            training.set_rate(self.optimizer, learning_rates[0])
            self.optimizer.step()
        else:
            training.set_rate(self.optimizer, 1.0)
            before = {name: tensor.clone() for name, tensor in self.trained.items()}
            self.optimizer.step()
            for name, tensor in self.trained.items():
                rate = _by_row(torch.tensor(learning_rates, dtype=tensor.dtype, device=self.device), tensor)
                if name in self.rates:
                    rate = rate * self.rates[name]
                torch.lerp(before[name], tensor, rate.expand_as(tensor), out=tensor)
        for row in self.rows:
            row.steps, row.count = row.steps + 1, row.count + 1


def _named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters of a model and its buffers, which are constants (:func:`_obstacle`)."""
    yield from model.named_parameters()
    yield from model.named_buffers()


def _alike(batches: Sequence[Batch]) -> Iterator[tuple[list[int], Batch]]:
    """The batches of equal shapes, stacked, with their positions in ``batches``."""
    by_shape: dict[Hashable, list[int]] = defaultdict(list)
    for place, batch in enumerate(batches):
        by_shape[tuple((name, tensor.shape) for name, tensor in batch.items())].append(place)
    for places in by_shape.values():
        yield places, _stacked([batches[place] for place in places])


@torch.no_grad()
def _stacked(rows: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def _stacked_prior(priors: Sequence[QuadraticPrior | None], named: Mapping[str, Tensor]) -> QuadraticPrior | None:
    """The priors as one on stacked parameters; 0 where a node has none."""
    if all(prior is None for prior in priors):
        return None
    precision = [prior.precision if prior is not None else {} for prior in priors]
    linear = [prior.linear if prior is not None else {} for prior in priors]
    return QuadraticPrior(_filled(precision, named, 0.0), _filled(linear, named, 0.0))


def _filled(rows: Sequence[Mapping[str, Tensor]], named: Mapping[str, Tensor], otherwise: float) -> dict[str, Tensor]:
    """Entries of rows, broadcast to the parameters' shapes and stacked; ``otherwise`` for rows without the entry."""

    def entry(row: Mapping[str, Tensor], name: str, like: Tensor) -> Tensor:
        return row[name].to(like).expand_as(like) if name in row else torch.full_like(like, otherwise)

    return {
        name: torch.stack([entry(row, name, tensor[0]) for row in rows]).detach()
        for name, tensor in named.items()
        if any(name in row for row in rows)
    }


def _by_row(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *[1] * (like.dim() - 1))


def train_jobs(jobs: Sequence[Job], states: Sequence[TorchState]) -> list[training.Trained | Exception]:
    """Train the models of several nodes in place, phase by phase. Nodes train together where they can.

    A single job, and every job that cannot train together with another one, trains exactly as with
    :func:`~fedapps.clients.training.run_plan`. The first time, a line in the log says why.

    Parameters
    ----------
    jobs : sequence of Job
    states : sequence of TorchState
        The generators of each job. All its draws come from them.

    Returns
    -------
    list of Trained or Exception
        The result of each job, or what :func:`~fedapps.clients.training.run_plan` would have raised for it.
    """
    done, failed = [training.Trained(0, 0.0) for _ in jobs], dict[int, Exception]()
    for job in jobs:
        job.model.train()
    for number in range(max(len(job.plan) for job in jobs)):
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for index, job in enumerate(jobs):
            if number < len(job.plan) and index not in failed:
                groups[_kind(job, job.plan[number]) if len(jobs) > 1 else 0].append(index)
        for group in groups.values():
            members = [(jobs[index], jobs[index].plan[number], states[index]) for index in group]
            for index, trained in zip(group, _train_phase(members), strict=True):
                if isinstance(trained, Exception):
                    failed[index] = trained
                else:
                    done[index] = done[index].then(trained)
    return [failed.get(index, trained) for index, trained in enumerate(done)]


def _kind(job: Job, phase: training.Phase) -> Hashable:
    """A key that is equal for phases that can be trained together. A phase that cannot gets a unique key."""
    if reason := _obstacle(job, phase):
        _say_once(reason)
        return object()
    try:
        names = tuple(_trained(job.model, phase))
    except ValueError:  # raised again where the node trains alone
        return object()
    if not names:
        return object()
    tensors = tuple((name, tensor.shape, tensor.dtype, tensor.device) for name, tensor in _named_tensors(job.model))
    chosen = phase.training
    recipe = (chosen.optimizer, chosen.momentum, chosen.weight_decay, chosen.clip_norm)
    return type(job.model), tensors, names, recipe, job.loss_of


def _trained(model: nn.Module, phase: training.Phase) -> list[str]:
    """The names of the parameters that a phase trains, without those that are frozen throughout."""
    return [name for name, parameter in training.trained_parameters(model, phase).items() if parameter.requires_grad]


def _obstacle(job: Job, phase: training.Phase) -> str:
    if job.alone:
        return job.alone
    if any(module._buffers.keys() - module._non_persistent_buffers_set for module in job.model.modules()):
        return "the model has buffers that training can change"
    if phase.step is not None:
        return "a local algorithm takes the steps itself"
    if phase.prior is not None and type(phase.prior) is not QuadraticPrior:
        return "the prior is not quadratic"
    return ""


@cache
def _say_once(reason: str) -> None:
    log(INFO, "node-batch: some nodes train one after another, because %s", reason)


def _train_phase(members: Sequence[Member]) -> list[training.Trained | Exception]:
    if len(members) > 1:
        states = [state.copy() for _, _, state in members]
        try:
            together = StackedPhase([(job, phase, own) for (job, phase, _), own in zip(members, states, strict=True)])
            trained = together.train()
        except CannotVectoriseError as error:
            _say_once(f"torch cannot vectorise the loss: {error}")
        else:
            for (_, _, state), own in zip(members, states, strict=True):
                state.follow(own)
            return trained
    return [_alone(*member) for member in members]


def _alone(job: Job, phase: training.Phase, state: TorchState) -> training.Trained | Exception:
    try:
        with state:
            return job.context.run(training.run_phase, job.model, phase, phase.epoch or job.epoch, job.loss_of)
    except Exception as error:
        return error
