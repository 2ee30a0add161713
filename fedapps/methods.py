"""From a method's name to its strategy, and to the orders that nodes get in each round."""

from collections.abc import Collection, Iterable
from typing import Any

from flwr.app import ConfigRecord

from clients.named import matches
from strategies.adaptive_rates import AdaptiveRates
from strategies.base import BaseStrategy
from strategies.fedweit import FedWeIT
from strategies.fisher_exchange import FisherExchange
from strategies.optimizers import SGD, AdaGrad, Adam, Momentum, Yogi
from strategies.partial_aggregation import PartialAggregation
from strategies.profiles import Profile, in_key_order
from strategies.rounds import TrackedMetric
from strategies.samplers import DropSchedule, Sampler, UniformFraction
from strategies.server_optimizer import ServerOptimizer

from .catalogue import EVERYTHING, METHODS, Method, task_class
from .config import RunConfig

_OPTIMIZERS: dict[str, type[ServerOptimizer]] = {
    "sgd": SGD,
    "momentum": Momentum,
    "adam": Adam,
    "adagrad": AdaGrad,
    "yogi": Yogi,
}


class FirstNode(Sampler):
    """Always the first node in key order: where the pooled data of Cloud is trained on."""

    def sample(self, profiles: Collection[Profile], server_round: int) -> list[Profile]:
        return in_key_order(profiles)[:1]


def build_strategy(run: RunConfig, method_name: str, parameters: Iterable[str] = ()) -> BaseStrategy:
    """The strategy of a method with the run's sampling, weighting and server optimizer.

    ``parameters`` are the names of the model's, of which a method can keep some private. Raises ``ValueError`` when
    it would keep some private that the model does not have.
    """
    method = METHODS[method_name]
    parts: dict[str, Any] = {
        "shared": _shared(method, task_class(run.task).fixed, parameters),
        "sampler": FirstNode() if method.trains == "pooled" else _sampler(run),
        "evaluate_sampler": UniformFraction(run.fraction_evaluate, seed=run.seed),
        "weighting": run.weighting,
        "server_optimizer": _OPTIMIZERS[run.server_optimizer](run.server_learning_rate),
        "min_replies": 1 if method.trains == "pooled" else run.min_replies,
        "min_nodes": run.num_nodes,
        "node_wait": run.node_wait,
        "metric_means": task_class(run.task).metric_means,
    }
    if method.rate_power is not None:
        return AdaptiveRates(granularity=run.rate_granularity, power=method.rate_power, **parts)  # type: ignore[arg-type]
    if method.fisher is not None:
        own_past, others_past, others_now = (getattr(run, w) if isinstance(w, str) else w for w in method.fisher)
        return FisherExchange(
            own_past=own_past,
            others_past=others_past,
            others_now=others_now,
            anchors=run.elastic_anchors,  # type: ignore[arg-type]
            estimator=run.fisher_estimator,  # type: ignore[arg-type]
            **parts,
        )
    if method.memory == "fedweit":
        return FedWeIT(**parts)
    return BaseStrategy(**parts) if method.private in ((), EVERYTHING) else PartialAggregation(**parts)


def _shared(method: Method, fixed: tuple[str, ...], parameters: Iterable[str]) -> tuple[str, ...]:
    """The names, or patterns, of what travels: neither what is private nor what never changes."""
    staying = (*method.private, *fixed)
    if not staying:
        return EVERYTHING
    if method.private == EVERYTHING:
        return ()
    names = list(parameters)
    idle = [pattern for pattern in staying if not any(matches(name, [pattern]) for name in names)]
    if idle:
        raise ValueError(f"private = {', '.join(idle)}: no parameter of the model matches; it has {', '.join(names)}")
    return tuple(name for name in names if not matches(name, staying))


def stage_of(run: RunConfig, server_round: int, num_stages: int = 1) -> int:
    """The stage that a round belongs to, from 0.

    Stages of the data share the rounds equally; where there is one, stage 1 begins when nodes have collected more.
    """
    if num_stages > 1:
        return (server_round - 1) * num_stages // run.rounds
    return int(0 < run.collect_after < server_round)


