"""Robust aggregations in a Flower app that knows nothing of this project, beside Flower's own robust strategies."""

import numpy as np
import pytest
from fedapps.strategies import BaseStrategy, Krum, Median, MultiKrum, TrimmedMean
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedMedian, FedTrimmedAvg
from flwr.serverapp.strategy import Krum as FlowersKrum
from flwr.serverapp.strategy import MultiKrum as FlowersMultiKrum
from toys import arrays_of, federate, template_app, template_net

PAIRS = {
    "median": (Median(), FedMedian()),
    "trimmed mean": (TrimmedMean(0.2), FedTrimmedAvg(beta=0.2)),
    "krum": (Krum(2), FlowersKrum(num_malicious_nodes=2)),
    "multi-krum": (MultiKrum(1, 4), FlowersMultiKrum(num_malicious_nodes=1, num_nodes_to_select=4)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_the_model_is_that_of_flowers_strategy(name: str) -> None:
    aggregation, theirs = PAIRS[name]
    app = template_app(lambda partition: 8)  # Flower weights the replies that its MultiKrum selects
    initial = ArrayRecord(template_net().state_dict())
    ours = federate(BaseStrategy(aggregation=aggregation), app, initial, num_nodes=7, num_rounds=3)
    flowers = federate(theirs, app, initial, num_nodes=7, num_rounds=3)
    plain = federate(BaseStrategy(), app, initial, num_nodes=7, num_rounds=3)
    mean = arrays_of(plain.arrays)
    for key, array in arrays_of(flowers.arrays).items():
        np.testing.assert_allclose(arrays_of(ours.arrays)[key], array, rtol=1e-5, atol=1e-6)
        assert (arrays_of(ours.arrays)[key] != mean[key]).any()


@pytest.mark.parametrize(
    ("name", "nodes", "examples"), [("trimmed mean", 4, lambda partition: 8), ("multi-krum", 7, lambda k: 4 + 4 * k)]
)
def test_flowers_trimmed_mean_may_cut_nothing_and_its_multi_krum_has_weights(name, nodes, examples) -> None:
    aggregation, theirs = PAIRS[name]
    app, initial = template_app(examples), ArrayRecord(template_net().state_dict())
    ours = federate(BaseStrategy(aggregation=aggregation), app, initial, num_nodes=nodes, num_rounds=1)
    flowers = federate(theirs, app, initial, num_nodes=nodes, num_rounds=1)
    plain = federate(BaseStrategy(), app, initial, num_nodes=nodes, num_rounds=1)
    (key, *_) = flowers.arrays
    assert not np.allclose(arrays_of(ours.arrays)[key], arrays_of(flowers.arrays)[key], rtol=1e-4, atol=1e-5)
    if name == "trimmed mean":  # of four values
        np.testing.assert_allclose(arrays_of(plain.arrays)[key], arrays_of(flowers.arrays)[key], rtol=1e-5, atol=1e-6)
