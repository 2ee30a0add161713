"""The config of the messages that nodes receive in each round of a method."""

from flwr.app import ConfigRecord

from fedapps.base.options import option_values
from fedapps.clients.settings import LocalTraining
from fedapps.config.parsing import Config
from fedapps.config.run_config import RunConfig
from fedapps.methods.base import Scalar
from fedapps.strategies.wire import FIXED_DIGEST, TIMINGS_WANTED


def stage_of(run: RunConfig, server_round: int, num_stages: int = 1) -> int:
    """The stage of a round, counted from 0.

    Stages of the data share the rounds equally; without them stage 1 begins after nodes have collected data.
    """
    if num_stages > 1:
        return (server_round - 1) * num_stages // run.rounds
    return int(0 < run.collect_after < server_round)


def timings_wanted(run: RunConfig) -> dict[str, bool]:
    """The key that asks nodes for their timings, only where the run asks for it."""
    return {TIMINGS_WANTED: True} if run.timings else {}


def fixed_digest(config: Config) -> dict[str, str]:
    """The key with which nodes check what they build from their own files, only where there is such a thing."""
    found = config.task.fixed_digest
    return {FIXED_DIGEST: found} if found else {}


def train_config(config: Config, label: str, run_label: str, server_round: int) -> ConfigRecord:
    """The config of the TRAIN messages of the method ``label``; ``run_label`` names the folder of private states."""
    return ConfigRecord(
        {**_common(config, label, run_label, server_round), **option_values(_training(config, label, server_round))}
    )


def evaluate_config(config: Config, label: str, run_label: str, server_round: int) -> ConfigRecord:
    """The config of the EVALUATE messages of the method ``label``.

    Nodes that train before an evaluation know all settings but the learning rate of the round.
    """
    run = config.run_of(label)
    return ConfigRecord(
        {
            **_common(config, label, run_label, server_round),
            "learning-rate": _training(config, label, server_round).learning_rate,
            "final": server_round == run.rounds,
            "collect": server_round == run.collect_after,
        }
    )


def _common(config: Config, label: str, run_label: str, server_round: int) -> dict[str, Scalar]:
    run = config.run_of(label)
    return {
        "run": run_label,
        "method": label,
        **timings_wanted(run),
        **fixed_digest(config),
        "stage": stage_of(run, server_round, config.num_stages),
    }


def _training(config: Config, label: str, server_round: int) -> LocalTraining:
    return config.methods[label].training(config.run_of(label).training_in(server_round))