def train_orders(run: RunConfig, method_name: str, label: str, server_round: int, num_stages: int = 1) -> ConfigRecord:
    """The config of a TRAIN message."""
    return ConfigRecord(
        {
            "run": label,
            "method": method_name,
            "stage": stage_of(run, server_round, num_stages),
            "epochs": run.epochs,
            "learning-rate": run.learning_rate,
            "batch-size": run.batch_size,
            "optimizer": run.optimizer,
            "weight-decay": run.weight_decay,
            "plateau-patience": run.plateau_patience,
            "plateau-factor": run.plateau_factor,
            "min-learning-rate": run.min_learning_rate,
            "clip-norm": run.clip_norm,
            "linear-decay": run.linear_decay,
            "adapt-epochs": run.adapt_epochs if METHODS[method_name].adapts else 0,
            "proximal": run.fedprox_mu if METHODS[method_name].proximal else 0.0,
            "pooled": METHODS[method_name].trains == "pooled",
            **_reconstruction_orders(run, method_name),
            **_memory_orders(run, method_name),
        }
    )


def _sampler(run: RunConfig) -> Sampler:
    return DropSchedule(seed=run.seed) if run.drop_nodes else UniformFraction(run.fraction_train, seed=run.seed)


def _reconstruction_orders(run: RunConfig, method_name: str) -> dict[str, bool | float]:
    """How nodes without memory get their private parameters, to train as well as to be evaluated."""
    if not METHODS[method_name].reconstructs:
        return {}
    return {
        "reconstruct-epochs": run.reconstruct_epochs,
        "support-share": run.support_share,
        "learning-rate": run.learning_rate,
        "weight-decay": run.weight_decay,
        "clip-norm": run.clip_norm,
        "linear-decay": run.linear_decay,
    }


def _memory_orders(run: RunConfig, method_name: str) -> dict[str, bool | float | str]:
    """What a node does with its earlier stages; nothing is the node's default."""
    memory = METHODS[method_name].memory
    if memory == "fresh":
        return {"fresh-stages": True}
    if memory == "ewc":
        return {"ewc": run.ewc_lambda, "ewc-anchors": run.ewc_anchors, "fisher-estimator": run.fisher_estimator}
    if memory == "l2":
        return {"l2-transfer": run.l2t_lambda}
    if memory == "apd":
        return {"decomposition": memory, "l1-adaptive": run.apd_l1, "drift": run.apd_drift}
    if memory == "fedweit":
        return {
            "decomposition": memory,
            "l1-adaptive": run.fedweit_l1_adaptive,
            "l1-mask": run.fedweit_l1_mask,
            "drift": run.fedweit_drift,
            "mask-share": run.fedweit_mask_share,
            "sparsity": run.fedweit_l1_adaptive,
        }
    return {}


def evaluate_orders(
    run: RunConfig, method_name: str, label: str, server_round: int, num_stages: int = 1
) -> ConfigRecord:
    """The config of an EVALUATE message."""
    method = METHODS[method_name]
    return ConfigRecord(
        {
            "run": label,
            "method": method_name,
            "stage": stage_of(run, server_round, num_stages),
            "batch-size": run.batch_size,
            "optimizer": run.optimizer,
            "personalise": method.personalise,
            "personal-epochs": run.personal_epochs,
            "personal-learning-rate": run.personal_learning_rate * method.personal_rate,
            "final": server_round == run.rounds,
            "collect": server_round == run.collect_after,
            **_reconstruction_orders(run, method_name),
            **_memory_orders(run, method_name),
        }
    )


def tracked_metric(run: RunConfig) -> TrackedMetric | None:
    """What decides the best round and early stopping, if anything does."""
    if not run.track_metric:
        return None
    return TrackedMetric(run.track_metric, run.track_mode, run.patience)  # type: ignore[arg-type]
