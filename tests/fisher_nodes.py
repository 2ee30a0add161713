"""Nodes that publish given solutions and precisions, and the priors that FisherExchange sends them."""

import numpy as np
from flwr.app import ConfigRecord, MetricRecord, RecordDict
from toys import arithmetic_app, arrays_of, federate, record_of

START = {"w": np.array([0.0, 0.0], np.float32), "steps": np.array(0, np.int64)}
# What nodes 0, 1, 2 find in every round, and how sure they are of it.
FOUND = [[1.0, 2.0], [3.0, -1.0], [-2.0, 4.0]]
SURE = [[1.0, 0.0], [2.0, 4.0], [0.5, 1.0]]


def published(w, precision, steps=0):
    """A reply as a node without this project would make it."""
    arrays = record_of({"w": np.array(w, np.float32), "steps": np.array(steps, np.int64)})
    precision = record_of({"w": np.array(precision, np.float32)})
    metrics = MetricRecord({"num-examples": 1, "loss": 0.0})
    return RecordDict({"arrays": arrays, "metrics": metrics, "fisher.precision": precision})


def steady(partition, arrays, config):
    return published(FOUND[partition], SURE[partition])


def trained(strategy, train=steady, *, num_nodes=3, num_rounds=2, **more):
    """Run, and give the prior that each node got in each round: (round, partition) -> (P, L) or None."""
    seen, partitions = [], {}

    def watched(partition, arrays, config):
        partitions[id(seen[-1])] = partition
        return train(partition, arrays, config)

    result = federate(
        strategy,
        arithmetic_app(watched, seen=seen),
        START,
        num_nodes=num_nodes,
        num_rounds=num_rounds,
        evaluate_every=num_rounds,
        **more,
    )
    priors = {}
    for message in seen:
        if message.metadata.message_type == "train":
            key = (message.content["config"]["server-round"], partitions[id(message)])
            priors[key] = prior_of(message.content)
    return result, priors


def prior_of(content):
    if "fisher.prior-precision" not in content:
        assert "fisher.prior-linear" not in content
        return None
    precision, linear = (arrays_of(content[f"fisher.prior-{part}"]) for part in ("precision", "linear"))
    assert list(precision) == list(linear) == ["w"]
    assert precision["w"].dtype == linear["w"].dtype == np.float32
    return precision["w"].tolist(), linear["w"].tolist()


def staged(partition, arrays, config):
    """Two rounds a stage; the solutions grow by 10 from stage to stage, the precision is SURE throughout."""
    return published(np.array(FOUND[partition]) + 10 * config.get("stage", 0), SURE[partition])


def stages(server_round):
    return ConfigRecord({"stage": (server_round - 1) // 2})
