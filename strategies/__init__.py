"""Flower strategies and their parts: what other projects import."""

from .aggregation.robust import Krum, Median, MultiKrum, RobustAggregation, TrimmedMean
from .algorithms.apfl import AdaptiveRates
from .algorithms.buffered_async import BufferedAsync
from .algorithms.clustered import ClusteredFedAvg, ProfileFeatures, Similarity, UpdateSketch
from .algorithms.feddyn import FedDyn
from .algorithms.fednova import FedNova
from .algorithms.fedproto import FedProto
from .algorithms.fedvc import IndependentDraws, VirtualClients
from .algorithms.fedweit import FedWeIT
from .algorithms.fisher_exchange import FisherExchange
from .algorithms.flora import Flora
from .algorithms.h_fl import HierarchicalFedAvg
from .algorithms.ifca import IteratedClusters
from .algorithms.partial_aggregation import PartialAggregation
from .algorithms.q_ffl import QFedAvg
from .algorithms.scaffold import Scaffold
from .algorithms.trained_in_turn import TrainedInTurn
from .arrays import Arrays, Buffers, from_record, is_float, to_record
from .base import BaseStrategy
from .compressed_replies import compression_mod
from .compression import BFloat16, Compression, Int8, TopK
from .nodes.admission import Admission, ExampleLimits
from .nodes.held_out import HeldOut
from .nodes.profiles import Profile, in_key_order
from .nodes.samplers import (
    DropSchedule,
    FixedNodes,
    FixedPerCluster,
    InTurn,
    PoissonSampling,
    ProportionalToSize,
    Sampler,
    StratifiedFraction,
    UniformFraction,
)
from .nodes.speed_samplers import SpeedTiers, Utility
from .optimizers import SGD, AdaGrad, Adam, Momentum, ServerOptimizer, Yogi
from .privacy import CentralPrivacy, PrivacyMechanism
from .privacy_budget import epsilon
from .replies import Reply, read_arrays
from .rounds.callbacks import Callback, Each, RequireEvaluations, Run, Save, Track
from .rounds.closing import Closing
from .rounds.records import (
    DivergedError,
    FailedEvaluationsError,
    LateReply,
    LeftOut,
    NodeReport,
    Refusal,
    RoundReport,
    RoundStep,
    RunEndedError,
    TooFewRepliesError,
    TrackedMetric,
)
from .rounds.snapshots import Checkpoints, Snapshot
from .staleness import Staleness

__all__ = [
    "SGD",
    "AdaGrad",
    "Adam",
    "AdaptiveRates",
    "Admission",
    "Arrays",
    "BFloat16",
    "BaseStrategy",
    "BufferedAsync",
    "Buffers",
    "Callback",
    "CentralPrivacy",
    "Checkpoints",
    "Closing",
    "ClusteredFedAvg",
    "Compression",
    "DivergedError",
    "DropSchedule",
    "Each",
    "ExampleLimits",
    "FailedEvaluationsError",
    "FedDyn",
    "FedNova",
    "FedProto",
    "FedWeIT",
    "FisherExchange",
    "FixedNodes",
    "FixedPerCluster",
    "Flora",
    "HeldOut",
    "HierarchicalFedAvg",
    "InTurn",
    "IndependentDraws",
    "Int8",
    "IteratedClusters",
    "Krum",
    "LateReply",
    "LeftOut",
    "Median",
    "Momentum",
    "MultiKrum",
    "NodeReport",
    "PartialAggregation",
    "PoissonSampling",
    "PrivacyMechanism",
    "Profile",
    "ProfileFeatures",
    "ProportionalToSize",
    "QFedAvg",
    "Refusal",
    "Reply",
    "RequireEvaluations",
    "RobustAggregation",
    "RoundReport",
    "RoundStep",
    "Run",
    "RunEndedError",
    "Sampler",
    "Save",
    "Scaffold",
    "ServerOptimizer",
    "Similarity",
    "Snapshot",
    "SpeedTiers",
    "Staleness",
    "StratifiedFraction",
    "TooFewRepliesError",
    "TopK",
    "Track",
    "TrackedMetric",
    "TrainedInTurn",
    "TrimmedMean",
    "UniformFraction",
    "UpdateSketch",
    "Utility",
    "VirtualClients",
    "Yogi",
    "compression_mod",
    "epsilon",
    "from_record",
    "in_key_order",
    "is_float",
    "read_arrays",
    "to_record",
]
