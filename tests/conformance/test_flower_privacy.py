"""Flower's privacy around our strategies and our nodes, ours around foreign nodes, and why secure aggregation is out.

The tests of what does not work in Flower 1.42 fail when it begins to: then docs/privacy.md has to change.
"""

from typing import Any

import numpy as np
import pytest
from fedapps.sim.inprocess import run_inprocess
from fedapps.strategies import BaseStrategy, CentralPrivacy, PartialAggregation, TooFewRepliesError
from fedapps.strategies.wire import CLIPPING_NORM
from flwr.app import ConfigRecord, Context, RecordDict
from flwr.client import ClientApp
from flwr.client.mod import secaggplus_mod
from flwr.clientapp.mod import fixedclipping_mod
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)
from toys import arithmetic_app, federate

from fedapps.app.client_app import app as client_app
from fedapps.app.server_app import initial_arrays
from fedapps.config.parsing import parse

START = {"w": np.array([1.0, 2.0], np.float32), "v": np.zeros(2, np.float32)}


def moves(partition, received, config):
    return {name: (a + (partition + 1)).astype(a.dtype) for name, a in received.items()}, {"num-examples": 4}


def with_mod(mod):
    """The arithmetic app with a mod around its training alone, as Flower's mods need it."""
    inner, app = arithmetic_app(moves), ClientApp()
    app.train(mods=[mod])(inner)
    app.evaluate()(inner)
    app.query("profile")(inner)
    return app


def model(result):
    return np.concatenate([array.numpy() for array in result.arrays.values()])


def test_flowers_key_of_the_norm_is_ours():
    from flwr.supercore.differential_privacy import KEY_CLIPPING_NORM

    assert CLIPPING_NORM == KEY_CLIPPING_NORM


def test_flowers_server_side_wrapper_goes_around_the_base_strategy_and_gives_what_ours_gives():
    wrapped = DifferentialPrivacyServerSideFixedClipping(BaseStrategy(weighting="uniform"), 0.0, 1.0, 3)
    theirs = federate(wrapped, arithmetic_app(moves), START, num_nodes=3, num_rounds=2)
    ours = BaseStrategy(weighting="uniform", privacy=CentralPrivacy(1.0, 0.0, 3))
    np.testing.assert_allclose(
        model(federate(ours, arithmetic_app(moves), START, num_nodes=3, num_rounds=2)), model(theirs), rtol=1e-6
    )


def test_flowers_server_side_wrapper_does_not_go_around_a_strategy_that_shares_a_part():
    wrapped = DifferentialPrivacyServerSideFixedClipping(PartialAggregation(shared=["w"]), 0.0, 1.0, 3)
    with pytest.raises(ValueError, match="zip"):
        federate(wrapped, arithmetic_app(moves), START, num_nodes=3, num_rounds=1)


def test_foreign_nodes_with_flowers_clipping_mod_hear_the_norm_from_our_strategy():
    told = federate(
        BaseStrategy(weighting="uniform", privacy=CentralPrivacy(1.0, 0.0, 3, clipping="nodes")),
        with_mod(fixedclipping_mod), START, num_nodes=3, num_rounds=2,
    )  # fmt: skip
    ours = BaseStrategy(weighting="uniform", privacy=CentralPrivacy(1.0, 0.0, 3))
    np.testing.assert_allclose(
        model(told), model(federate(ours, arithmetic_app(moves), START, num_nodes=3, num_rounds=2)), rtol=1e-6
    )


def test_flowers_adaptive_clipping_lowers_the_norm_when_too_many_are_clipped():
    # Andrew et al. (2021), Section 2.2, raise it; so there is no key for it
    wrapped = DifferentialPrivacyServerSideAdaptiveClipping(BaseStrategy(), 0.0, 3, initial_clipping_norm=1.0)
    federate(wrapped, arithmetic_app(moves), START, num_nodes=3, num_rounds=1)
    assert wrapped.clipping_norm == pytest.approx(np.exp(-0.2 * (1.0 - 0.5)))


# -- our nodes under Flower's strategies ----------------------------------------------------------------------


def lqr(tmp_path, strategy, **keys: Any):
    given = {"task": "lqr", "epochs": 1, "batch-size": 32, "learning-rate": 0.01, "collect-after": 0, "num-nodes": 3}
    paths = {"output-dir": str(tmp_path / "runs"), "cache-dir": str(tmp_path / "worlds"), "name": "privacy"}
    config, server_app, results = parse(given | paths | keys), ServerApp(), []

    @server_app.main()
    def main(grid, context):
        start = initial_arrays(config)
        results.extend([start, strategy.start(grid, start, num_rounds=1).arrays])

    run_inprocess(server_app, client_app, num_nodes=3, run_config=config.flat())
    begin, end = results
    return np.concatenate([(end[name].numpy() - begin[name].numpy()).ravel() for name in begin])


def test_our_nodes_clip_under_flowers_client_side_wrapper(tmp_path):
    fedavg = lambda: FedAvg(min_available_nodes=3)  # noqa: E731
    by_nodes = lqr(tmp_path, DifferentialPrivacyClientSideFixedClipping(fedavg(), 0.0, 1e-2, 3))
    by_server = lqr(tmp_path, DifferentialPrivacyServerSideFixedClipping(fedavg(), 0.0, 1e-2, 3))
    assert 0 < np.linalg.norm(by_nodes) < 1.01e-2
    np.testing.assert_allclose(by_nodes, by_server, atol=1e-6)


def test_our_nodes_keep_their_privacy_under_flowers_fedavg(tmp_path):
    clipped = lqr(tmp_path, FedAvg(min_available_nodes=3), **{"dp": "local", "dp-clip": 1e-2, "dp-noise": 0.0})
    noisy = lqr(tmp_path, FedAvg(min_available_nodes=3), **{"dp": "local", "dp-clip": 1e-2, "dp-noise": 1e4})
    assert 0 < np.linalg.norm(clipped) < 1.01e-2
    assert np.std(noisy) == pytest.approx(100 / np.sqrt(3), rel=5 / np.sqrt(2 * len(noisy)))


# -- secure aggregation --------------------------------------------------------------------------------------


def test_flowers_secure_aggregation_takes_the_context_of_its_older_strategies_only():
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    with pytest.raises(TypeError, match="LegacyContext"):
        SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2)(None, context)  # type: ignore[arg-type]
    assert not any(hasattr(BaseStrategy, name) for name in ("configure_fit", "aggregate_fit"))


def test_flowers_mod_for_secure_aggregation_does_not_answer_the_messages_of_these_strategies():
    with pytest.raises(TooFewRepliesError, match="secaggplus_mod"):
        federate(BaseStrategy(), with_mod(secaggplus_mod), START, num_nodes=3, num_rounds=1,
                 train_config=ConfigRecord({"lr": 0.1}))  # fmt: skip
