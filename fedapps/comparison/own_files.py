"""Files that differ between the runs of a comparison: ``{method}`` and ``{seed}`` in their paths."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedapps.config.keys import path_keys


def filled(flat: Mapping[str, Any], method: str, seed: int) -> dict[str, Any]:
    """The flat run config with the label of a method and a seed in its paths."""
    own = _patterns(flat)
    return {**flat, **{key: _filled(pattern, method, seed) for key, pattern in own.items()}}


def check_own_files(flat: Mapping[str, Any], methods: Sequence[str], seeds: Sequence[int]) -> None:
    """Raise ``ValueError`` if a run of some method and seed has no file."""
    for key, pattern in _patterns(flat).items():
        for seed in seeds:
            for method in methods:
                paths = [_filled(path, method, seed) for path in pattern.split(",")]
                if missing := [path for path in paths if not Path(path).exists()]:
                    raise ValueError(
                        f"{key} = {pattern!r}: {missing[0]} does not exist, which {method} with seed {seed} needs; "
                        "compare methods and seeds that have this file, or correct the path"
                    )


def _patterns(flat: Mapping[str, Any]) -> dict[str, str]:
    """The paths that differ between runs, by key."""
    return {
        key: str(flat[key])
        for key in sorted(path_keys() & flat.keys())
        if any(name in str(flat[key]) for name in ("{method}", "{seed}"))
    }


def _filled(pattern: str, method: str, seed: int) -> str:
    return pattern.replace("{method}", method).replace("{seed}", str(seed))
