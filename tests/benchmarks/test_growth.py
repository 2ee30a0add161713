"""The growth benchmark: a table of costs for each size, and a picture of them."""

import pytest

from benchmarks.growth import main

pytestmark = pytest.mark.subprocesses


@pytest.mark.slow
def test_a_row_for_each_size_and_a_picture(tmp_path, capsys):
    picture = tmp_path / "growth.png"
    sizes = ["--nodes", "4", "40", "--parameters", "100", "5000", "--rounds", "20"]
    assert main([*sizes, "--plot", str(picture)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["nodes", "profiles", "[s]", "round", "[s]", "memory", "[MB]"]
    rows = [line.split() for line in lines if line[0].isdigit()]
    assert [row[0] for row in rows] == ["4", "40", "100", "5000", *map(str, range(1, 21, 2))]
    assert all(float(row[1]) >= 0 for row in rows)
    assert picture.read_bytes().startswith(b"\x89PNG")
