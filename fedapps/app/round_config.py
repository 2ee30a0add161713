"""The orders that nodes get in each round of a method."""

from flwr.app import ConfigRecord

from fedapps.catalogue import METHODS
from fedapps.config.run_config import RunConfig


def stage_of(run: RunConfig, server_round: int, num_stages: int = 1) -> int:
    """The stage that a round belongs to, from 0.

    Stages of the data share the rounds equally; where there is one, stage 1 begins when nodes have collected more.
    """
    if num_stages > 1:
        return (server_round - 1) * num_stages // run.rounds
    return int(0 < run.collect_after < server_round)


def train_orders(run: RunConfig, method_name: str, label: str, server_round: int, num_stages: int = 1) -> ConfigRecord:
    """The config of a TRAIN message."""
    trains = METHODS[method_name].trains != "nobody"
    return ConfigRecord(
        {
            "run": label,
            "method": method_name,
            "stage": stage_of(run, server_round, num_stages),
            "epochs": run.epochs if trains else 0,
            "steps": run.steps if trains else 0,
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
