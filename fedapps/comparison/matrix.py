"""The runs of a comparison: every method with every seed, repeated for each value of a varied key."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedapps.config.keys import all_keys, defaults, path_keys
from fedapps.config.parsing import Config, parse
from fedapps.config.recipe_files import Value, packaged_keys, recipe_comparison, recipe_name
from fedapps.config.run_config import RunConfig
from fedapps.registry.expressions import labels

#: Keys that the comparison sets for each run.
_OWN_KEYS = ("methods", "seed", "name", "output-dir", "resume")


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
        found = tuple(read_value(key.strip(), value.strip()) for value in values.split(",") if value.strip())
        if not equals or not key.strip() or not found:
            raise ValueError(f"--vary {text!r}: write it as key=value,value,...")
        return cls(key.strip(), found)


@dataclass(frozen=True)
class Plan:
    """All runs of a comparison. The plan is saved in the comparison's folder, so that it can be resumed.

    Parameters
    ----------
    recipe : str
        Name of the recipe, without folder and suffix: ``NAME`` or ``NAME:STAGE``.
    config : mapping
        The flat run config of the recipe with all overrides; its paths are absolute. In the paths of files,
        ``{method}`` and ``{seed}`` stand for those of each run.
    methods : tuple of str
        Labels of the methods.
    seeds : tuple of int
    engine : "inline" or "ray"
    vary : Vary, optional
        The varied key.
    seed_keys : tuple of str
        Keys that take the value of the seed in each run, such as the seed of a partition. Without them, all seeds share
        what these keys draw, and results hold for this one draw only.
    """

    recipe: str
    config: Mapping[str, Value]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    engine: str
    vary: Vary | None = None
    seed_keys: tuple[str, ...] = ()

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
        chosen = tuple(labels(named))
        vary = vary or Vary.read(recipe_comparison(recipe, "vary"))
        follow = tuple(seed_keys) or names(recipe_comparison(recipe, "seed-keys"))
        return cls(recipe_name(recipe), base, chosen, tuple(seeds), engine, vary, follow)

    def configs(self) -> list[Config]:
        """The validated config for each value of the varied key, or a single config.

        It names the files of the first method and seed.

        Raises
        ------
        ValueError
            If a method, the varied key or a value is invalid, mostly as ``ConfigError``, or a run has no file.
        """
        for key in self.seed_keys:
            check_seed_key(key)
            if self.vary and key == self.vary.key:
                raise ValueError(f"--seed-keys {key}: this key is varied, so it cannot also be the seed")
        for value in self.values:
            _check_own_files(self._with(value, self.seeds[0]), self.methods, self.seeds)
        configs = [self.config_of(value, self.seeds[0]) for value in self.values]
        if self.vary:
            _check_values(self.vary)
            check_key("--vary", self.vary.key, configs[0])
        for key in self.seed_keys:
            check_key("--seed-keys", key, configs[0])
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

    def save(self, folder: Path) -> None:
        """Write ``plan.json``."""
        (folder / "plan.json").write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> "Plan":
        """Read the plan in the folder of a comparison. Raises ``ValueError`` if there is no valid plan."""
        path = folder / "plan.json"
        if not path.is_file():
            raise ValueError(f"--resume {folder}: not the folder of a comparison (it has no plan.json)")
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
            vary = known["vary"] and Vary(known["vary"]["key"], tuple(known["vary"]["values"]))
            lists = {name: tuple(known[name]) for name in ("methods", "seeds", "seed_keys")}
            return cls(**(known | lists | {"vary": vary}))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"--resume {folder}: plan.json is damaged ({error!r}); start a new comparison") from error

    def _with(self, value: Value | None, seed: int) -> dict[str, Any]:
        varied = {self.vary.key: value} if self.vary and value is not None else {}
        return {**self.config, **varied, **dict.fromkeys(("seed", *self.seed_keys), seed)}


def names(text: str) -> tuple[str, ...]:
    """The names in a text that separates them by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


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


def check_key(option: str, key: str, config: Config) -> None:
    """Raise ``ValueError`` if ``key`` is not read by the run, or set for each run."""
    if key in _OWN_KEYS:
        raise ValueError(f"{option} {key}: this command sets the key; use --methods and --seeds")
    if key not in config.flat():
        readers = [config.run.task, *dict.fromkeys(type(method).name for method in config.methods.values())]
        raise ValueError(f"{option} {key}: no run uses the key; name one of the run or of {', '.join(readers)}")


def check_seed_key(key: str) -> None:
    """Raise ``ValueError`` if ``key`` cannot take the value of a seed."""
    declared = all_keys().get(key)
    if declared is not None and type(declared.default) is not int:
        raise ValueError(f"--seed-keys {key}: must be a key of whole numbers, such as the seed of a partition")


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
