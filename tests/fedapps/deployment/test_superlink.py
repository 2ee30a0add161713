"""The port for SuperNodes by Flower version."""

import pytest

from fedapps.deployment import superlink
from fedapps.deployment.superlink import node_options, node_port, nodes_speak_http


@pytest.mark.parametrize(
    ("flower", "http"),
    [("1.9.0", False), ("1.39.0", False), ("1.40.0", True), ("1.42.0.dev20261101", True), ("2.0", True)],
)
def test_supernodes_use_http_from_1_40_on(flower: str, http: bool):
    assert nodes_speak_http(flower) is http


def test_grpc_needs_a_separate_port_and_http_does_not(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(superlink, "version", lambda name: "1.39.0")
    assert node_port(8000) != 8000
    assert node_options("127.0.0.1:9092")[-2:] == ["--fleet-api-address", "127.0.0.1:9092"]
    monkeypatch.setattr(superlink, "version", lambda name: "1.41.0")
    assert node_port(8000) == 8000
    assert node_options("127.0.0.1:8000") == []
