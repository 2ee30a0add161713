"""Who is connected: waiting for enough nodes, and knowing each by its profile."""

import time
from logging import INFO

from flwr.common.logger import log
from flwr.serverapp import Grid

from .profiles import Profile, in_key_order, query_profiles
from .rounds import TooFewRepliesError


def connected_profiles(grid: Grid, known: dict[int, Profile]) -> list[Profile]:
    """The connected nodes in the order of their stable keys.

    ``known`` holds profiles by Flower's node id; only nodes that are not in it are asked, and added to it.
    """
    connected = set(grid.get_node_ids())
    unknown = sorted(connected - known.keys())
    if unknown:
        taken = {profile.key for node, profile in known.items() if node in connected}
        for profile in query_profiles(grid, unknown, taken=taken):
            known[profile.node_id] = profile
    return in_key_order([known[node] for node in connected])


def wait_for_nodes(grid: Grid, count: int, seconds: float) -> None:
    """Wait until ``count`` nodes are connected. Raises ``TooFewRepliesError`` after ``seconds``."""
    deadline, said = time.monotonic() + seconds, 0.0
    while (connected := len(list(grid.get_node_ids()))) < count:
        now = time.monotonic()
        if now > deadline:
            raise TooFewRepliesError(
                f"{connected} nodes connected within {seconds:.0f} s, but {count} are wanted: "
                "start more, in simulation with --federation-config 'num-supernodes=…', or ask for fewer"
            )
        if now - said > 10:
            log(INFO, "waiting for nodes: %s of %s connected", connected, count)
            said = now
        time.sleep(0.1)
