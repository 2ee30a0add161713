"""The port for SuperNodes by Flower version."""

import pytest

from fedapps.deployment import superlink
from fedapps.deployment.superlink import node_options, node_port


@pytest.mark.parametrize(
    ("flower", "http"),
    [("1.9.0", False), ("1.39.0", False), ("1.40.0", True), ("1.42.0.dev20261101", True), ("2.0", True)],
)
def test_supernodes_use_http_from_1_40_on_and_before_grpc_at_a_separate_port(
    flower: str, http: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(superlink, "version", lambda name: flower)
    assert (node_port(8000) == 8000) is http
    assert node_options("127.0.0.1:9092")[-2:] == ([] if http else ["--fleet-api-address", "127.0.0.1:9092"])
