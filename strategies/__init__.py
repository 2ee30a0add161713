"""Flower strategies and their parts; ``from fedapps.strategies import BaseStrategy`` imports only one module.

To add a public name, add it to the imports for type checkers and to ``_MODULES``; a test compares the two lists with
each other and with the classes of this folder.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .adaptive_rates import AdaptiveRates as AdaptiveRates
    from .admission import Admission as Admission
    from .base import BaseStrategy as BaseStrategy
    from .clustered import ClusteredFedAvg as ClusteredFedAvg
    from .compressed_replies import compression_mod as compression_mod
    from .compression import BFloat16 as BFloat16
    from .compression import Compression as Compression
    from .compression import Int8 as Int8
    from .compression import TopK as TopK
    from .coordinate_wise import Median as Median
    from .coordinate_wise import TrimmedMean as TrimmedMean
    from .example_limits import ExampleLimits as ExampleLimits
    from .fedweit import FedWeIT as FedWeIT
    from .fisher_exchange import FisherExchange as FisherExchange
    from .hierarchical import HierarchicalFedAvg as HierarchicalFedAvg
    from .krum import Krum as Krum
    from .krum import MultiKrum as MultiKrum
    from .optimizers import SGD as SGD
    from .optimizers import AdaGrad as AdaGrad
    from .optimizers import Adam as Adam
    from .optimizers import Momentum as Momentum
    from .optimizers import Yogi as Yogi
    from .partial_aggregation import PartialAggregation as PartialAggregation
    from .privacy import CentralPrivacy as CentralPrivacy
    from .privacy import PrivacyMechanism as PrivacyMechanism
    from .profiles import Profile as Profile
    from .robust_aggregation import RobustAggregation as RobustAggregation
    from .round_records import Checkpoints as Checkpoints
    from .round_records import DivergedError as DivergedError
    from .round_records import NodeReport as NodeReport
    from .round_records import Refusal as Refusal
    from .round_records import RoundReport as RoundReport
    from .round_records import Snapshot as Snapshot
    from .round_records import TooFewRepliesError as TooFewRepliesError
    from .round_records import TrackedMetric as TrackedMetric
    from .samplers import FixedPerCluster as FixedPerCluster
    from .samplers import InTurn as InTurn
    from .samplers import PoissonSampling as PoissonSampling
    from .samplers import ProportionalToSize as ProportionalToSize
    from .samplers import Sampler as Sampler
    from .samplers import StratifiedFraction as StratifiedFraction
    from .samplers import UniformFraction as UniformFraction
    from .samplers_by_key import DropSchedule as DropSchedule
    from .samplers_by_key import FixedNodes as FixedNodes
    from .server_optimizer import ServerOptimizer as ServerOptimizer
    from .similarity import ProfileFeatures as ProfileFeatures
    from .similarity import Similarity as Similarity
    from .similarity import UpdateSketch as UpdateSketch
    from .virtual_clients import IndependentDraws as IndependentDraws
    from .virtual_clients import VirtualClients as VirtualClients

_MODULES = {
    "AdaGrad": "optimizers",
    "Adam": "optimizers",
    "AdaptiveRates": "adaptive_rates",
    "Admission": "admission",
    "BFloat16": "compression",
    "BaseStrategy": "base",
    "CentralPrivacy": "privacy",
    "Checkpoints": "round_records",
    "ClusteredFedAvg": "clustered",
    "Compression": "compression",
    "DivergedError": "round_records",
    "DropSchedule": "samplers_by_key",
    "ExampleLimits": "example_limits",
    "FedWeIT": "fedweit",
    "FisherExchange": "fisher_exchange",
    "FixedNodes": "samplers_by_key",
    "FixedPerCluster": "samplers",
    "HierarchicalFedAvg": "hierarchical",
    "Int8": "compression",
    "InTurn": "samplers",
    "IndependentDraws": "virtual_clients",
    "Krum": "krum",
    "Median": "coordinate_wise",
    "Momentum": "optimizers",
    "MultiKrum": "krum",
    "NodeReport": "round_records",
    "PartialAggregation": "partial_aggregation",
    "PoissonSampling": "samplers",
    "PrivacyMechanism": "privacy",
    "Profile": "profiles",
    "ProfileFeatures": "similarity",
    "ProportionalToSize": "samplers",
    "Refusal": "round_records",
    "RobustAggregation": "robust_aggregation",
    "RoundReport": "round_records",
    "SGD": "optimizers",
    "Sampler": "samplers",
    "ServerOptimizer": "server_optimizer",
    "Similarity": "similarity",
    "Snapshot": "round_records",
    "StratifiedFraction": "samplers",
    "TopK": "compression",
    "TooFewRepliesError": "round_records",
    "TrackedMetric": "round_records",
    "TrimmedMean": "coordinate_wise",
    "UniformFraction": "samplers",
    "UpdateSketch": "similarity",
    "VirtualClients": "virtual_clients",
    "Yogi": "optimizers",
    "compression_mod": "compressed_replies",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
