"""What the keys ``dp*`` of the run config mean: on the nodes, on the server, and as a guarantee.

Who adds noise decides whom it protects from: under ``local`` a node clips and adds noise before anything leaves it, and
nobody need be trusted; under ``central-*`` the server adds noise once, to the mean, so there is far less of it.
docs/privacy.md says which methods can be combined with what.
"""

from collections.abc import Iterable, Mapping
from logging import WARNING
from math import inf, sqrt
from math import log as ln

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.common.logger import log
from torch import nn

from fedapps.base.errors import DivergedError
from fedapps.base.seeding import derive_seed
from fedapps.clients.dp_mods import Mod, on_floats, unreleasable
from fedapps.clients.messages import with_config
from fedapps.clients.settings import RoundSettings
from fedapps.config.parsing import Config
from fedapps.config.run_config import RunConfig
from fedapps.methods.fedvc import FedVcPart
from fedapps.strategies import CentralPrivacy, epsilon
from fedapps.strategies.arrays import shared_record, views
from fedapps.strategies.privacy import statistics_refusal
from fedapps.strategies.wire import (
    ARRAYS,
    CLIPPING_NORM,
    CONFIG,
    METRICS,
    NUM_EXAMPLES,
    UNTRAINED,
    names_in,
)

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


def node_mod(run: RunConfig, message: Message, context: Context) -> Mod | None:
    """What guards the reply to a TRAIN message, ``None`` where nothing does.

    Under ``local`` it is Flower's ``LocalDpMod``; elsewhere its ``fixedclipping_mod`` where the message asks for it, as
    our server does under ``central-client``, and Flower's ``DifferentialPrivacyClientSideFixedClipping`` always.
    """
    config = message.content.config_records.get(CONFIG, ConfigRecord())
    if run.dp == "local":
        labels = with_config(RoundSettings(), config).server_round, with_config(FedVcPart(), config).virtual_draw
        node = str(context.node_config.get("partition-id", context.node_id))
        return on_floats(_local(run), derive_seed(run.seed, "privacy", node, *labels) if run.dp_seeded else None)
    return on_floats(fixedclipping_mod) if CLIPPING_NORM in config else None


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
        left_out = names_in(message.content.get(CONFIG), UNTRAINED)
        unchanged = ArrayRecord({name: array for name, array in received.items() if name not in left_out})
        return Message(RecordDict({ARRAYS: unchanged, METRICS: MetricRecord({NUM_EXAMPLES: 1})}), reply_to=message)

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
        By round, how often its messages left the server (:class:`fedapps.runs.releases.ReleaseLedger`).

    Returns
    -------
    dict
        Empty without a guarantee, or where nothing is shared.
    """
    run = config.run
    if run.dp == "none" or not run.dp_noise or config.methods[label].private(config.task).everything:
        return {}
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
    ((name, value),) = budget.items()
    neighbours = NEIGHBOURS[name.removeprefix("epsilon_")]
    rounds, total = len(releases), sum(releases.values())
    repeated = f", some of them repeated: {total} releases" if total > rounds else ""
    seeded = "; of the same run with secret draws, because dp-seeded = true protects nothing" if run.dp_seeded else ""
    return (
        f"dp = {run.dp}: epsilon = {value:.3g} at delta = {run.dp_delta:g} after {rounds} rounds{repeated}; "
        f"{neighbours}{seeded}"
    )
