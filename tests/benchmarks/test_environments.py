"""Environments of packages for the other sides of benchmarks."""

import subprocess
from pathlib import Path

import pytest

from benchmarks import environments


def test_a_complete_environment_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def call(requirement: str, command: list[str]) -> None:
        calls.append(command)
        if "venv" in command:
            (
                Path(command[-1]) / "lib" / f"python{environments.sysconfig.get_python_version()}" / "site-packages"
            ).mkdir(parents=True)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(environments, "_call", call)
    first = environments.environment("pfl==0.6.0")
    assert [command[-1] for command in calls[1:]] == ["pfl==0.6.0"]
    assert environments.environment("pfl==0.6.0") == first
    assert len(calls) == 2
    assert environments.environment("pfl==0.7.0") != first


def test_an_interpreter_that_is_missing_or_does_not_start_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(RuntimeError, match="python9: no such interpreter on the PATH"):
        environments.environment("blazefl", "python9")
    (broken := tmp_path / "python9").write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(RuntimeError, match="python9: no such interpreter"):
        environments.environment("blazefl", "python9")


def test_an_environment_that_cannot_be_built_shows_the_last_lines_of_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "ERROR: No matching distribution found for pfl")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(environments.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(RuntimeError, match=r"no environment with pfl: .*\n.*No matching distribution found for pfl"):
        environments.environment("pfl")
