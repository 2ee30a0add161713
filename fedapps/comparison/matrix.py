"""The runs of a comparison: every method with every seed, repeated for each value of a varied key."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapps.base.options import split_names
from fedapps.config.keys import all_keys, defaults, path_keys
from fedapps.config.parsing import Config, parse
from fedapps.config.recipe_files import Value, packaged_keys, recipe_comparison, recipe_name
from fedapps.config.run_config import RunConfig
from fedapps.launch.plan import JobPlan, check_key
from fedapps.registry.expressions import labels


@dataclass(frozen=True)
class Vary:
    """A key of the run config and the values for which the comparison is repeated."""

    key: str
    values: tuple[Value, ...]

    @classmethod
    def read(cls, text: str) -> "Vary | None":
        """Parse ``key=value,value,...``; ``None`` if the text is empty. Raises ``ValueError`` if it is malformed."""
        if not text:
            return None
        key, equals, values = text.partition("=")
        parsed = tuple(read_value(key.strip(), value.strip()) for value in values.split(",") if value.strip())
        if not equals or not key.strip() or not parsed:
            raise ValueError(f"--vary {text!r}: write it as key=value,value,...")
        return cls(key.strip(), parsed)


@dataclass(frozen=True)
class Plan(JobPlan):
    """All runs of a comparison.

    In the paths of files in ``config``, ``{method}`` and ``{seed}`` stand for those of each run.

    Parameters
    ----------
    vary : Vary, optional
        The varied key.
    """

    command = "compare"
    kind = "comparison"

    vary: Vary | None = None

    @classmethod
    def of(
        cls,
        recipe: Path,
        base: Mapping[str, Any],
        methods: Sequence[str],
        seeds: Sequence[int],
        engine: str,
        vary: Vary | None,
        seed_keys: Sequence[str] = (),
    ) -> "Plan":
        """The plan of a recipe.

        Parameters
        ----------
        recipe : Path
        base : mapping
            The flat run config of the recipe with all overrides.
        methods : sequence of str
            Those of ``base`` if empty.
        seeds : sequence of int
        engine : "inline" or "ray"
        vary : Vary or None
            ``None``: the key that the recipe varies, if any.
        seed_keys : sequence of str
            Those of the recipe if empty.

        Raises
        ------
        ValueError
            If a method or the varied key of the recipe is malformed.
        """
        named = ",".join(methods) or str(base.get("methods", RunConfig.methods))
        method_labels = tuple(labels(named))
        vary = vary or Vary.read(recipe_comparison(recipe, "vary"))
        follow = tuple(seed_keys) or split_names(recipe_comparison(recipe, "seed-keys"))
        return cls(recipe_name(recipe), base, method_labels, tuple(seeds), engine, vary, seed_keys=follow)

    def configs(self) -> list[Config]:
        """The validated config for each value of the varied key, or a single config.

        It names the files of the first method and seed.

        Raises
        ------
        ValueError
            If a method, the varied key or a value is invalid, mostly as ``ConfigError``, or a run has no file.
        """
        if self.vary and self.vary.key in self.seed_keys:
            raise ValueError(f"--seed-keys {self.vary.key}: this key is varied, so it cannot also be the seed")
        for value in self.values:
            _check_own_files(self._with(value, self.seeds[0]), self.methods, self.seeds)
        configs = [self.config_of(value, self.seeds[0]) for value in self.values]
        if self.vary:
            _check_values(self.vary)
            check_key("--vary", self.vary.key, configs[0])
        self.check_seed_keys(configs[0])
        return configs

    def config_of(self, value: Value | None, seed: int) -> Config:
        """The validated config of a seed at one of :attr:`values`, with the files of the first method."""
        return parse(_filled(self._with(value, seed), self.methods[0], seed) | {"methods": ",".join(self.methods)})

    @property
    def values(self) -> tuple[Value | None, ...]:
        """The values of the varied key; a single ``None`` if no key is varied."""
        return self.vary.values if self.vary else (None,)

    @property
    def own_value(self) -> Value | None:
        """The value that the recipe of this package sets for the varied key; the paper's numbers hold for it."""
        return {**defaults(), **(packaged_keys(self.recipe) or {})}.get(self.vary.key) if self.vary else None

    def cells(self, folder: Path) -> list[dict[str, Any]]:
        """The arguments of ``run_cell`` for each run, by value, seed and method; the run folders are in ``folder``."""
        return [
            {"method": method, "seed": seed}
            | ({"at": f"{self.vary.key} = {value}"} if self.vary else {})
            | {
                "config": _filled(self._with(value, seed), method, seed)
                | {"output-dir": str(folder), "name": f"{method}-{seed}{_ending(value)}", "methods": method},
                "engine": self.engine,
            }
            for value in self.values
            for seed in self.seeds
            for method in self.methods
        ]

    def _with(self, value: Value | None, seed: int) -> dict[str, Any]:
        varied = {self.vary.key: value} if self.vary and value is not None else {}
        return {**self.config, **varied, **self.at_seed(seed)}


def read_value(key: str, text: str) -> Value:
    """Parse the text of a value: as a string if the key's default is a string, otherwise by its form."""
    declared = all_keys().get(key)
    if declared is not None and isinstance(declared.default, str):
        return text.strip("'\"")
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip("'\"")


def assignments(pairs: Sequence[str], argument: str = "--set") -> dict[str, Value]:
    """The values of ``--set``, or another argument. Raises ``ValueError`` for a pair that is not ``key=value``."""
    keys_by_name: dict[str, Value] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"{argument} {pair!r}: write it as key=value")
        keys_by_name[key.strip()] = read_value(key.strip(), text.strip())
    return keys_by_name


def _check_values(vary: Vary) -> None:
    endings = [_ending(value) for value in vary.values]
    if twice := [value for value, ending in zip(vary.values, endings, strict=True) if endings.count(ending) > 1]:
        raise ValueError(f"--vary {vary.key}: {twice[0]!r} is given twice, or has the folder name of another value")


def _ending(value: Value | None) -> str:
    """The suffix of a run folder's name for a value of the varied key."""
    return "" if value is None else "-" + re.sub(r"[^\w.+-]+", "_", str(value))


def _filled(flat: Mapping[str, Any], method: str, seed: int) -> dict[str, Any]:
    """The flat run config with the label of a method for ``{method}`` and a seed for ``{seed}`` in its paths."""
    own = _patterns(flat)
    return {**flat, **{key: _named(pattern, method, seed) for key, pattern in own.items()}}


def _check_own_files(flat: Mapping[str, Any], methods: Sequence[str], seeds: Sequence[int]) -> None:
    """Raise ``ValueError`` if a run of some method and seed has no file."""
    for key, pattern in _patterns(flat).items():
        for seed in seeds:
            for method in methods:
                paths = [_named(path, method, seed) for path in pattern.split(",")]
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


def _named(pattern: str, method: str, seed: int) -> str:
    return pattern.replace("{method}", method).replace("{seed}", str(seed))
