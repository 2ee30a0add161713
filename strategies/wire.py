"""Names on the wire: message types, records, keys and metrics that servers and nodes exchange.

This module imports nothing of this project, so that both sides can read it: constants, and how some values of a config
are read. "Shared arrays" are the parameters that the server sends, named as in the model's ``state_dict``. A deployed
run of fedapps packs each ArrayRecord on the way (:mod:`~fedapps.strategies.packing`).

============================ ========================== ================================================================
message                      record                     content
============================ ========================== ================================================================
TRAIN, EVALUATE, their       ``arrays``                 ArrayRecord: the shared arrays; not in replies to EVALUATE
replies
TRAIN, EVALUATE              ``config``                 ConfigRecord: ``server-round``, ``repeat``, ``durable-round``,
                                                        ``attempts``, ``best-round``, keys of the strategy and the run
compressed replies to TRAIN  ``compressed.<record>``    ArrayRecords in place of the shared parameters
replies                      ``metrics``                MetricRecord: ``num-examples`` and further metrics
replies, if asked for        ``timings``                ConfigRecord: seconds of each of :data:`NODE_PHASES`
TRAIN, EVALUATE, replies     ``<strategy>.<record>``    ArrayRecords of one strategy; their names contain a dot
``query.profile``            -                          no record
its reply                    ``profile``                ConfigRecord: ``key``, ``num-examples``, ``group.<kind>``,
                                                        ``no-data``, ``own-data``, ``unreported``, ``ineligible``
``query.secagg``             ``config``, ``secagg``     ConfigRecords: the round, and an exchange of secure aggregation
its reply                    ``secagg``                 ConfigRecord: public keys, sealed shares or shares
TRAIN                        ``secagg``                 ConfigRecord: shares, and how an update is encoded
its reply, only record       ``secagg.masked``          ArrayRecord: the masked update
``query.adaptive``           ``config``                 ConfigRecord, as of the stage that ended
its reply                    ``fedweit.adaptive``       ArrayRecord: adaptive parameters of that stage
``query.champion``, reply    ``config``, ``champion``   ConfigRecord: ``use``, the generation of the model in use
============================ ========================== ================================================================
"""

from collections.abc import Mapping
from typing import Literal

# -- every strategy --------------------------------------------------------------------------------------------

#: Flower's numbers of the errors in place of a reply, which it publishes nowhere: the node's app raised an exception;
#: the message or its reply is lost; the node is not connected.
APP_RAISED, MESSAGE_UNAVAILABLE, REPLY_UNAVAILABLE, NODE_UNAVAILABLE = 2, 3, 4, 5

#: Record of the shared arrays.
ARRAYS = "arrays"
#: Record of the settings of a round.
CONFIG = "config"
#: Record of the metrics of a reply.
METRICS = "metrics"

#: Config key: number of the round, an integer from 1 to :data:`LAST_ROUND`.
SERVER_ROUND = "server-round"
#: Config key of TRAIN: how often the node has been sent this round's arrays before, an integer ≥ 1; missing the first
#: time. A repetition has other random draws than the times before, and begins with the private state that they left.
REPEAT = "repeat"
#: The largest number of a round.
LAST_ROUND = 999_999
#: Config key: the oldest round that the server can return to, an integer ≥ 0. Nodes may delete older private state.
DURABLE_ROUND = "durable-round"
#: Config key: the best round so far by the tracked metric, an integer ≥ 1; missing if no metric is tracked or there is
#: none yet. Nodes keep the private state of this round.
BEST_ROUND = "best-round"
#: Config key: the attempts that the rounds belong to, as ``round:identifier`` separated by spaces. Each attempt begins
#: after its round and replaces the later rounds of the one before; private state of replaced rounds does not count.
ATTEMPTS = "attempts"
#: Config key: stage of a continual run, an integer ≥ 0; 0 if missing.
STAGE = "stage"

#: Metric and profile key: number of examples. Above 0 in replies; ≥ 0 in profiles, where 0 means "do not train". A node
#: that does not tell the number says 1.
NUM_EXAMPLES = "num-examples"
#: Config key of TRAIN: how to compress the reply, "bf16", "int8" or "top-k"; missing if not.
COMPRESSION = "compression"
#: Config key of TRAIN: the share of the values of each array to send under "top-k", a float in (0, 1].
COMPRESSION_SHARE = "compression-share"
RUNNING_VARIANCE = "running_var"
#: The last parts of the names of the statistics in torch's normalisation layers, which are buffers.
STATISTICS = ("running_mean", RUNNING_VARIANCE, "num_batches_tracked")
#: Config key of TRAIN: the names of shared floating-point arrays that are buffers although their names do not say so, a
#: list of strings; missing if there are none. Nodes neither compress them nor send them under differential privacy.
BUFFERS = "buffers"
#: Config key of TRAIN: the names of shared arrays that nodes neither train nor return in this round, a list of strings;
#: missing if there are none.
UNTRAINED = "untrained"
#: Prefix of the records of compressed replies. They replace the parameters in the record ``arrays``.
COMPRESSED_PREFIX = "compressed."
#: Record of compressed replies: the compressed change of each parameter.
COMPRESSED_VALUES = COMPRESSED_PREFIX + "values"
#: Record of replies under "int8": the step of each array, a float32 without dimensions.
COMPRESSED_STEPS = COMPRESSED_PREFIX + "steps"
#: Record of replies under "top-k": the flat positions of the values of each array, uint32, ascending.
COMPRESSED_PLACES = COMPRESSED_PREFIX + "places"

