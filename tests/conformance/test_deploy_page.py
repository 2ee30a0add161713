"""The pages on deployment: the commands that they call exist, and so do the files that they name."""

import re
import shlex
import ssl
from pathlib import Path
from typing import Any

import pytest

from fedapps.cli.parser import command_parser
from fedapps.deployment.credentials import make_certificates

DEPLOY = Path(__file__).parents[2] / "deploy"
PAGES = (DEPLOY / "README.md", DEPLOY.parent / "docs" / "deployment.md")


def commands(program: str) -> list[list[str]]:
    """The lines of the pages' code blocks that call ``program``, in words."""
    parts = [part for page in PAGES for part in re.split(r"^```", page.read_text(), flags=re.MULTILINE)[1::2]]
    blocks = [part for part in parts if part.startswith("\n")]  # those of another language say so
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    found = (shlex.split(line, comments=True) for line in lines if program in line and not line.startswith("#"))
    return [words[index + 1 :] for words in found for index in [locate(words, program)] if index is not None]


def locate(words: list[str], program: str) -> int | None:
    """Where the words name ``program``; fedapps is called as a module."""
    places = (index for index, word in enumerate(words) if word.rpartition("/")[2] == program)
    return next((index for index in places if program != "fedapps" or words[index - 1] == "-m"), None)


def test_the_pages_call_fedapps_as_it_is():
    found = commands("fedapps")
    assert {words[0] for words in found if words} >= {"keys", "check-node", "deploy"}
    for words in found:
        if words:
            command_parser().parse_args(words)


def test_the_pages_call_flwr_as_it_is():
    from flwr.cli.app import app
    from typer.main import get_command

    group: Any = get_command(app)
    found = commands("flwr")
    assert {words[0] for words in found} >= {"ls", "log", "stop", "supernode"}
    for words in found:
        command, rest = group, list(words)
        while hasattr(command, "commands"):
            command = command.commands[rest.pop(0)]
        command.make_context("flwr", [word.replace("NODE-ID", "1").replace("RUN-ID", "1") for word in rest])


def test_the_page_names_every_file_and_only_files_that_exist():
    text = (DEPLOY / "README.md").read_text()
    for path in DEPLOY.iterdir():
        assert path.name in text or path.name in ("README.md", "Dockerfile.dockerignore"), path.name
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("https://") or (DEPLOY / target).exists(), target


def test_the_web_server_before_nodes_that_speak_http_passes_on_theirs_alone():
    site = (DEPLOY / "nginx.conf").read_text()
    settings = dict(re.findall(r"^(\w+)=(.*)$", (DEPLOY / "superlink.env.example").read_text(), re.MULTILINE))
    assert re.findall(r"listen (\S+) ssl;", site) == [settings["FLEET_PORT"]]
    assert re.findall(r"location (\S+) {\s+proxy_pass (\S+);", site) == [
        ("/v1/fleet/", f"https://127.0.0.1:{settings['CONTROL_PORT']}")
    ]
    assert set(re.findall(r"(/\S+)/superlink\.", site)) == {settings["CERTIFICATES"]}


def test_nodes_with_two_authorities_in_a_file_trust_both(tmp_path):
    """How a server's certificate is replaced: the page has nodes trust the old and the new one for a while."""
    old, new = (make_certificates(tmp_path / name) for name in ("old", "new"))
    both = tmp_path / "ca.crt"
    both.write_bytes(old.ca.read_bytes() + new.ca.read_bytes())
    for trusted, presented, good in ((both, old, True), (both, new, True), (old.ca, new, False)):
        server, client = (ssl.SSLContext(kind) for kind in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT))
        server.load_cert_chain(presented.certificate, presented.key)
        client.load_verify_locations(trusted)
        if good:
            shake_hands(server, client)
        else:
            with pytest.raises(ssl.SSLCertVerificationError):
                shake_hands(server, client)


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """In memory, without a socket."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    there = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [here, there]
    for _ in range(10):
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                pass
        if not waiting:
            return
    raise AssertionError("the handshake does not end")
