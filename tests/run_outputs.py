"""The outputs of a run, for comparison with those of another run."""

from safetensors.numpy import load_file
from toys import same_bits

from fedapps.runs.checkpoints import read_snapshot

#: Messages of a resumed run name one more attempt, in a few bytes.
_VARYING = {"seconds": 0.0, "bytes_down": 0, "train_bytes_down": 0}


def outputs_of(folder):
    """Snapshots, private states and metrics of a run, without times, sizes of messages and the label of the run."""
    snapshots = {p.relative_to(folder.path): read_snapshot(p) for p in folder.path.glob("checkpoints/*/*.safetensors")}
    states = {p.relative_to(folder.path).parts[2:]: load_file(p) for p in folder.path.glob("nodes/*/*/*/*.safetensors")}
    lines = [{**row, **_VARYING} for row in folder.lines("metrics.jsonl")]
    return snapshots, states, lines, folder.lines("nodes.jsonl")


def assert_same(left, right):
    for mine, other in zip(outputs_of(left)[:2], outputs_of(right)[:2], strict=True):
        assert mine.keys() == other.keys() != set()
        for name, one in mine.items():
            two = other[name]
            if hasattr(one, "facts"):
                assert (one.round, one.facts, one.history) == (two.round, two.facts, two.history)
                one, two = one.arrays, two.arrays
            assert same_bits(one, two), name
    assert outputs_of(left)[2:] == outputs_of(right)[2:]