#: Config key of TRAIN and EVALUATE: the digest of what is never trained and never sent, which the node must build from
#: the same files as the server, a string; missing if there is nothing to compare.
FIXED_DIGEST = "fixed-digest"
#: Config key of TRAIN and EVALUATE: whether the reply has the record ``timings``; false if missing.
TIMINGS_WANTED = "timings"
#: Record of replies: seconds that the node took for each phase of its work, floats ≥ 0.
TIMINGS = "timings"
#: The phases of a node: reading its run config, decoding the message, loading its data, reading and writing private
#: state, building the model, training, evaluating, encoding (and compressing) the reply; ``other`` is the rest.
NODE_PHASES = ("config", "decode", "data", "state", "model", "train", "evaluate", "encode", "other")

#: Config key of EVALUATE: whether the node was held out of all rounds. It then fits its personal part in
#: ``held-out-epochs`` epochs, and its metrics have one of the prefixes :data:`HELD_OUT_PREFIXES`; false if missing.
HELD_OUT = "held-out"
#: The model that a held-out node received, the same with its personal part fitted, and a model that it trained alone.
HELD_OUT_PREFIXES = ("shared.", "adapted.", "local.")

#: Suffix of a metric that holds the weight of another metric: ``loss.count`` is the weight of ``loss``.
COUNT_SUFFIX = ".count"
#: Suffix of a list of numbers from which a pooled metric is computed: the sums of ``bleu.statistics`` over nodes give
#: the ``bleu`` of all nodes.
STATISTICS_SUFFIX = ".statistics"
#: Prefix of the metrics that the server evaluates itself. The names of a node's metrics must not begin with it.
SERVER_METRICS_PREFIX = "server."
#: Metric of replies to TRAIN: optimizer steps of the round.
STEPS = "steps"
#: Metric of replies to EVALUATE: optimizer steps that the node took before the evaluation, for example to personalise
#: its model. Missing if there were none; summed over nodes.
EVALUATION_STEPS = STEPS + COUNT_SUFFIX

# -- profiles --------------------------------------------------------------------------------------------------

#: Message type: asks a node for its profile.
PROFILE_QUERY = "query.profile"
#: Asks a node which generation of champions it uses, in a ConfigRecord ``champion`` with the key ``use``. The same key
#: in the message's config is the generation that it shall use, if it has it.
CHAMPION_QUERY, CHAMPION, USE = "query.champion", "champion", "use"
#: Key of the config of an EVALUATE message: the generation as which the node shall use the model that it makes of it.
PROMOTE = "promote"
#: Key of the config of both: the label of the registry that the generation belongs to.
REGISTRY = "champions-of"
#: Record of a profile.
PROFILE = "profile"
#: Profile key: the node's stable key, a string.
KEY = "key"
#: Prefix of profile keys: ``group.city`` holds the node's label in the groups of kind "city", a string.
GROUP_PREFIX = "group."
#: Profile key: why the node has no data for this run, a string; missing or empty if it has data.
NO_DATA = "no-data"
#: Profile key: true where the node has a folder with data of its own; missing where it has a part of the server's.
OWN_DATA = "own-data"
#: Profile key: why the node may not work now, a string, empty if it may; missing if no rule of the node decides it.
INELIGIBLE = "ineligible"
#: Profile key: the metric that the run tracks and the node cannot report, a string; missing if it can.
UNREPORTED = "unreported"

# -- strategies ------------------------------------------------------------------------------------------------

#: AdaptiveRates, record of EVALUATE: a rate in [0, 1] for every shared parameter, 0-d or in its shape.
ADAPTIVE_RATES = "adaptive.rates"

#: CentralPrivacy, config key of TRAIN: the largest L2 norm of an update, a float > 0 (Flower's own key).
CLIPPING_NORM = "clipping_norm"

#: SecureAggregation, message type: an exchange before or after training.
SECAGG_QUERY = "query.secagg"
#: SecureAggregation, record of these messages, of their replies and of TRAIN (a ConfigRecord): ``session`` and what the
#: exchange needs (:mod:`fedapps.strategies.secure_aggregation`).
SECAGG = "secagg"
#: SecureAggregation, the only record of replies to TRAIN: ``sum``, unsigned integers.
SECAGG_MASKED = "secagg.masked"

#: VirtualClients, config key of TRAIN: number of examples to train on, an integer ≥ 1.
VIRTUAL_EXAMPLES = "virtual-examples"
#: VirtualClients, config key of TRAIN: number of optimizer steps to take, an integer ≥ 1.
VIRTUAL_STEPS = "steps"
#: VirtualClients, config key of TRAIN: counts the messages to one node in one round, an integer ≥ 0.
VIRTUAL_DRAW = "virtual-draw"

