"""What rogue nodes send: each fault spoils the records of an honest reply. Imports nothing but Flower and NumPy, since
it also stands in a Flower app of its own."""

import io
import struct
from collections.abc import Callable, Mapping

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

Spoil = Callable[[RecordDict], RecordDict]
MEGABYTE = 1 << 20


def npy(header: str, data: bytes = b"") -> bytes:
    """A file in NumPy's format with such a header, however false."""
    encoded = header.encode("latin1") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(encoded)) + encoded + data


def header(descr: str = "'<f4'", shape: str = "(2,)", fortran: bool = False) -> str:
    """What stands in one."""
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}"


def serialised(data: bytes, stype: str = "numpy.ndarray") -> Array:
    """Bytes that say they are an array."""
    return Array(dtype="float32", shape=(2,), stype=stype, data=data)


def saved(array: np.ndarray, **files: np.ndarray) -> bytes:
    """An array as ``np.save`` writes it, pickled where it must be, or ``files`` as a zip archive."""
    stream = io.BytesIO()
    if files:
        np.savez(stream, **files)
    else:
        np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def with_bytes(data: bytes, stype: str = "numpy.ndarray", record: str = "arrays") -> Spoil:
    """Send these bytes in place of the first array of a record."""

    def spoil(content: RecordDict) -> RecordDict:
        arrays = content[record]
        content[record] = ArrayRecord({**arrays, next(iter(arrays)): serialised(data, stype)})
        return content

    return spoil


def with_arrays(change: Callable[[np.ndarray], np.ndarray], record: str = "arrays") -> Spoil:
    """Change every array of a record."""

    def spoil(content: RecordDict) -> RecordDict:
        changed = {name: Array(np.asarray(change(array.numpy()))) for name, array in content[record].items()}
        content[record] = ArrayRecord(changed)
        return content

    return spoil


def with_more(arrays: Mapping[str, Array]) -> Spoil:
    """Send more arrays."""

    def spoil(content: RecordDict) -> RecordDict:
        content["arrays"] = ArrayRecord({**content["arrays"], **arrays})
        return content

    return spoil


def with_metrics(**metrics: object) -> Spoil:
    """Send further metrics, or others, with hyphens for underscores; ``None`` leaves one out."""

    def spoil(content: RecordDict) -> RecordDict:
        changed = {**content["metrics"], **{name.replace("_", "-"): value for name, value in metrics.items()}}
        content["metrics"] = MetricRecord({name: value for name, value in changed.items() if value is not None})
        return content

    return spoil


def without(record: str) -> Spoil:
    """Leave a record out."""
    return lambda content: RecordDict({name: value for name, value in content.items() if name != record})


def with_record(name: str, record: ArrayRecord | MetricRecord | ConfigRecord) -> Spoil:
    """Send one more record, or another."""

    def spoil(content: RecordDict) -> RecordDict:
        content[name] = record
        return content

    return spoil


def crash(content: RecordDict) -> RecordDict:
    """Fail with a word of a megabyte, an escape sequence and an end that says why."""
    raise RuntimeError("x" * MEGABYTE + "\x1b[2J the lens is dirty")


FLOATS = np.zeros(2, np.float32)
#: Each fault of metrics, which train and evaluate replies have alike, with words of the reason for the refusal.
METRIC_FAULTS: dict[str, tuple[Spoil, str]] = {
    "count beyond counting": (with_metrics(**{"loss.count": 1e100}), "2^53"),
    "thousands of metrics": (with_metrics(**{f"m{index}": 1.0 for index in range(5000)}), "at most 1000"),
    "endless list": (with_metrics(losses=[1.0] * 110_000), "at most 100000"),
    "metric with a name of a megabyte": (with_metrics(**{"m" * 2 * MEGABYTE: 1.0}), "bytes: at most"),
    "metric with a long name": (with_metrics(**{"m" * 1000: 1.0}), "printable name"),
    "metric with a line end": (with_metrics(**{"a\nb": 1.0}), "printable name"),
    "the server's own metric": (with_metrics(**{"server.loss": 0.0}), "'server.'"),
    "1e300 examples": (with_metrics(num_examples=1e300), "2^53"),
    "endless examples": (with_metrics(num_examples=float("inf")), "not finite"),
    "negative examples": (with_metrics(num_examples=-3), "not positive"),
    "a list of examples": (with_metrics(num_examples=[3, 4]), "not a number"),
    "no examples": (with_metrics(num_examples=None), "num-examples is missing"),
    "no metrics": (without("metrics"), "expected one MetricRecord"),
    "two records of metrics": (with_record("more", MetricRecord({"num-examples": 1})), "got 2"),
    "a crash": (crash, "the lens is dirty"),
}
#: Each fault of a record of arrays, which must have the form of float arrays that were sent.
ARRAY_FAULTS: dict[str, tuple[Callable[[str], Spoil], str]] = {
    "bomb": (lambda r: with_bytes(npy(header(shape="(1099511627776,)"), b"\0" * 8), record=r), "its header states"),
    "overflowing shape": (lambda r: with_bytes(npy(header(shape=f"(0, {2**70})")), record=r), "cannot be decoded"),
    "broken header": (lambda r: with_bytes(npy("{("), record=r), "cannot be decoded"),
    "indented header": (lambda r: with_bytes(npy("\t x\n y"), record=r), "cannot be decoded"),
    "nested header": (lambda r: with_bytes(npy("-" * 9000 + "1"), record=r), "cannot be decoded"),
    "too many bytes": (lambda r: with_bytes(npy(header(), b"\0" * 5000), record=r), "but it has 5000"),
    "pickle": (lambda r: with_bytes(saved(np.array([{}, 1], dtype=object)), record=r), "Python objects"),
    "zip": (lambda r: with_bytes(saved(FLOATS, a=FLOATS), record=r), "cannot be decoded"),
    "nothing": (lambda r: with_bytes(b"", record=r), "cannot be decoded"),
    "unknown stype": (lambda r: with_bytes(saved(FLOATS), "torch.tensor", r), "serialised as 'torch.tensor'"),
    "other byte order": (lambda r: with_arrays(lambda a: a.astype(a.dtype.newbyteorder(">")), r), "is >f4"),
    "float64": (lambda r: with_arrays(lambda a: a.astype(np.float64), r), "is float64"),
    "shape": (lambda r: with_arrays(lambda a: a[None], r), "shapes differ"),
    "NaN": (lambda r: with_arrays(lambda a: a * np.nan, r), "not finite"),
    "huge values": (lambda r: with_arrays(lambda a: a * 0 + np.float32(3e38), r), "too far from"),
    "huge arrays": (lambda r: with_arrays(lambda a: np.zeros(MEGABYTE // 2, np.float32), r), "bytes: at most"),
    "other record": (lambda r: with_record(r, ConfigRecord({"w": 1})), "ArrayRecord"),
    "no record": (without, "ArrayRecord"),
}
TRAIN_FAULTS: dict[str, tuple[Spoil, str]] = {
    **METRIC_FAULTS,
    **{name: (spoil("arrays"), reason) for name, (spoil, reason) in ARRAY_FAULTS.items()},
    "many arrays": (with_more(dict.fromkeys((f"a{index}" for index in range(2000)), Array(FLOATS))), "and 1995 more"),
    "a thousand arrays": (with_more(dict.fromkeys(map(str, range(1500)), Array(np.zeros(200)))), "bytes: at most"),
    "name of a megabyte": (with_more({"w" * 900_000: Array(FLOATS)}), "unexpected www"),
    "more examples than there are": (with_metrics(num_examples=1000), "num-examples is 1000, but the profile states"),
}
