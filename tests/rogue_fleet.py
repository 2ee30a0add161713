"""A fleet of honest nodes, one of which is spoiled."""

import numpy as np
from between_rounds import between
from fedapps.sim.inprocess import run_inprocess
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import ServerApp
from toys import arrays_of, record_of

START = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.array([0.5, -0.5], np.float32),
    "own": np.zeros(1, np.float32),
}
ROGUE = 1
PARTITIONS = [0, ROGUE, 2, 3]


class Fleet:
    """Honest nodes, but for one whose ``train``, ``evaluate`` or answer to ``query`` is spoiled by these functions."""

    start = START

    def __init__(self, **spoil):
        self.spoil, self.reports, self.sent = spoil, [], []

    def __call__(self, message, context):
        partition, kind = int(context.node_config["partition-id"]), message.metadata.message_type
        self.sent.append(message)
        content = getattr(self, f"_{kind.replace('.', '_')}")(partition, message)
        if partition == ROGUE and kind.partition(".")[0] in self.spoil:
            content = self.spoil[kind.partition(".")[0]](content)
        return Message(content, reply_to=message)

    def _train(self, partition, message):
        received = arrays_of(message.content["arrays"])
        arrays = {name: array + array.dtype.type(0.1 * (partition + 1)) for name, array in received.items()}
        metrics = MetricRecord({"num-examples": partition + 2, "loss": 0.5 * partition})
        precision = record_of({name: np.full_like(a, partition) for name, a in arrays.items()})
        mask = record_of({"w": np.ones((2, 1), np.bool_)})
        return RecordDict(
            {"arrays": record_of(arrays), "metrics": metrics, "fisher.precision": precision, "fedweit.mask": mask}
        )

    def _evaluate(self, partition, message):
        return RecordDict({"metrics": MetricRecord({"num-examples": 3, "loss": float(partition)})})

    def _query_profile(self, partition, message):
        profile = {
            "key": f"part-{partition}",
            "num-examples": partition + 2,
            "group.city": ["oslo", "rome"][partition % 2],
        }
        return RecordDict({"profile": ConfigRecord(profile)})

    def _query_adaptive(self, partition, message):
        return RecordDict({"fedweit.adaptive": record_of({"w": np.full((2, 3), partition, np.float32)})})

    def run(self, strategy, partitions=PARTITIONS, *, rounds=2, stages=1, **options):
        server_app, results = ServerApp(), []

        @server_app.main()
        def main(grid, context):
            options.update(num_rounds=rounds, on_round=self.reports.append)
            options["train_config"] = lambda r: ConfigRecord({"stage": (r - 1) * stages // rounds})
            results.append(strategy.start(grid, record_of(self.start), **between(**options)))

        configs = [{"partition-id": partition} for partition in partitions]
        run_inprocess(server_app, self, node_configs=configs, errors="reply")
        return results[0]

    def refusals(self, phase):
        return [refusal for report in self.reports for refusal in report.refused if refusal.phase == phase]
