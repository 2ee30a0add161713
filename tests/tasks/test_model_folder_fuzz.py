"""Model folders that anybody may have written: a model is read and answers, or an error of ours names the file."""

import contextlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from damaged_files import VALUES, bounded, changed_json, damaged, write
from fedapps.tasks.model_folder import ModelFolderError
from fedapps.tasks.trained import TrainedModel
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_folders import MODELS, files_of, use

from fedapps.base.errors import DataError
from fedapps.registry.tasks import task_class

EDGES = [
    0,
    1,
    -1,
    2,
    3,
    7,
    2**20,
    2**31,
    2**40,
    2**62,
    0.5,
    1e300,
    -1e-9,
    "",
    "x",
    "relu",
    True,
    None,
    [],
    {},
    [0],
    ["a"],
]


def keys_in(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all members of a value of JSON."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, member in members for path in ((*at, key), *keys_in(member, (*at, key)))]


def one_value(content: bytes, draw: Any) -> bytes:
    """Another value, or none, for one member of a config."""
    config = json.loads(content)
    path = draw(st.sampled_from(keys_in(config)))
    table = config
    for key in path[:-1]:
        table = table[key]
    if draw(st.integers(0, 5)):
        table[path[-1]] = draw(st.sampled_from(EDGES) | st.sampled_from(VALUES) | st.integers(-(2**65), 2**65))
    else:
        del table[path[-1]]
    return json.dumps(config).encode()


def other_header(content: bytes, draw: Any) -> bytes:
    """Another header of a safetensors file, with its right length."""
    (length,) = struct.unpack("<Q", content[:8])
    header = content[8 : 8 + length]
    changed = one_value(header, draw) if draw(st.booleans()) else changed_json(header, draw)
    return struct.pack("<Q", len(changed)) + changed + content[8 + length :]


def spoiled(files: dict[str, bytes], draw: Any) -> dict[str, bytes]:
    """Damage to the files of a model folder."""
    changed = dict(files)
    kind = draw(st.sampled_from(("config", "config", "config", "header", "any", "any", "swap", "other")))
    if kind == "config":
        for _ in range(draw(st.integers(1, 3))):
            changed["config.json"] = one_value(changed["config.json"], draw)
    elif kind == "header":
        name = draw(st.sampled_from(sorted(name for name in changed if name.endswith(".safetensors"))))
        changed[name] = other_header(changed[name], draw)
    elif kind == "any":
        return damaged(files, draw)
    elif kind == "swap":
        one, other = (draw(st.sampled_from(sorted(changed))) for _ in range(2))
        changed[one], changed[other] = changed[other], changed[one]
    else:  # a file of another model
        theirs = files_of(draw(st.sampled_from(sorted(MODELS))))
        name = draw(st.sampled_from(sorted(theirs)))
        changed[name] = theirs[name]
    return changed


@contextlib.contextmanager
def naming(folder: Path) -> Iterator[None]:
    """Only an error of model folders that names a file is one of ours."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, ModelFolderError) or str(folder) not in str(error):
            raise AssertionError(f"{type(error).__name__}: {error}") from error
        raise


@pytest.mark.parametrize("name", MODELS)
def test_the_folders_are_whole(tmp_path, name):
    use(TrainedModel.read(write(tmp_path, files_of(name)), task_class))


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_malformed_folder_ends_in_an_error_that_names_the_file(tmp_path_factory, name, data):
    folder = tmp_path_factory.getbasetemp() / "model folders" / name
    folder.mkdir(parents=True, exist_ok=True)
    write(folder, spoiled(files_of(name), data.draw))
    with bounded(), contextlib.suppress(DataError):
        with naming(folder):
            model = TrainedModel.read(folder, task_class)
        use(model)
