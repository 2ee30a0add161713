"""The runs of a comparison: every method with every seed, repeated at each point of a grid of varied keys."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from fedapps.base.atomic import path_name
from fedapps.base.report.numbers import counted
from fedapps.config.keys import all_keys, defaults, path_keys
from fedapps.config.parsing import Config, parse
from fedapps.config.recipe_files import Value, packaged_keys, recipe_comparison, recipe_name
from fedapps.config.run_config import RunConfig
from fedapps.launch.plan import JobPlan, check_key
from fedapps.registry.expressions import labels, shown_names
from fedapps.runs.comparisons import Point, point_title


@dataclass(frozen=True)
class Vary:
    """A key of the run config and the values for which the comparison is repeated: one axis of the grid."""

    key: str
    values: tuple[Value, ...]

    @classmethod
    def read(cls, text: str) -> "Vary":
        """Parse ``key=value,value,...``. Raises ``ValueError`` if it is malformed."""
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
    vary : tuple of Vary
        The varied keys. Their values are combined, each with each.
    names : mapping of str to str
        The display names of methods that have one, by label.
    against : str
        The label of the baseline, against which each other method is tested; empty: pairs are tested.
    """

    command = "compare"
    kind = "comparison"

    vary: tuple[Vary, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    against: str = field(default="", kw_only=True)

    def shown(self, label: str) -> str:
        """The name of a method in tables, figures and reports."""
        return self.names.get(label, label)

    @classmethod
    def of(
        cls,
        recipe: Path,
        base: Mapping[str, Any],
        methods: Sequence[str],
        seeds: Sequence[int],
        engine: str,
        vary: Sequence[Vary] = (),
        seed_keys: Sequence[str] = (),
        against: str = "",
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
        vary : sequence of Vary
            The keys that the recipe varies if empty.
        seed_keys : sequence of str
        against : str
            The label or display name of the baseline; may be empty.

        Raises
        ------
        ValueError
            If a method or a varied key of the recipe is malformed, or the baseline is none of the methods.
        """
        named = ",".join(methods) or str(base.get("methods", RunConfig.methods))
        method_labels = tuple(labels(named))
        vary = tuple(vary) or tuple(map(Vary.read, recipe_comparison(recipe, "vary").splitlines()))
        names = shown_names(named)
        baselines = [label for label in method_labels if against in (label, names.get(label))]
        if against and not baselines:
            known = ", ".join(names.get(label, label) for label in method_labels)
            raise ValueError(f"--against {against!r}: must be one of the methods, which are {known}")
        return cls(
            recipe_name(recipe),
            base,
            method_labels,
            tuple(seeds),
            engine,
            vary,
            seed_keys=tuple(seed_keys),
            names=names,
            against=baselines[0] if against else "",
        )

    def configs(self) -> list[Config]:
        """The validated config at each of the :attr:`points`.

        It names the files of the first method and seed.

        Raises
        ------
        ValueError
            If a method, a varied key or a value is invalid, mostly as ``ConfigError``, or a run has no file.
        """
        for vary in self.vary:
            if vary.key in self.seed_keys:
                raise ValueError(f"--seed-keys {vary.key}: this key is varied, so it cannot also be the seed")
        keys = [vary.key for vary in self.vary]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise ValueError(f"--vary {twice[0]}: the key is given twice; give all its values at once")
        for point in self.points:
            _check_own_files(self._at(point, self.seeds[0]), self.methods, self.seeds)
        configs = [self.config_of(point, self.seeds[0]) for point in self.points]
        for vary in self.vary:
            _check_values(vary)
            check_key("--vary", vary.key, configs[0])
        self.check_seed_keys(configs[0])
        return configs

    def config_of(self, point: Point, seed: int) -> Config:
        """The validated config of a seed at one of the :attr:`points`, with the files of the first method."""
        return parse(_filled(self._at(point, seed), self.methods[0], seed) | {"methods": ",".join(self.methods)})

    @property
    def points(self) -> tuple[Point, ...]:
        """All combinations of the values of the varied keys; a single empty one if no key is varied."""
        keys = [vary.key for vary in self.vary]
        return tuple(dict(zip(keys, values, strict=True)) for values in product(*(vary.values for vary in self.vary)))

    @property
    def own_point(self) -> dict[str, Value | None]:
        """The values that the recipe of this package sets for the varied keys; the paper's numbers hold for them."""
        of_recipe = {**defaults(), **(packaged_keys(self.recipe) or {})}
        return {vary.key: of_recipe.get(vary.key) for vary in self.vary}

    @property
    def outline(self) -> str:
        """The number of runs, as the product that it is."""
        axes = [f"{axis.key} = {', '.join(map(str, axis.values))}" for axis in self.vary]
        counts = [*axes, counted(len(self.methods), "method"), counted(len(self.seeds), "seed")]
        return f"{' x '.join(counts)}: {counted(self.num_runs, 'run')}"

    @property
    def num_runs(self) -> int:
        """The number of runs."""
        return len(self.points) * len(self.methods) * len(self.seeds)

    def cells(self, folder: Path) -> list[dict[str, Any]]:
        """The arguments of ``run_cell`` for each run, by point, seed and method; the run folders are in ``folder``."""
        return [
            {"method": method, "seed": seed}
            | ({"at": point_title(point)} if point else {})
            | {
                "config": _filled(self._at(point, seed), method, seed)
                | {"output-dir": str(folder), "name": path_name(f"{method}-{seed}{_ending(point)}"), "methods": method},
                "engine": self.engine,
            }
            for point in self.points
            for seed in self.seeds
            for method in self.methods
        ]

    def _at(self, point: Point, seed: int) -> dict[str, Any]:
        return {**self.config, **point, **self.at_seed(seed)}


def read_value(key: str, text: str) -> Value:
    """Parse the text of a value: as a string if the key's default is a string, otherwise by its form."""
    declared = all_keys([key]).get(key)
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
    endings = [_ending({vary.key: value}) for value in vary.values]
    if twice := [value for value, ending in zip(vary.values, endings, strict=True) if endings.count(ending) > 1]:
        raise ValueError(f"--vary {vary.key}: {twice[0]!r} is given twice, or has the folder name of another value")


def _ending(point: Point) -> str:
    """The suffix of a run folder's name at a point; no value has a comma in it."""
    values = ",".join(re.sub(r"[^\w.+-]+", "_", str(value)) for value in point.values())
    return f"-{values}" if values else ""


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
        for key in sorted(path_keys(flat))
        if any(name in str(flat[key]) for name in ("{method}", "{seed}"))
    }


def _named(pattern: str, method: str, seed: int) -> str:
    return pattern.replace("{method}", method).replace("{seed}", str(seed))
