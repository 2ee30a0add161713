"""What the keys ``dp*`` of the run config mean: on the nodes, on the server, and as a guarantee.

Who adds noise decides whom it protects from: under ``local`` a node clips and adds noise before anything leaves it, and
nobody need be trusted; under ``central-*`` the server adds noise once, to the mean, so there is far less of it; under
``distributed`` nodes add the noise; the server gets only their sum, which has as much noise as under ``central-*``.
docs/privacy.md says which methods can be combined with what.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from logging import WARNING
from math import inf, sqrt
from math import log as ln

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.common import log
from torch import nn

from fedapps.base.errors import DivergedError
from fedapps.base.seeding import derive_seed
from fedapps.clients.arrays import Arrays
from fedapps.clients.settings import RoundSettings, clipping_norm, received_arrays, with_config
from fedapps.config.parsing import Config
from fedapps.config.run_config import RunConfig
from fedapps.methods.fedvc import FedVcPart
from fedapps.strategies import CentralPrivacy, epsilon, wire
from fedapps.strategies.arrays import shared_record, views, without
from fedapps.strategies.privacy import statistics_refusal

from .disclosure import Handler

Mod = Callable[[Message, Context, Handler], Message]
CENTRAL = ("central-server", "central-client")
#: A further number in every update, so that no update is 0. It is too small to change a norm.
_GUARD, _LEAST = "dp-guard", 1e-150
#: The neighbouring relation of epsilon, as part of its name and as a sentence.
NEIGHBOURS = {
    "zero_out": "neighbouring runs differ in whether one node contributes its updates",
    "replace": "neighbouring runs differ in the updates that one node sends",
}


def central_privacy(run: RunConfig) -> CentralPrivacy | None:
    """The strategy's part in it, ``None`` where it has none."""
    if run.dp not in CENTRAL:
        return None
    return CentralPrivacy(
        run.dp_clip,
        run.dp_noise,
        run.expected_replies,
        seed=derive_seed(run.seed, "privacy") if run.dp_seeded else None,
        clipping="nodes" if run.dp == "central-client" else "server",
        statistics="keep",  # check_statistics has refused those that change
    )


def check_statistics(run: RunConfig, label: str, model: nn.Module, shared: Iterable[str]) -> None:
    """Check that the shared arrays of a method have no statistics of a normalisation that training changes.

    Raises
    ------
    ValueError
        They have, and the run has differential privacy.
    """
    if run.dp == "none":
        return
    modes = {id(module): module.training for module in model.modules()}
    model.train()
    changing = {
        f"{path}.{name}".lstrip(".")
        for path, module in model.named_modules()
        if module.training
        for name, _ in module.named_buffers(recurse=False)
    }
    for module in model.modules():
        module.training = modes[id(module)]
    if reason := statistics_refusal(name for name in shared if name in changing):
        raise ValueError(f"dp = {run.dp!r}: method {label}: {reason}")


def sampling_seed(run: RunConfig) -> int | None:
    """The seed of Poisson sampling: ``None`` where the guarantee needs secret draws, because every node knows seed."""
    return None if run.dp in CENTRAL and not run.dp_seeded else run.seed


def node_mod(run: RunConfig, message: Message, context: Context) -> Mod:
    """What guards the reply to a TRAIN message.

    Under ``local`` it is Flower's ``LocalDpMod``; elsewhere its ``fixedclipping_mod``, for a message that asks for it:
    our server does under ``central-client``, and Flower's ``DifferentialPrivacyClientSideFixedClipping`` always.
    """
    if run.dp != "local":
        return on_floats(fixedclipping_mod)
    config = message.content.config_records.get(wire.CONFIG, ConfigRecord())
    labels = with_config(RoundSettings(), config).server_round, with_config(FedVcPart(), config).virtual_draw
    node = str(context.node_config.get("partition-id", context.node_id))
    return on_floats(_local(run), derive_seed(run.seed, "privacy", node, *labels) if run.dp_seeded else None)


def hiding_outcome(call_next: Handler) -> Handler:
    """Answer a TRAIN message with what was received where training gives no update that can be released.

    Training can end in values that are not finite, or change statistics that have no noise. The noise of local privacy
    is then all that the server gets. An error in its place would tell how weights that the server chose act on the
    node's data, such as whether the loss overflows.
    """

    def hidden(message: Message, context: Context) -> Message:
        received = shared_record(message.content)
        try:
            reply = call_next(message, context)
        except DivergedError as error:
            why = str(error)
        else:
            if reply.has_error():
                return reply
            why = unreleasable(views(shared_record(reply.content)), views(received))
            if not why:
                return reply
        log(WARNING, "%s: only noise leaves this node", why)
        left_out = wire.names_in(message.content.get(wire.CONFIG), wire.UNTRAINED)
        unchanged = ArrayRecord({name: array for name, array in received.items() if name not in left_out})
        return Message(
            RecordDict({wire.ARRAYS: unchanged, wire.METRICS: MetricRecord({wire.NUM_EXAMPLES: 1})}), reply_to=message
        )

    return hidden


