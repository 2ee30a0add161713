"""Cost of aggregating replies: ours, Flower's ``aggregate_arrayrecords``, and NumPy alone.

Ours decodes each reply, checks names, shapes, dtypes and values, and adds it to the mean. Flower's function decodes and
adds in float32 and checks nothing. NumPy alone adds arrays that are already decoded, in float32.

With ``--compression`` ours decodes and adds compressed replies, and the reference is the same of dense replies.

Both the CPU time and the time of the wall clock are compared: other programs disturb the first less.

    python -m benchmarks.aggregation --megabytes 400
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from fedapps.strategies import Arrays, Buffers, Compression, read_arrays, to_record, wire
from fedapps.strategies.aggregation import StreamingMean
from fedapps.strategies.compression import COMPRESSION_NAMES, compression_by_name
from fedapps.strategies.replies import shared_arrays
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

from .commands import new_parser, run
from .sides import alternate, compare, peak_megabytes, show

OURS, FLOWER, NUMPY, DENSE = "ours", "aggregate_arrayrecords", "numpy", "dense replies"
_REPLIES, _FLOAT32 = 10, 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table."""
    parser = new_parser("aggregation", __doc__)
    parser.add_argument("--megabytes", type=float, default=80.0, help="size of a reply (default 80)")
    parser.add_argument("--compression", choices=COMPRESSION_NAMES, default="", help="of our replies (default none)")
    parser.add_argument("--pairs", type=int, default=3, help="measurements of each side (default 3)")
    return run(parser, _run, arguments)


def _run(options: argparse.Namespace) -> None:
    sizes = (options.megabytes, options.compression)
    names = (options.compression, DENSE) if options.compression else (OURS, FLOWER, NUMPY)
    peaks = {name: peak_megabytes(partial(_side, name, *sizes)) for name in names}
    sides = _sides(*sizes)
    setup = f"{_REPLIES} replies of one array, {options.megabytes:g} MB of float32"
    ours = options.compression or OURS
    for clock in (time.process_time, time.perf_counter):
        measurements = alternate({name: partial(_seconds, clock, work) for name, work in sides.items()}, options.pairs)
        show(compare(f"aggregation [s], {clock.__name__}", measurements, ours, setup, peaks), options.json)


def _sides(megabytes: float, compression: str) -> dict[str, Callable[[], object]]:
    """The work of each side on the same random replies."""
    rng = np.random.default_rng(0)
    decoded = [{"layer.weight": rng.random(int(megabytes * 1e6 / _FLOAT32), np.float32)} for _ in range(_REPLIES)]
    records = [to_record(reply) for reply in decoded]
    if compression:
        kind = compression_by_name(compression)
        contents = [_compressed(reply, kind) for reply in decoded]
        return {compression: partial(compressed, contents, decoded[0], kind), DENSE: partial(ours, records, decoded[0])}
    return {OURS: partial(ours, records, decoded[0]), FLOWER: partial(flower, records), NUMPY: partial(plain, decoded)}


def _compressed(reply: Arrays, kind: Compression) -> RecordDict:
    """A reply whose update is its own values, compressed."""
    records = kind.encode({name: array.astype(np.float64) for name, array in reply.items()})
    return RecordDict({wire.ARRAYS: to_record({}), **{name: to_record(record) for name, record in records.items()}})


def _side(name: str, megabytes: float, compression: str) -> Callable[[], object]:
    return _sides(megabytes, compression)[name]


def ours(records: Sequence[ArrayRecord], expected: Arrays) -> ArrayRecord:
    """Decode, check and average the replies, as :class:`fedapps.strategies.base.BaseStrategy` does."""
    mean = StreamingMean()
    for record in records:
        mean.add(read_arrays(record, expected), 1.0)
    result = mean.result()
    del mean
    return to_record(result)


def compressed(contents: Sequence[RecordDict], sent: Arrays, kind: Compression) -> ArrayRecord:
    """As :func:`ours`, of compressed replies."""
    mean = StreamingMean()
    for content in contents:
        mean.add(shared_arrays(content, sent, kind, Buffers()), 1.0)
    result = mean.result()
    del mean
    return to_record(result)


def flower(records: Sequence[ArrayRecord]) -> ArrayRecord:
    """Average the replies with Flower's function."""
    metrics = MetricRecord({"num-examples": 1.0})
    return aggregate_arrayrecords([RecordDict({"a": record, "m": metrics}) for record in records], "num-examples")


def plain(replies: Sequence[Arrays]) -> Arrays:
    """Average decoded replies in their own dtype."""
    total = {name: array / len(replies) for name, array in replies[0].items()}
    for reply in replies[1:]:
        for name, array in reply.items():
            total[name] += array / len(replies)
    return total


def _seconds(clock: Callable[[], float], work: Callable[[], object]) -> float:
    begun = clock()
    work()
    return clock() - begun


if __name__ == "__main__":
    sys.exit(main())
