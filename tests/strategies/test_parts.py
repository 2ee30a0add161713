"""Which parts every strategy takes, and that it refuses the others with the reason of its class."""

import re

import pytest
from every_strategy import NEEDED

from fedapps import strategies as s

PARTS = {
    "aggregation": s.Median(),
    "compression": s.Int8(),
    "privacy": s.CentralPrivacy(1.0, 1.0, 3),
    "secure_aggregation": s.SecureAggregation(),
}
EXACT = {s.AdaptiveRates, s.ClusteredFedAvg, s.FedWeIT, s.FisherExchange, s.IteratedClusters, s.Scaffold}
OF_SINGLE_REPLIES = EXACT | {s.BufferedAsync, s.FedDyn, s.FedNova, s.FedProto, s.Flora, s.QFedAvg}
REFUSING = {
    "aggregation": OF_SINGLE_REPLIES | {s.VirtualClients},
    "compression": EXACT | {s.Flora, s.HierarchicalFedAvg, s.VirtualClients},
    "privacy": OF_SINGLE_REPLIES | {s.HierarchicalFedAvg, s.VirtualClients},
    "secure_aggregation": OF_SINGLE_REPLIES,
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("kind", NEEDED)
def test_a_strategy_takes_a_part_or_says_why_it_does_not(kind, part):
    reason = {
        "aggregation": kind.robustness_gap,
        "compression": kind.compression_gap,
        "privacy": kind.privacy_gap,
        "secure_aggregation": kind.secrecy_conflict(),
    }[part]
    arguments = {"weighting": "uniform", **NEEDED[kind], part: PARTS[part]}
    if kind in REFUSING[part]:
        with pytest.raises(ValueError, match=rf"^{part} = .*{re.escape(reason)}"):
            kind(**arguments)
    else:
        assert getattr(kind(**arguments), part) is PARTS[part]
