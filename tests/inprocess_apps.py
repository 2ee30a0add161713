"""Servers and clients for the in-process engine that know nothing of this project."""

from fedapps.sim.inprocess import run_inprocess
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.client import ClientApp
from flwr.serverapp import ServerApp


def client(answer):
    """A ClientApp whose train handler gives the metrics that ``answer(message, context)`` returns."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        return Message(RecordDict({"metrics": MetricRecord(answer(message, context))}), reply_to=message)

    return app


def partition(message, context):
    return {"partition": context.node_config["partition-id"]}


def server(work):
    """A ServerApp that runs ``work(grid, context)``."""
    app = ServerApp()

    @app.main()
    def main(grid, context):
        work(grid, context)

    return app


def ask(grid, node_ids=None, kind="train", **config):
    """Send one message to every node; its replies."""
    messages = [
        Message(RecordDict({"config": ConfigRecord(config)}), dst_node_id=node, message_type=kind)
        for node in (grid.get_node_ids() if node_ids is None else node_ids)
    ]
    return list(grid.send_and_receive(messages))


def asked(app, *, times=1, errors="raise", **fleet):
    """The replies of a fleet that is asked ``times`` times."""
    found = []
    run_inprocess(
        server(lambda grid, _: found.extend(reply for r in range(times) for reply in ask(grid, **{"server-round": r}))),
        app,
        errors=errors,
        **fleet,
    )
    return found


def metrics(replies):
    return [dict(reply.content["metrics"]) for reply in replies]