def _local(run: RunConfig) -> LocalDpMod:
    """Noise of dp-noise clipping norms, said in the terms of the mod: deviation = s √(2 ln(1.25/δ))/ε."""
    strength = sqrt(2 * ln(1.25 / run.dp_delta)) / run.dp_noise if run.dp_noise else inf
    return LocalDpMod(run.dp_clip, sensitivity=run.dp_clip, epsilon=strength, delta=run.dp_delta)


def spent(config: Config, label: str, releases: Mapping[int, int]) -> dict[str, float]:
    """ε for a node that can have trained in all releases, named after the neighbouring relation.

    Under local privacy it is ``epsilon_replace``: two updates of a node are at most two clipping norms apart. Under
    central privacy it is ``epsilon_zero_out``: a node contributes an update of at most one clipping norm, or nothing.
    Poisson sampling strengthens only central privacy, because the server knows who was drawn. A round that is repeated
    draws its nodes afresh, unless ``dp-seeded`` repeats the draw.

    Parameters
    ----------
    config : Config
    label : str
        The method.
    releases : mapping of int to int
        By round, how often its messages left the server (:class:`fedapps.runs.lines.ReleaseLedger`).

    Returns
    -------
    dict
        Empty without a guarantee, or where nothing is shared.
    """
    run = config.run
    if run.dp == "none" or not run.dp_noise or config.methods[label].private(config.task).everything:
        return {}
    if run.dp == "distributed":  # the server, from whom it protects, knows who was drawn
        return {"epsilon_zero_out": epsilon(run.dp_noise, sum(releases.values()), run.dp_delta)}
    if run.dp == "local":
        return {"epsilon_replace": epsilon(run.dp_noise, sum(releases.values()), run.dp_delta, sensitivity=2.0)}
    probability = run.fraction_train if run.sampling == "poisson" else 1.0
    draws = sum(releases.values()) if sampling_seed(run) is None else list(releases.values())
    return {"epsilon_zero_out": epsilon(run.dp_noise, draws, run.dp_delta, sampling_probability=probability)}


def guarantee(config: Config, label: str, releases: Mapping[int, int]) -> str:
    """:func:`spent` as a sentence that says for which neighbouring runs it holds; empty without a guarantee."""
    run, budget = config.run, spent(config, label, releases)
    if not budget:
        return ""
    rounds, total = len(releases), sum(releases.values())
    repeated = f", some of them repeated: {total} releases" if total > rounds else ""
    return f"dp = {run.dp}: {sentence(run, budget, f'{rounds} rounds{repeated}')}"


def sentence(run: RunConfig, budget: Mapping[str, float], after: str) -> str:
    """The ε of :func:`spent`, and for which neighbouring runs it holds."""
    ((name, value),) = budget.items()
    seeded = "; of the same run with secret draws, because dp-seeded = true protects nothing" if run.dp_seeded else ""
    neighbours = NEIGHBOURS[name.removeprefix("epsilon_")]
    return f"epsilon = {value:.3g} at delta = {run.dp_delta:g} after {after}; {neighbours}{seeded}"


