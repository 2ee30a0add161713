"""Reading run folders: repeated rounds, and malformed or missing files."""

import re
from pathlib import Path

import pytest
from report_pages import round_line, write_finished_run, write_lines

from fedapps.report import ReportError, read_run, write_report
from fedapps.report.run_data import configured_methods
from fedapps.report.sections.headline import role_of


def test_a_display_name_stands_in_place_of_the_label(tmp_path: Path) -> None:
    folder = write_finished_run(tmp_path)
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(config.replace("local, sfl,apfl", "local as Alone, sfl, apfl as 'Ours, tuned'"))
    run = read_run(folder)
    assert run.methods == ("Alone", "sfl", "Ours, tuned")
    assert {record.method for record in (*run.rounds, *run.nodes)} == set(run.summary) == set(run.methods)
    assert run.labels == {"Alone": "local", "Ours, tuned": "apfl"}
    assert [role_of(run, method) for method in run.methods] == ["alone", "federated", "federated"]
    text = write_report(folder).read_text()
    assert "Ours, tuned" in text
    assert "apfl" not in text.replace("apfl as", "")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_finished_run(tmp_path)


def test_a_repeated_round_is_refused(folder: Path) -> None:
    write_lines(folder / "metrics.jsonl", [round_line("sfl", 1, seconds=s) for s in (1.0, 7.0)])
    with pytest.raises(ReportError, match="round 1 of sfl is recorded 2 times, because several processes wrote"):
        read_run(folder)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "metrics.jsonl",
            '{"method": "a", "round": 1}\n{"method": \n',
            r"metrics\.jsonl:2: not JSON: [^:]* at column 11; resume the run, which leaves such lines out",
        ),
        ("metrics.jsonl", '\n{"method": "a"}\n', r"metrics\.jsonl:2: 'round' is missing; resume the run"),
        ("metrics.jsonl", "[1]\n", r"metrics\.jsonl:1: the content is \[1\]; it must be a JSON object"),
        (
            "metrics.jsonl",
            '{"method": "a", "round": 1, "evaluate": {"x": "high"}}\n',
            r"metrics\.jsonl:1: 'evaluate.x' is 'high'; it must be a valid number; restore the file from a backup$",
        ),
        ("nodes.jsonl", '{"method": "a", "round": 1, "node": 7}\n', r"nodes\.jsonl:1: 'node' is 7; it must"),
        ("summary.json", '{\n"methods": 3}', r"summary\.json: 'methods' is 3; it must be a JSON object"),
        ("summary.json", '{\n\n"methods": }', r"summary\.json:3: not JSON"),
        ("config.toml", "rounds = \n", r"config\.toml: not TOML: .*line 1"),
        ("config.toml", "rounds = 'x'\n", r"config\.toml: rounds = 'x': must be a whole number at least 1; restore"),
        ("metrics.jsonl", "\xff\n", r"metrics\.jsonl:1: not UTF-8"),
    ],
)
def test_a_malformed_file_is_reported_with_its_place(folder: Path, file: str, content: str, message: str) -> None:
    (folder / file).write_bytes(content.encode("latin-1"))
    with pytest.raises(ReportError, match=f"^{re.escape(str(folder))}/{message}"):
        write_report(folder)
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize("missing", ["config.toml", "metrics.jsonl"])
def test_a_missing_file_is_reported(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(ReportError, match=f"no {missing}"):
        write_report(folder)


def test_methods_with_several_arguments_are_not_split_at_their_commas():
    config = {"methods": "fedavg, h-fl(groups='city,continent',intervals='5,15'), (broken"}
    assert configured_methods(config) == ["fedavg", "h-fl(groups='city,continent',intervals='5,15')"]
