"""The comparison of paces on a fleet, from rounds as they are recorded."""

from benchmarks.slow_nodes import PACES, compared


def rounds(seconds, replies, losses):
    return [{"seconds": float(seconds), "replies": replies, "train": {"loss": loss}} for loss in losses]


def test_paces_are_compared_at_as_many_updates_and_at_the_same_loss():
    waits, early, steps = PACES
    rows = compared(
        {
            waits: rounds(10, 6, [4.0, 3.0, 2.0, 1.0]),
            early: rounds(3, 5, [4.0, 3.5, 2.5, 2.0]),
            steps: rounds(1, 3, [4.0, 3.9, 3.8, 3.7]),
        }
    )
    # FedBuff has the fewest updates, 12; the loss in the middle of FedAvg's run is 2.
    assert [(row["updates"], row["seconds"], row["seconds to the loss"]) for row in rows] == [
        (12, 20.0, 30.0), (15, 9.0, 12.0), (12, 4.0, None),
    ]  # fmt: skip
