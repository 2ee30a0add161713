"""The section on simulated time: the use of a fleet by hand, and what the page shows of it."""

import json

import pytest
from report_pages import page, round_line, section, write_finished_run, write_lines

from fedapps.base.errors import ReportError
from fedapps.base.report.metrics import describe
from fedapps.report.run_data import read_run, slowest
from fedapps.report.sections.simulated_time import fleet_use

METRIC = describe("test.elbo")


def train_line(node, number, seconds, staleness=0):
    line = {"method": "sfl", "round": number, "node": node, "phase": "train", "num_examples": 1, "metrics": {}}
    return line | {"seconds": seconds, "staleness": staleness}


def evaluate_line(node, elbo):
    return train_line(node, 3, None) | {"phase": "evaluate", "metrics": {"test.elbo": elbo}}


@pytest.fixture
def timed(tmp_path):
    """Three rounds of sfl on three nodes that take 100 s; node c never trains."""
    folder = write_finished_run(tmp_path)
    write_lines(folder / "metrics.jsonl", [round_line("sfl", number, clock=100 * number / 3) for number in (1, 2, 3)])
    nodes = [train_line("a", 1, 30), train_line("a", 2, 20, 1), train_line("a", 3, 20), train_line("b", 2, 80, 3)]
    nodes += [evaluate_line(node, elbo) for node, elbo in (("a", 0.1), ("b", 0.2), ("c", 0.6))]
    for line in nodes[4:]:
        del line["seconds"]
    write_lines(folder / "nodes.jsonl", nodes)
    (folder / "devices.csv").write_text("device,speed,up,down\nc,9,1,\na,1,1,4\nb,2,1,4\n")
    return folder


def test_the_use_of_a_fleet_by_hand(timed):
    use = fleet_use(read_run(timed), "sfl", METRIC)
    assert use.seconds == 100
    assert use.busy == {"a": pytest.approx(0.7), "b": pytest.approx(0.8), "c": 0}
    assert use.participation == [0.75, 0.25, 0]
    assert (use.staleness, use.most_stale) == (1, 3)
    assert (use.slowest, use.everyone) == (0.6, pytest.approx(0.3))


def test_a_node_that_replies_twice_before_a_step_counts_twice(timed):
    with (timed / "nodes.jsonl").open("a") as file:
        file.write(2 * (json.dumps(train_line("b", 3, 5)) + "\n"))
    assert fleet_use(read_run(timed), "sfl", METRIC).participation == [0.5, 0.5, 0]


def test_the_slowest_tenth_is_at_least_one_node():
    assert slowest({"a": 1.0, "b": 3.0, "c": 2.0}) == ["b"]
    assert slowest({f"{n:02}": float(n) for n in range(25)}) == ["24", "23", "22"]
    assert slowest({}) == []


def test_the_page_shows_who_was_waited_for(timed):
    shown = section(page(timed), "simulated_time")
    assert "1 min 40 s" in shown
    assert "50 %" in shown
    assert "mean of nodes" in shown, "not weighted, unlike the final metric"
    assert "share of replies by the speed of nodes; slowest tenth: sfl 0.0 %" in shown
    assert "against simulated time" in shown


def test_a_damaged_file_of_devices(timed):
    (timed / "devices.csv").write_text("device,speed\na,fast\n")
    with pytest.raises(ReportError, match=r"devices\.csv: not a CSV file with the columns device and speed"):
        read_run(timed)


def test_the_time_of_a_reply_that_came_too_late_counts(timed):
    late = {"node": "c", "round": 1, "seconds": 60.0}
    lines = [round_line("sfl", number, clock=100 * number / 3, dropped=[late] * (number == 3)) for number in (1, 2, 3)]
    write_lines(timed / "metrics.jsonl", lines)
    assert fleet_use(read_run(timed), "sfl", METRIC).busy["c"] == pytest.approx(0.6)
