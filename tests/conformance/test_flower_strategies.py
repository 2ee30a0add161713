"""Our node under strategies that are not ours: Flower's message strategies and its older list-of-arrays ones."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedapps.sim.inprocess import run_inprocess
from fedapps.strategies import BaseStrategy
from flwr.app import Context
from flwr.client import ClientApp
from flwr.common import parameters_to_ndarrays
from flwr.server import ServerApp as OlderServerApp
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg as OlderFedAvg
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg, Result, Strategy

from fedapps.app.client_app import app as client_app
from fedapps.app.client_app import client_fn
from fedapps.app.server_app import initial_arrays
from fedapps.config.parsing import parse

ROUNDS = 3


@pytest.fixture
def run_config(tmp_path: Path) -> dict[str, Any]:
    given = {"task": "lqr", "epochs": 1, "batch-size": 32, "learning-rate": 0.01, "collect-after": 0, "num-nodes": 3}
    paths = {"output-dir": str(tmp_path / "runs"), "cache-dir": str(tmp_path / "worlds"), "name": "conformance"}
    return parse(given | paths).flat()


def federate(strategy: Strategy, run_config: dict[str, Any]) -> Result:
    server_app, results = ServerApp(), []

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        results.append(strategy.start(grid, initial_arrays(parse(context.run_config)), num_rounds=ROUNDS))

    run_inprocess(server_app, client_app, num_nodes=3, run_config=run_config)
    return results[0]


def excess(result: Result, server_round: int) -> float:
    return float(result.evaluate_metrics_clientapp[server_round]["test.excess"])


def test_under_flowers_fedavg_the_arrays_are_those_of_our_base_strategy(run_config: dict[str, Any]) -> None:
    theirs = federate(FedAvg(min_available_nodes=3), run_config)
    ours = federate(BaseStrategy(), run_config)
    assert excess(theirs, ROUNDS) < excess(theirs, 1)
    for name, array in ours.arrays.items():
        np.testing.assert_allclose(array.numpy(), theirs.arrays[name].numpy(), rtol=1e-5, atol=1e-6)


def test_under_flowers_fedadam_it_learns(run_config: dict[str, Any]) -> None:
    result = federate(FedAdam(min_available_nodes=3, eta=0.1), run_config)
    assert excess(result, ROUNDS) < excess(result, 1)


def test_as_a_numpy_client_under_the_older_fedavg_the_arrays_are_the_same(run_config: dict[str, Any]) -> None:
    final: list[list[np.ndarray]] = []

    class Recording(OlderFedAvg):
        def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
            assert not failures
            parameters, metrics = super().aggregate_fit(server_round, results, failures)
            assert parameters is not None
            final.append(parameters_to_ndarrays(parameters))
            return parameters, metrics

    def server_fn(context: Context) -> ServerAppComponents:
        strategy = Recording(min_fit_clients=3, min_evaluate_clients=3, min_available_clients=3)
        return ServerAppComponents(config=ServerConfig(num_rounds=ROUNDS), strategy=strategy)

    older = OlderServerApp(server_fn=server_fn)
    run_inprocess(older, ClientApp(client_fn=client_fn), num_nodes=3, run_config=run_config)
    ours = federate(BaseStrategy(), run_config)
    for mine, array in zip(final[-1], ours.arrays.values(), strict=True):
        np.testing.assert_allclose(mine, array.numpy(), rtol=1e-5, atol=1e-6)
