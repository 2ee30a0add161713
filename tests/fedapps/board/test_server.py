"""The server of the board: who may read what, and the events of a run that goes on."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from report_pages import round_line, write_lines
from starlette.testclient import TestClient

from fedapps.board.server import board_app, is_loopback
from fedapps.cli.commands import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = tmp_path / "runs" / "lane swap"
    run.mkdir(parents=True)
    (run / "config.toml").write_text('task = "driving"\nmethods = "local"\nrounds = 3\n')
    (run / "label").write_text("x")
    (run / "report.html").write_text("<script>the report</script>")
    (tmp_path / "secret").write_text("secret")
    return tmp_path / "runs"


@pytest.fixture
def local(folder: Path) -> Iterator[TestClient]:
    with TestClient(board_app(folder), base_url="http://127.0.0.1:8765") as client:
        yield client


@pytest.mark.parametrize("path", ["/", "/board.js", "/board.css", "/reports/lane%20swap", "/nothing"])
def test_every_answer_forbids_scripts_of_others_and_frames(local: TestClient, path: str) -> None:
    headers = local.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "http:" not in policy
    assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
    if path.startswith("/reports"):
        assert "sandbox allow-scripts;" in policy, "scripts of a report cannot reach the board"
    else:
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy


def test_the_page_loads_nothing_from_elsewhere(local: TestClient) -> None:
    for path in ("/", "/board.js", "/board.css"):
        text = local.get(path).text.replace("http://www.w3.org/2000/svg", "")
        assert "//" not in text.replace("        // ", "").replace("\n// ", "\n").replace("  // ", " ")


@pytest.mark.parametrize(
    "path", ["/../secret", "/reports/../../secret", "/reports/%2e%2e/secret", "/reports/..%2fsecret"]
)
def test_files_outside_the_folder_are_not_served(local: TestClient, path: str) -> None:
    assert local.get(path).status_code == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_the_board_is_read_only(local: TestClient, method: str) -> None:
    assert {local.request(method, path).status_code for path in ("/", "/events", "/reports/lane%20swap")} == {405}


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "10.0.0.1"])
def test_requests_for_another_host_are_refused(local: TestClient, host: str) -> None:
    for path in ("/", "/events", "/reports/lane%20swap"):
        assert local.get(path, headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost:8765", "127.0.0.1:1", "[::1]:8765"])
def test_the_loopback_may_read(local: TestClient, host: str) -> None:
    assert local.get("/", headers={"host": host}).status_code == 200


def test_with_a_token_nothing_is_answered_without_it(folder: Path) -> None:
    app = board_app(folder, "the-token")
    for path in ("/", "/events", "/reports/lane%20swap", "/?token=", "/?token=wrong"):
        assert TestClient(app).get(path).status_code == 401
    assert TestClient(app, cookies={"fedapps-board": "wrong"}).get("/").status_code == 401
    client = TestClient(app, base_url="http://board.example")
    answer = client.get("/?token=the-token", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert "samesite=strict" in answer.headers["set-cookie"].lower()
    assert client.get("/reports/lane%20swap").text == "<script>the report</script>"


@pytest.mark.parametrize(
    ("host", "yes"),
    [
        *((host, True) for host in ("127.0.0.1", "127.8.0.1", "::1", "localhost")),
        *((host, False) for host in ("0.0.0.0", "::", "192.168.0.2", "example.org", "")),
    ],
)
def test_what_other_machines_reach_is_not_the_loopback(host: str, yes: bool) -> None:
    assert is_loopback(host) is yes


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["nowhere"], "nowhere: no such folder; give the folder that contains the run folders"),
        ([".", "--port", "99999"], "--port 99999: .*; choose another one, or --port 0"),
        ([".", "--host", "no.such.host.invalid"], "--host no.such.host.invalid --port 8765: "),
    ],
)
def test_bad_arguments_are_refused(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["board", *options]) == 2
    assert re.search(said, capsys.readouterr().err)


@pytest.mark.slow
@pytest.mark.subprocesses
def test_events_follow_a_run_and_an_interruption_ends_the_board(folder: Path) -> None:
    command = [sys.executable, "-m", "fedapps", "board", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            address = server.stdout.readline().split()[-1]
            with httpx.stream("GET", f"{address}events", timeout=60, trust_env=False) as stream:
                events = (json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: "))
                assert next(events)["runs"][0]["methods"] == []
                for rounds in (1, 2):
                    lines = [round_line("local", number) for number in range(1, rounds + 1)]
                    write_lines(folder / "lane swap" / "metrics.jsonl", lines)
                    seen = next(event for event in events if event["runs"][0]["methods"])["runs"][0]["methods"][0]
                    while seen["rounds"] < rounds:
                        seen = next(events)["runs"][0]["methods"][0]
                    assert len(seen["points"]) == rounds
                server.send_signal(signal.SIGINT)
                assert not list(events)
            assert server.wait() == 0
            assert server.stderr
            assert server.stderr.read() == ""
        finally:
            server.kill()
