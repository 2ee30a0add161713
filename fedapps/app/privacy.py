"""What the keys ``dp*`` of the run config mean: on the nodes, on the server, and as a guarantee.

Who adds noise decides whom it protects from: under ``local`` a node clips and adds noise before anything leaves it, and
nobody need be trusted; under ``central-*`` the server adds noise once, to the mean, so there is far less of it; under
``distributed`` nodes add the noise; the server gets only their sum, which has as much noise as under ``central-*``.
docs/privacy.md says which methods can be combined with what.
"""

from collections.abc import Iterable, Mapping
from logging import WARNING
from math import inf

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.common import log
from torch import nn

from fedapps.base.errors import DivergedError
from fedapps.base.options import option_values
from fedapps.base.seeding import derive_seed
from fedapps.clients.arrays import Arrays
from fedapps.clients.settings import RoundSettings, clipping_norm, received_arrays, with_config
from fedapps.config.parsing import Config
from fedapps.config.run_config import RunConfig
from fedapps.methods.fedvc import FedVcPart
from fedapps.strategies import CentralPrivacy, epsilon, wire
from fedapps.strategies.arrays import last_part, shared_record, to_record, views, without
from fedapps.strategies.compression import declared_buffers
from fedapps.strategies.privacy import clip_update, statistics_refusal

from .disclosure import Handler

CENTRAL = ("central-server", "central-client")
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


def protected(run: RunConfig, message: Message, context: Context, call_next: Handler) -> Message:
    """The reply to a TRAIN message with a clipped update; under ``local`` with noise of ``dp-noise * dp-clip``.

    Elsewhere the message names the norm: our server does under ``central-client``, and Flower's
    ``DifferentialPrivacyClientSideFixedClipping`` always. Buffers and arrays of other types are returned as they were
    received, and metrics are sent as they are. The operating system seeds the noise of every message, unless
    ``dp-seeded`` repeats it for experiments.

    Raises
    ------
    ValueError
        On the node: the message has a clipping norm that is no number above 0, the reply has further ArrayRecords,
        which would be sent without protection, names or shapes differ from those received, a value is not finite, or
        the statistics of a normalisation have changed.
    """
    received = received_arrays(message)
    config = message.content.config_records.get(wire.CONFIG, ConfigRecord())
    clip, deviation, seed = clipping_norm(config) or inf, 0.0, None
    if run.dp == "local":
        clip, deviation = run.dp_clip, run.dp_clip * run.dp_noise
        labels = with_config(RoundSettings(), config).server_round, with_config(FedVcPart(), config).virtual_draw
        node = str(context.node_config.get("partition-id", context.node_id))
        seed = derive_seed(run.seed, "privacy", node, *labels) if run.dp_seeded else None
    sent, buffers = without(received, wire.names_in(config, wire.UNTRAINED)), declared_buffers(message)
    reply = call_next(message, context)
    if reply.has_error():
        return reply
    arrays = clip_update(_returned(reply, sent), sent, clip, buffers)
    # With a seed, RandomState has the draws of published results.
    generator = np.random.RandomState(None if seed is None else [seed & 0xFFFFFFFF, seed >> 32])
    for name in buffers.parameters(sent) if deviation else ():
        arrays[name] = arrays[name] + generator.normal(0.0, deviation, arrays[name].shape)
    reply.content[wire.ARRAYS] = to_record({name: array.astype(sent[name].dtype) for name, array in arrays.items()})
    return reply


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


def unused(run: RunConfig) -> list[str]:
    """The keys of differential privacy that have been set although ``dp = "none"``."""
    defaults = option_values(RunConfig())
    given = [key for key, value in option_values(run).items() if key.startswith("dp-") and value != defaults[key]]
    return given if run.dp == "none" else []


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
    statistics = [name for name in floats if name in received and last_part(name) in wire.STATISTICS]
    if changed := [name for name in statistics if not np.array_equal(trained[name], received[name])]:
        return (
            f"nothing is sent, because {', '.join(changed)}, the statistics of a normalisation over batches, have "
            "changed and cannot be released with privacy: use nn.GroupNorm or nn.LayerNorm, or keep them on the nodes"
        )
    return ""