def on_floats(mod: Mod, seed: int | None = None) -> Mod:
    """Return a mod that applies ``mod`` to the parameters of a reply alone.

    ``mod`` sees the records ``arrays`` and ``config`` of the message and the record ``arrays`` of the reply, with every
    array as one of at least one dimension. Buffers and arrays of other types are returned as they were received, and
    other records of the reply are sent as they are.

    ``LocalDpMod``, ``fixedclipping_mod`` and ``adaptiveclipping_mod`` of Flower 1.42 expect messages with
    floating-point arrays of at least one dimension and no other records. With other messages they fail, partly without
    an error:

    - an array without dimensions is sent without clipping and without noise (``LocalDpMod``);
    - an integer array, such as the counter of a batch normalisation, raises an error, and so do an update of 0 and a
      message without shared parameters;
    - a message with another record beside the arrays is rejected;
    - an error about a reply is addressed to that reply, so the server waits for the node until its timeout;
    - if one value is not finite, no value of the update is clipped;
    - the statistics of a batch normalisation count in the norm and get noise, which can make a variance negative.

    Parameters
    ----------
    mod : Mod
    seed : int, optional
        Makes the noise repeatable, for experiments. With ``None`` the operating system seeds it for every message,
        also in forked processes. NumPy's global random state is restored afterwards.

    Returns
    -------
    Mod
        On the node it raises ``ValueError`` if the message has a clipping norm that is no number above 0, if the reply
        has further ArrayRecords, which ``mod`` would not protect, if names or shapes differ from those received, if a
        value is not finite, or if the statistics of a normalisation have changed.
    """

    def guarded(message: Message, context: Context, call_next: Handler) -> Message:
        received = received_arrays(message)
        config = message.content.config_records.get(wire.CONFIG, ConfigRecord())
        clipping_norm(config)  # Flower's mods do not check it
        sent = without(received, wire.names_in(config, wire.UNTRAINED))
        parameters = _parameters(sent, config)
        shown = Message(RecordDict({wire.ARRAYS: _shown(parameters, 0.0)}), message.metadata.dst_node_id, "train")
        if wire.CONFIG in message.content:
            shown.content[wire.CONFIG] = message.content[wire.CONFIG]
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        returned = _returned(reply, sent)
        if not parameters:
            reply.content[wire.ARRAYS] = ArrayRecord({name: Array(array) for name, array in sent.items()})
            return reply
        content = RecordDict({**reply.content, wire.ARRAYS: _shown({n: returned[n] for n in parameters}, _LEAST)})
        answer = Message(content, reply_to=shown)
        with _drawing(seed):  # training has its own generators
            outcome = mod(shown, context, lambda *_: answer)
        if outcome.has_error():
            return Message(outcome.error, reply_to=message)
        for name, record in outcome.content.items():
            reply.content[name] = record
        protected = outcome.content.array_records[wire.ARRAYS]
        restored = {n: protected[n].numpy().reshape(of.shape).astype(of.dtype) for n, of in parameters.items()}
        reply.content[wire.ARRAYS] = ArrayRecord({n: Array(np.asarray(a)) for n, a in {**sent, **restored}.items()})
        return reply

    return guarded


def _returned(reply: Message, sent: Arrays) -> Arrays:
    """The reply's arrays in the order of ``sent``."""
    beside = [name for name, record in reply.content.items() if isinstance(record, ArrayRecord) and name != wire.ARRAYS]
    if beside:
        raise ValueError(f"the reply has {', '.join(beside)} beside the arrays, which would be sent without protection")
    arrays = {name: array.numpy() for name, array in shared_record(reply.content).items()}
    if arrays.keys() != sent.keys() or any(arrays[name].shape != array.shape for name, array in sent.items()):
        raise ValueError("the names or shapes of the arrays in the reply differ from those received")
    if reason := unreleasable(arrays, sent):
        raise ValueError(reason)
    return arrays


def unreleasable(trained: Arrays, received: Arrays) -> str:
    """Why trained arrays cannot be released with privacy; empty if they can. It depends on the data of the node."""
    floats = {name: array for name, array in trained.items() if array.dtype.kind == "f"}
    if wild := [name for name, array in floats.items() if not np.isfinite(array).all()]:
        return f"values are not finite: {', '.join(wild)}; they cannot be clipped, so nothing is sent"
    statistics = [name for name in floats if name in received and _is_statistic(name)]
    if changed := [name for name in statistics if not np.array_equal(trained[name], received[name])]:
        return (
            f"nothing is sent, because {', '.join(changed)}, the statistics of a normalisation over batches, have "
            "changed and cannot be released with privacy: use nn.GroupNorm or nn.LayerNorm, or keep them on the nodes"
        )
    return ""


def _shown(parameters: Arrays, guard: float) -> ArrayRecord:
    """With 64 bits: if it were added to large values of 32, rounding could make the clipped update longer."""
    shown = {name: Array(np.atleast_1d(array).astype(np.float64)) for name, array in parameters.items()}
    return ArrayRecord({**shown, _GUARD: Array(np.array([guard]))})


def _parameters(arrays: Arrays, config: ConfigRecord) -> Arrays:
    """The arrays of floating-point numbers that are no buffers, by their names and by the config of the message."""
    declared = wire.names_in(config, wire.BUFFERS)
    floats = {name: array for name, array in arrays.items() if array.dtype.kind == "f"}
    return {name: array for name, array in floats.items() if not _is_statistic(name) and name not in declared}


def _is_statistic(name: str) -> bool:
    return name.rpartition(".")[2] in wire.STATISTICS


@contextmanager
def _drawing(seed: int | None) -> Iterator[None]:
    before = np.random.get_state()  # noqa: NPY002 - Flower's mods draw from the global state
    np.random.seed(None if seed is None else [seed & 0xFFFFFFFF, seed >> 32])  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002
