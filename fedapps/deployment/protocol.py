"""What SuperNodes speak to their SuperLink: gRPC on a port of its own, or HTTP on the one that ``flwr`` uses too."""

from importlib.metadata import version

from sim.processes import free_port

_FIRST_WITH_HTTP = (1, 40)


def nodes_speak_http(flower: str = "") -> bool:
    """Whether they speak HTTP in a version of Flower, by default the one installed."""
    major, minor, *_ = (flower or version("flwr")).split(".")
    return (int(major), int(minor)) >= _FIRST_WITH_HTTP


def node_port(port: int) -> int:
    """Where on the loopback a SuperLink that takes ``flwr`` at ``port`` takes its nodes."""
    return port if nodes_speak_http() else free_port()


def node_options(address: str) -> list[str]:
    """How ``flower-superlink`` is told to take its nodes at ``address`` (host:port)."""
    return [] if nodes_speak_http() else ["--fleet-api-type", "grpc-rere", "--fleet-api-address", address]
