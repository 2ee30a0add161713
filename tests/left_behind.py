"""All that a run left behind, to be compared with what another one did."""

from safetensors.numpy import load_file
from toys import same_bits

from fedapps.runs.checkpoints import read_snapshot


def left_behind(folder):
    """All that a run computed: snapshots, private states, lines. Times and the run's label differ by nature."""
    snapshots = {p.relative_to(folder.path): read_snapshot(p) for p in folder.path.glob("checkpoints/*/*.safetensors")}
    states = {p.relative_to(folder.path).parts[2:]: load_file(p) for p in folder.path.glob("nodes/*/*/*/*.safetensors")}
    lines = [{**row, "seconds": 0.0} for row in folder.lines("metrics.jsonl")]
    return snapshots, states, lines, folder.lines("nodes.jsonl")


def assert_same(left, right):
    for mine, other in zip(left_behind(left)[:2], left_behind(right)[:2], strict=True):
        assert mine.keys() == other.keys() != set()
        for name, one in mine.items():
            two = other[name]
            if hasattr(one, "facts"):
                assert (one.round, one.facts) == (two.round, two.facts)
                one, two = one.arrays, two.arrays
            assert same_bits(one, two), name
    assert left_behind(left)[2:] == left_behind(right)[2:]
