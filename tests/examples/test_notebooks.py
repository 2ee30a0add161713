"""The notebooks of ``examples/`` run, and their kept outputs show what they show when they run."""

import os
from pathlib import Path
from tempfile import gettempdir

import nbformat
import pytest
from jupyter_client import KernelManager
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.fixture(scope="module")
def kernel():
    """A kernel for all notebooks, because each kernel would import torch and Flower once more."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(env=os.environ | {"PYTHONPATH": str(ROOT)})
    yield manager
    manager.shutdown_kernel(now=True)


def begin(folder):
    """A cell that enters an empty folder, which is also the home, and forgets all names of an earlier notebook."""
    return nbformat.v4.new_code_cell(
        f"import os\nos.chdir({folder!r})\nos.environ['HOME'] = {folder!r}\n%reset_selective -f ."
    )


def kinds(cell):
    """The kinds of data in the outputs of a cell, without what it prints."""
    return [sorted(output["data"]) for output in cell.get("outputs", []) if "data" in output]


def test_each_system_has_a_notebook():
    assert [path.stem for path in NOTEBOOKS] == ["driving", "quickstart", "social", "text", "use", "vln", "vpr"]


@pytest.mark.slow
@pytest.mark.subprocesses
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_gives_outputs_like_the_kept_ones(path, kernel, tmp_path):
    kept = nbformat.read(path, as_version=4)
    nbformat.validate(kept)
    book = nbformat.read(path, as_version=4)
    book.cells.insert(0, begin(str(tmp_path)))
    NotebookClient(book, km=kernel, timeout=900).execute()  # raises what a cell raises
    assert [kinds(cell) for cell in book.cells[1:]] == [kinds(cell) for cell in kept.cells]
    assert any("text/html" in kind for cell in kept.cells for output in kinds(cell) for kind in output)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_kept_output_names_no_folder_of_a_machine(path):
    text = path.read_text()
    folders = (ROOT.parent, Path.home(), Path(gettempdir()))
    assert not [folder for folder in folders if f"{folder}/" in text and folder != folder.parent]
