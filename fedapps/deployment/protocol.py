"""The protocol between SuperNodes and SuperLink: gRPC on a separate port, or HTTP on the port that ``flwr`` uses."""

from importlib.metadata import version

from fedapps.sim.processes import free_port

_FIRST_WITH_HTTP = (1, 40)


def nodes_speak_http(flower: str = "") -> bool:
    """Whether SuperNodes use HTTP in the given version of Flower; by default in the installed one."""
    major, minor, *_ = (flower or version("flwr")).split(".")
    return (int(major), int(minor)) >= _FIRST_WITH_HTTP


def node_port(port: int) -> int:
    """The loopback port for SuperNodes of a SuperLink that serves ``flwr`` at ``port``."""
    return port if nodes_speak_http() else free_port()


def node_options(address: str) -> list[str]:
    """The options with which ``flower-superlink`` serves SuperNodes at ``address`` (host:port)."""
    return [] if nodes_speak_http() else ["--fleet-api-type", "grpc-rere", "--fleet-api-address", address]