#: HierarchicalFedAvg, record of EVALUATE: the shared result, in the form of the shared arrays.
HIERARCHICAL_SHARED = "hierarchical.shared"
#: HierarchicalFedAvg, prefix of metrics: ``shared.loss`` is the loss of the shared result.
SHARED_METRICS_PREFIX = "shared."

#: FedVocab, prefix of metrics: ``stale.loss`` is the loss of a node before it adapts its private parameters.
STALE_METRICS_PREFIX = "stale."

#: FisherExchange, record of TRAIN (a ConfigRecord): asks for a precision.
FISHER = "fisher"
#: Key of ``fisher``: how to estimate the Fisher information, one of :data:`FisherEstimator`.
FISHER_ESTIMATOR = "estimator"
FisherEstimator = Literal["per-sample", "per-batch", "per-batch-scaled", "loss-per-sample", "loss-per-batch", "true"]
#: FisherExchange, record of TRAIN: the precision P ≥ 0, in the form of the shared parameters.
FISHER_PRIOR_PRECISION = "fisher.prior-precision"
#: FisherExchange, record of TRAIN: the linear term L, in the same form.
FISHER_PRIOR_LINEAR = "fisher.prior-linear"
#: FisherExchange, record of replies to TRAIN: the diagonal Fisher information, finite and ≥ 0, in the form of all
#: shared floating-point arrays. What it has for buffers is ignored.
FISHER_PRECISION = "fisher.precision"

#: FedWeIT, message type: asks a node for its adaptive parameters of the stage that ended.
ADAPTIVE_QUERY = "query.adaptive"
#: FedWeIT, record of the reply: shared floating-point arrays of two or more dimensions, in their shapes and dtypes.
FEDWEIT_ADAPTIVE = "fedweit.adaptive"
#: FedWeIT, record of replies to TRAIN: for shared floating-point arrays, which units were sent; booleans or integers 0
#: and 1 with as many dimensions as the array and length 1 along dimensions that the mask does not distinguish.
FEDWEIT_MASK = "fedweit.mask"
#: FedWeIT, record of TRAIN (a ConfigRecord): describes the knowledge base, with the keys ``stage`` and ``keys``.
FEDWEIT = "fedweit"
#: Key of ``fedweit``: the stable keys of the nodes that the knowledge base comes from, a list of strings.
FEDWEIT_KEYS = "keys"
#: FedWeIT, prefix of records of TRAIN: ``fedweit.knowledge.<i>`` holds the adaptive parameters of the i-th node.
FEDWEIT_KNOWLEDGE_PREFIX = "fedweit.knowledge."

#: Scaffold, record of TRAIN: c − c_i, the server's control variate less that of the node, which it keeps, in the form
#: of the shared floating-point arrays.
SCAFFOLD_CONTROL = "scaffold.control"
#: Scaffold, metric of replies to TRAIN: K η_l, the number of local steps times the learning rate, > 0.
SCAFFOLD_LENGTH = "scaffold.length"

#: FedDyn, record of TRAIN: g_i, the linear term of the node, which the server keeps, in the form of the shared
#: parameters.
FEDDYN_GRADIENT = "feddyn.gradient"

#: FedNova, metric of replies to TRAIN: ‖a_i‖₁ ≥ 1, the sum of the weights of the local gradients in the update.
FEDNOVA_NORM = "fednova.norm"

#: FedProto, record of TRAIN and EVALUATE: the global prototypes, ``classes`` int64 ``[k]``, ascending, and
#: ``prototypes`` float32 ``[k, d]``; missing before there are any.
FEDPROTO_GLOBAL = "fedproto.global"
#: FedProto, record of replies to TRAIN: ``classes`` and ``prototypes`` in the same form, of the classes of the node,
#: and ``counts`` int64 ``[k]``, its examples of each.
FEDPROTO_LOCAL = "fedproto.local"

#: QFedAvg, metric of replies to TRAIN: F_k ≥ 0, the loss of the received model on all training examples of the node.
Q_FFL_LOSS = "q-ffl.loss"

#: IteratedClusters (IFCA), prefix of records of TRAIN and EVALUATE: ``ifca.model.<j>`` is the j-th model, counted from
#: 0, in the form of the shared arrays, which are the model 0.
IFCA_MODEL_PREFIX = "ifca.model."
#: IteratedClusters (IFCA), metric of replies to TRAIN: the number j of the model that the node trained.
IFCA_CHOICE = "ifca.choice"


def names_in(config: object, key: str) -> list[str]:
    """The names of arrays under a key of a message's config; none where the config or the key is missing.

    Raises
    ------
    ValueError
        The value is no list of names.
    """
    names = config.get(key, []) if isinstance(config, Mapping) else []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"config {key} = {names!r}: must be a list of names of arrays")
    return [str(name) for name in names]
