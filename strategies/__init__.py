"""Flower strategies and their parts: what other projects import."""

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
from .algorithms.partial import PartialAggregation, TrainedInTurn
from .algorithms.q_ffl import QFedAvg
from .algorithms.scaffold import Scaffold
from .arrays import Arrays, Buffers, from_record, is_float, to_record
from .base import BaseStrategy
from .callbacks import Callback, Each, RequireEvaluations, Run, Save, Track, TrackedMetric
from .closing import Closing, Staleness
from .compression import BFloat16, Compression, Int8, TopK, compression_mod
from .optimizers import SGD, AdaGrad, Adam, Momentum, ServerOptimizer, Yogi
from .packing import PackedGrid, packing_mod
from .privacy import CentralPrivacy, PrivacyMechanism, epsilon
from .profiles import Admission, ExampleLimits, Profile, in_key_order
from .records import (
    Checkpoints,
    DivergedError,
    FailedEvaluationsError,
    LateReply,
    LeftOut,
    NodeReport,
    Refusal,
    RoundReport,
    RoundStep,
    RunEndedError,
    Snapshot,
    TooFewRepliesError,
)
from .registry import HeldOut
from .replies import Reply, read_arrays
from .robust import Krum, Median, MultiKrum, RobustAggregation, TrimmedMean
from .samplers import (
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
from .secure_aggregation import SecureAggregation
from .secure_node import SecureAggregationError, SecureRules, secagg_mod, secagg_query
from .speed_samplers import SpeedTiers, Utility

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
    "PackedGrid",
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
    "SecureAggregation",
    "SecureAggregationError",
    "SecureRules",
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
    "packing_mod",
    "read_arrays",
    "secagg_mod",
    "secagg_query",
    "to_record",
]
