"""The growth benchmark: a table of costs for each size, and a picture of them."""

import pytest

from benchmarks.growth import main

pytestmark = pytest.mark.subprocesses


@pytest.mark.slow
def test_a_row_for_each_size_and_a_picture(tmp_path, capsys):
    picture = tmp_path / "growth.png"
    sizes = ["--nodes", "4", "40", "--cohort", "2", "--parameters", "100", "5000", "--rounds", "20"]
    assert main([*sizes, "--plot", str(picture)]) == 0
    nodes, parameters, rounds = capsys.readouterr().out.strip().split("\n\n")
    assert nodes.splitlines()[0].split() == ["nodes", "profiles", "[s]", "round", "[s]", "memory", "[MB]"]
    assert [line.split()[0] for line in nodes.splitlines()[2:]] == ["4", "40"]
    assert [line.split()[0] for line in parameters.splitlines()[2:]] == ["100", "5000"]
    assert [line.split()[0] for line in rounds.splitlines()[2:]] == [str(number) for number in range(1, 21, 2)]
    assert all(float(line.split()[1]) >= 0 for table in (nodes, parameters, rounds) for line in table.splitlines()[2:])
    assert picture.read_bytes().startswith(b"\x89PNG")
