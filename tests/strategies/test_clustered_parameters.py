"""ClusteredFedAvg: parameters that are errors, and a missing SciPy."""

import sys

import pytest
from fedapps.strategies.algorithms.clustered import ClusteredFedAvg


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "num_clusters = 0, threshold = 0.0: set exactly one of them"),
        ({"num_clusters": 2, "threshold": 0.5}, "set exactly one of them"),
        ({"threshold": float("nan")}, "threshold = nan: set exactly one of them"),
        ({"num_clusters": -1}, "num_clusters = -1: must be an integer of at least 0"),
        ({"num_clusters": 2.0}, "num_clusters = 2.0: must be an integer"),
        ({"num_clusters": 2, "first": 0}, "first = 0: must be an integer of at least 1"),
        ({"num_clusters": 2, "every": -1}, "every = -1: must be an integer of at least 0"),
        ({"num_clusters": 2, "linkage": "median"}, "linkage = 'median': must be one of average"),
        ({"num_clusters": 2, "interval": -2}, r"intervals = \[-2\]: must be integers"),
    ],
)
def test_bad_parameters_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ClusteredFedAvg(**options)


def test_scipy_is_asked_for_by_name_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.cluster", None)
    with pytest.raises(ImportError, match="ClusteredFedAvg needs SciPy for clustering: pip install"):
        ClusteredFedAvg(num_clusters=2)
