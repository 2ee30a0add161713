"""Flower strategies and their parts; ``from fedapps.strategies import BaseStrategy`` imports only one module.

To add a public name, add it to the imports for type checkers: they are the list from which names are found when they
are first used.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .aggregation.robust import Krum as Krum
    from .aggregation.robust import Median as Median
    from .aggregation.robust import MultiKrum as MultiKrum
    from .aggregation.robust import RobustAggregation as RobustAggregation
    from .aggregation.robust import TrimmedMean as TrimmedMean
    from .algorithms.adaptive_rates import AdaptiveRates as AdaptiveRates
    from .algorithms.buffered_async import BufferedAsync as BufferedAsync
    from .algorithms.clustered import ClusteredFedAvg as ClusteredFedAvg
    from .algorithms.clustered import ProfileFeatures as ProfileFeatures
    from .algorithms.clustered import Similarity as Similarity
    from .algorithms.clustered import UpdateSketch as UpdateSketch
    from .algorithms.feddyn import FedDyn as FedDyn
    from .algorithms.fednova import FedNova as FedNova
    from .algorithms.fedproto import FedProto as FedProto
    from .algorithms.fedweit import FedWeIT as FedWeIT
    from .algorithms.fisher_exchange import FisherExchange as FisherExchange
    from .algorithms.flora import Flora as Flora
    from .algorithms.hierarchical import HierarchicalFedAvg as HierarchicalFedAvg
    from .algorithms.ifca import IteratedClusters as IteratedClusters
    from .algorithms.partial_aggregation import PartialAggregation as PartialAggregation
    from .algorithms.q_fedavg import QFedAvg as QFedAvg
    from .algorithms.scaffold import Scaffold as Scaffold
    from .algorithms.trained_in_turn import TrainedInTurn as TrainedInTurn
    from .algorithms.virtual_clients import IndependentDraws as IndependentDraws
    from .algorithms.virtual_clients import VirtualClients as VirtualClients
    from .arrays import Arrays as Arrays
    from .arrays import Buffers as Buffers
    from .arrays import from_record as from_record
    from .arrays import is_float as is_float
    from .arrays import to_record as to_record
    from .base import BaseStrategy as BaseStrategy
    from .compressed_replies import compression_mod as compression_mod
    from .compression import BFloat16 as BFloat16
    from .compression import Compression as Compression
    from .compression import Int8 as Int8
    from .compression import TopK as TopK
    from .hooks import ExtraRecords as ExtraRecords
    from .hooks import RoundHooks as RoundHooks
    from .nodes.admission import Admission as Admission
    from .nodes.admission import ExampleLimits as ExampleLimits
    from .nodes.held_out import HeldOut as HeldOut
    from .nodes.profiles import Profile as Profile
    from .nodes.profiles import in_key_order as in_key_order
    from .nodes.samplers import DropSchedule as DropSchedule
    from .nodes.samplers import FixedNodes as FixedNodes
    from .nodes.samplers import FixedPerCluster as FixedPerCluster
    from .nodes.samplers import InTurn as InTurn
    from .nodes.samplers import PoissonSampling as PoissonSampling
    from .nodes.samplers import ProportionalToSize as ProportionalToSize
    from .nodes.samplers import Sampler as Sampler
    from .nodes.samplers import StratifiedFraction as StratifiedFraction
    from .nodes.samplers import UniformFraction as UniformFraction
    from .nodes.speed_samplers import SpeedTiers as SpeedTiers
    from .nodes.speed_samplers import Utility as Utility
    from .optimizers import SGD as SGD
    from .optimizers import AdaGrad as AdaGrad
    from .optimizers import Adam as Adam
    from .optimizers import Momentum as Momentum
    from .optimizers import ServerOptimizer as ServerOptimizer
    from .optimizers import Yogi as Yogi
    from .privacy import CentralPrivacy as CentralPrivacy
    from .privacy import PrivacyMechanism as PrivacyMechanism
    from .privacy_budget import epsilon as epsilon
    from .replies import Reply as Reply
    from .replies import read_arrays as read_arrays
    from .rounds.closing import Closing as Closing
    from .rounds.records import DivergedError as DivergedError
    from .rounds.records import FailedEvaluationsError as FailedEvaluationsError
    from .rounds.records import LateReply as LateReply
    from .rounds.records import LeftOut as LeftOut
    from .rounds.records import NodeReport as NodeReport
    from .rounds.records import Refusal as Refusal
    from .rounds.records import RoundReport as RoundReport
    from .rounds.records import RoundStep as RoundStep
    from .rounds.records import RunEndedError as RunEndedError
    from .rounds.records import TooFewRepliesError as TooFewRepliesError
    from .rounds.records import TrackedMetric as TrackedMetric
    from .rounds.snapshots import Checkpoints as Checkpoints
    from .rounds.snapshots import Snapshot as Snapshot
    from .staleness import Staleness as Staleness


def _modules() -> dict[str, str]:
    """The module of each public name, from the imports for type checkers."""
    (block,) = (part for part in ast.parse(Path(__file__).read_text("utf-8")).body if isinstance(part, ast.If))
    imports = (part for part in block.body if isinstance(part, ast.ImportFrom))
    return {name.name: str(found.module) for found in imports for name in found.names}


_MODULES = _modules()
__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
