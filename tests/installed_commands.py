"""Console commands of a package that exists for one test only."""

import os
from collections.abc import Sequence
from pathlib import Path


def environment_with(folder: Path, module: str, source: str, entries: Sequence[str]) -> dict[str, str]:
    """This environment, in which a module and its commands are installed.

    Parameters
    ----------
    folder : Path
        Where to install them.
    module, source : str
        Name and text of the module.
    entries : sequence of str
        Entry points such as ``"flwr = module:main"``.
    """
    metadata = folder / f"{module}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / f"{module}.py").write_text(source)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("\n".join(["[console_scripts]", *entries, ""]))
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
