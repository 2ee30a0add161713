"""Runs with secure-aggregation: the same models up to rounding, what leaves nodes, how they resume, what is refused."""

import json
import re

import numpy as np
import pytest
from fedapps.sim.flower_internals import flower_identity
from fedapps.strategies import SecureAggregation, TooFewRepliesError, epsilon
from fedapps.strategies.masking import Encoding
from fedapps.strategies.secure_node import encoding_record
from flwr.app import ConfigRecord, Context, Message, RecordDict
from killed_processes import killed_in
from small_runs import LQR
from toys import record_of

from fedapps.app.client_app import app as client_app
from fedapps.app.node_ledger import LEDGER
from fedapps.config.parsing import ConfigError, parse
from fedapps.config.run_config import read_largest, secure_aggregation_of
from fedapps.registry.methods import method_names
from fedapps.report import read_run
from fedapps.report.sections.details import details

SECURE = {"methods": "fedavg", "secure-aggregation": True}
SHARED = record_of({"w": np.zeros(2, np.float32)})


def arrays(folder):
    return folder.checkpoints("fedavg").latest().arrays


def test_a_secure_run_gives_the_model_of_fedavg_and_its_records_no_values_of_nodes(federate):
    plain, secure = federate("plain", methods="fedavg"), federate("secure", **SECURE)
    for name, array in arrays(plain).items():
        if name.startswith("shared."):
            np.testing.assert_allclose(arrays(secure)[name], array, atol=3 * 10 * 2.0**-21)
    trained = [row for row in secure.lines("nodes.jsonl") if row["phase"] == "train"]
    assert len(trained) == 9
    assert all(row["metrics"] == {} and row["num_examples"] == 1 for row in trained)
    rounds = secure.lines("metrics.jsonl")
    assert all(row["train"] == {"num-examples": 3} for row in rounds)
    assert rounds[0]["strategy"]["secagg"][0]["exchanges"]["unmask"]["answered"] == 3
    row = r"fedavg</td>\s*<td[^>]*>masked</td>\s*<td[^>]*>3 of 3</td>\s*<td[^>]*>9</td>\s*<td[^>]*>0</td>"
    assert re.search(row, details(read_run(secure.path)))


def test_the_mean_of_a_named_metric_is_in_the_records(federate):
    plain = federate("plain", methods="fedavg").lines("metrics.jsonl")
    secure = federate("secure", **SECURE, secure_aggregation_metrics="loss: 200").lines("metrics.jsonl")
    for one, other in zip(plain, secure, strict=True):
        assert other["train"].keys() == {"num-examples", "loss"}
        assert other["train"]["loss"] == pytest.approx(one["train"]["loss"], abs=3e-4)


def test_distributed_noise_is_counted_as_that_of_a_trusted_server(federate):
    folder = federate("run", **SECURE, dp="distributed", dp_noise=2.0, rounds=2)
    summary = json.loads((folder.path / "summary.json").read_text())["methods"]["fedavg"]
    assert summary["final"]["epsilon_zero_out"] == pytest.approx(epsilon(2.0, 2, 1e-5))
    assert "dp = distributed: epsilon = " in summary["privacy"]
    assert secure_aggregation_of(parse(LQR | SECURE | {"dp": "distributed", "dp-noise": 2.0}).run).noise == 2.0


@pytest.mark.parametrize("exchange", ["_share", "_sum", "_unmask"])
def test_a_run_that_dies_in_a_round_resumes_with_new_keys_and_counts_the_release_again(federate, exchange):
    settings = SECURE | {"dp": "distributed", "dp-noise": 1e-9, "dp-clip": 10.0}
    whole = federate("whole", **settings)
    with killed_in(f"strategies.secure_aggregation.SecureRound.{exchange}", lambda of, *_: of._loop.report.round == 2):
        federate("run", **settings)
    folder = federate("run", **settings, resume=True)
    assert folder.releases("fedavg").by_round() == {1: 1, 2: 2, 3: 1}
    for name, array in arrays(whole).items():
        if name.startswith("shared."):
            np.testing.assert_allclose(arrays(folder)[name], array, atol=1e-6)


# -- the nodes --------------------------------------------------------------------------------------------------------


def asked(node_config, run_config, content):
    config = parse(LQR | run_config).flat()
    context = Context(1, 2, {"partition-id": 0, "num-partitions": 3, **node_config}, RecordDict(), config)
    with flower_identity():
        return client_app(Message(RecordDict(content), 2, "train"), context)


@pytest.mark.parametrize(
    ("changes", "node_config", "message"),
    [
        ({"clip": 1e30}, {}, "asks for other scales or metrics in the sum than the run config"),
        ({"bits": 13}, {}, "asks for other scales or metrics"),
        ({"metrics": ["steps"], "largest": [9.0]}, {}, "asks for other scales or metrics"),
        ({}, {"may-leave": "groups"}, "loss: the node config may-leave lets it not leave, not even in a sum"),
        ({}, {"may-leave": "loss"}, "does not continue the session"),
    ],
)
def test_a_node_is_in_a_sum_with_the_scales_of_the_run_and_with_metrics_that_may_leave(
    tmp_path, changes, node_config, message
):
    given = SECURE | {"secure-aggregation-metrics": "loss: 200", "cache-dir": str(tmp_path)}
    encoding = secure_aggregation_of(parse(LQR | given).run).plan(3)[2]
    secagg = ConfigRecord({"session": bytes(16), **encoding_record(encoding), **changes})
    config = ConfigRecord({"server-round": 1, "attempts": "", "method": "fedavg"})
    with pytest.raises(RuntimeError, match=message):
        asked(node_config, given, {"arrays": SHARED, "config": config, "secagg": secagg})


