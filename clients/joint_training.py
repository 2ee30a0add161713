"""Local training of several nodes: at once where their models and phases allow it, otherwise one after another."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from functools import cache
from logging import INFO

from flwr.common.logger import log

from fedapps.base.seeding import TorchState

from .penalties import QuadraticPrior
from .stacked_phase import CannotVectoriseError, Job, Member, StackedPhase
from .training import (
    Phase,
    Trained,
    run_phase,
    trained_parameters,
)


def train_jobs(jobs: Sequence[Job], states: Sequence[TorchState]) -> list[Trained | Exception]:
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
    done, failed = [Trained(0, 0.0) for _ in jobs], dict[int, Exception]()
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


def _kind(job: Job, phase: Phase) -> Hashable:
    """A key that is equal for phases that can be trained together. A phase that cannot gets a unique key."""
    if reason := _obstacle(job, phase):
        _say_once(reason)
        return object()
    try:
        names = tuple(trained_parameters(job.model, phase))
    except ValueError:  # raised again where the node trains alone
        return object()
    parameters = tuple((name, p.shape, p.dtype, p.device) for name, p in job.model.named_parameters())
    chosen = phase.training
    recipe = (chosen.optimizer, chosen.momentum, chosen.weight_decay, chosen.clip_norm)
    return type(job.model), parameters, names, recipe, job.loss_of, job.padded


def _obstacle(job: Job, phase: Phase) -> str:
    if job.alone:
        return job.alone
    if next(job.model.buffers(), None) is not None:
        return "the model has buffers"
    if phase.step is not None:
        return "a local algorithm takes the steps itself"
    if phase.prior is not None and type(phase.prior) is not QuadraticPrior:
        return "the prior is not quadratic"
    return ""


@cache
def _say_once(reason: str) -> None:
    log(INFO, "node-batch: some nodes train one after another, because %s", reason)


def _train_phase(members: Sequence[Member]) -> list[Trained | Exception]:
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


def _alone(job: Job, phase: Phase, state: TorchState) -> Trained | Exception:
    try:
        with state:
            return run_phase(job.model, phase, phase.epoch or job.epoch, job.loss_of)
    except Exception as error:
        return error
