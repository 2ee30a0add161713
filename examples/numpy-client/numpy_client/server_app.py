"""numpy-client: the server, Flower's own FedAvg."""

from flwr.common import Context
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg


def server_fn(context: Context) -> ServerAppComponents:
    """Make the strategy and its settings."""
    rounds = int(context.run_config["num-server-rounds"])
    return ServerAppComponents(strategy=FedAvg(), config=ServerConfig(num_rounds=rounds))


app = ServerApp(server_fn=server_fn)