def test_the_updates_of_a_node_with_its_part_of_the_noise_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("fedapps.app.client_app.masked", lambda message, *_: Message(RecordDict(), reply_to=message))
    given = SECURE | {"dp": "distributed", "dp-noise": 2.0, "cache-dir": str(tmp_path)}
    encoding = secure_aggregation_of(parse(LQR | given).run).plan(3)[2]
    config = ConfigRecord({"server-round": 1, "attempts": "", "method": "fedavg"})
    rules = {"dp": "distributed", "dp-noise": 1.0, "max-releases": 1, "state-dir": str(tmp_path / "state")}
    content = {"arrays": SHARED, "config": config, "secagg": ConfigRecord(encoding_record(encoding))}
    asked(rules, given, content)
    (line,) = (tmp_path / "state" / LEDGER).read_text().splitlines()
    assert (json.loads(line)["noise"], json.loads(line)["round"]) == (2.0, 1)
    with pytest.raises(RuntimeError, match="max-releases = 1: 1 updates have left this node"):
        asked(rules, given, content)
    with pytest.raises(RuntimeError, match="dp = 'none': must be 'distributed'"):
        asked(rules, SECURE | {"cache-dir": str(tmp_path)}, content)


def test_less_noise_than_the_run_promises_is_refused(federate, monkeypatch):
    monkeypatch.setattr(
        SecureAggregation, "_encoding", lambda self, threshold: Encoding(self.clip, self.bits, noise=0.1)
    )
    with pytest.raises(TooFewRepliesError, match="0 nodes are left, but 3 are needed"):
        federate("run", **SECURE, dp="distributed", dp_noise=2.0)


# -- the run config ---------------------------------------------------------------------------------------------------

MEAN_ONLY = {
    "apfl-deng", "ditto", "fedadagrad", "fedadam", "fedala", "fedavg", "fedavgm", "fedbabu", "fedper", "fedprox",
    "fedrep", "fedsgd", "fedyogi", "h-fl", "lg-fedavg", "local", "per-fedavg", "spfl", "untrained",
}  # fmt: skip
SINGLE = {
    "apfl", "centralized", "clustered", "elastic-transfer", "fedcurv", "feddyn", "fednova", "fedproto", "fedvc",
    "fedweit", "flora", "ifca", "q-ffl", "scaffold",
}  # fmt: skip


def test_methods_that_need_more_than_the_sum_are_refused_before_the_run():
    refused, accepted = set(), set()
    for method in method_names():
        try:
            parse(LQR | SECURE | {"methods": method})
            accepted.add(method)
        except ConfigError as error:
            if re.search(f"secure-aggregation = true: leave out of methods {method}", str(error)):
                refused.add(method)
    assert accepted >= MEAN_ONLY
    assert refused >= SINGLE


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dp": "local"}, "dp: must be 'none' or 'distributed'"),
        ({"dp": "central-server"}, "dp: must be 'none' or 'distributed'"),
        ({"aggregation": "median"}, "aggregation: must be 'mean'"),
        ({"compression": "int8"}, "compression: must be 'none'"),
        ({"sampling": "utility"}, "sampling: must be 'fixed' or 'poisson'"),
        ({"mode": "async"}, "mode: must be 'sync'"),
        ({"late-replies": "fold", "deadline": 5.0}, "late-replies: must be 'drop'"),
        ({"weighting": "num-examples"}, "max-examples: must be above 0"),
        ({"weighting": "num-examples", "max-examples": 10**6}, "needs 44 bits; .* take bits = 10"),
        ({"num-nodes": 2}, "num-nodes: must be at least 3 that train"),
        ({"dp": "distributed", "dp-seeded": True}, "dp-seeded: must be false"),
        ({"dp": "distributed", "secure-aggregation-metrics": "loss: 1"}, "must be empty with dp = 'distributed'"),
        ({"dp": "distributed", "secure-aggregation": False}, "needs secure-aggregation = true"),
        ({"secure-aggregation-metrics": "loss"}, "must be a metric, a colon and a number above 0"),
        ({"secure-aggregation-neighbours": 1}, "neighbours = 1: must be at least 2"),
    ],
)
def test_keys_that_need_more_than_the_sum_are_refused_by_name(changes, message):
    with pytest.raises(ConfigError, match=message):
        parse(LQR | SECURE | changes)


def test_metrics_are_read_with_their_largest_values():
    assert read_largest(" loss: 10, test.a: 0.5") == {"loss": 10.0, "test.a": 0.5}
    assert read_largest("") == {}


def test_weights_by_examples_end_at_max_examples():
    run = parse(LQR | SECURE | {"weighting": "num-examples", "max-examples": 50, "secure-aggregation-bits": 20}).run
    assert secure_aggregation_of(run).max_weight == 50
