"""Every strategy, with the arguments that it needs."""

from typing import Any

from fedapps import strategies as s

NEEDED: dict[type[s.BaseStrategy], dict[str, Any]] = {
    s.AdaptiveRates: {},
    s.BaseStrategy: {},
    s.BufferedAsync: {},
    s.ClusteredFedAvg: {"num_clusters": 2},
    s.FedDyn: {},
    s.FedNova: {},
    s.FedProto: {},
    s.FedWeIT: {},
    s.FisherExchange: {},
    s.Flora: {"a": "a", "b": "b", "weight": "w"},
    s.HierarchicalFedAvg: {"groups": ["city"], "intervals": [1]},
    s.IteratedClusters: {},
    s.PartialAggregation: {"shared": ["0.*"]},
    s.QFedAvg: {},
    s.Scaffold: {},
    s.TrainedInTurn: {"still": [["w"]]},
    s.VirtualClients: {"sampler": s.IndependentDraws(2), "steps": 1},
}
