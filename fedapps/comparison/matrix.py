"""What a comparison runs: methods times seeds, and times the values of one key of the run config where it is varied."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedapps.config.keys import defaults
from fedapps.config.parsing import Config, parse
from fedapps.config.recipe_files import Value, recipe_vary
from fedapps.config.run_config import RunConfig
from fedapps.registry.expressions import labels

#: Keys that the comparison itself gives to its runs.
_OWN_KEYS = ("methods", "seed", "name", "output-dir", "resume")


@dataclass(frozen=True)
class Vary:
    """One key of the run config, and the values that the whole matrix is repeated for."""

    key: str
    values: tuple[Value, ...]

    @classmethod
    def read(cls, text: str) -> "Vary | None":
        """What is written as ``key=value,value,...``, ``None`` for nothing. Raises ``ValueError`` for anything else."""
        if not text:
            return None
        key, equals, values = text.partition("=")
        found = tuple(read_value(key.strip(), value.strip()) for value in values.split(",") if value.strip())
        if not equals or not key.strip() or not found:
            raise ValueError(f"--vary {text!r}: write it as key=value,value,...")
        return cls(key.strip(), found)


@dataclass(frozen=True)
class Plan:
    """A comparison before it runs, kept in its folder so that it can go on; ``config`` is flat, its paths absolute."""

    recipe: str
    config: Mapping[str, Value]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    engine: str
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
    ) -> "Plan":
        """The plan of a ``recipe`` whose keys, with all overrides, are ``base``.

        Without ``methods`` or ``vary`` they are the recipe's.
        """
        named = ",".join(methods) or str(base.get("methods", RunConfig.methods))
        chosen = tuple(labels(named))
        return cls(recipe.stem, base, chosen, tuple(seeds), engine, vary or Vary.read(recipe_vary(recipe)))

    def configs(self) -> list[Config]:
        """The config of each value, one alone where nothing is varied.

        Raises ``ValueError`` (mostly ``ConfigError``) when methods, key or values cannot be used.
        """
        given = [self._with(value) for value in self.values]
        configs = [parse(flat | {"methods": ",".join(self.methods), "seed": self.seeds[0]}) for flat in given]
        if self.vary:
            _check(self.vary, configs[0])
        return configs

    @property
    def values(self) -> tuple[Value | None, ...]:
        """What the key takes one after another; ``None`` alone where nothing is varied."""
        return self.vary.values if self.vary else (None,)

    @property
    def own_value(self) -> Value | None:
        """The value of the varied key in the recipe, where the paper's numbers hold."""
        return {**defaults(), **self.config}.get(self.vary.key) if self.vary else None

    def cells(self, folder: Path) -> list[dict[str, Any]]:
        """The arguments of each run, value by value and seed by seed; their folders lie in ``folder``."""
        return [
            {"method": method, "seed": seed}
            | ({"at": f"{self.vary.key} = {value}"} if self.vary else {})
            | {
                "config": self._with(value)
                | {
                    "output-dir": str(folder),
                    "name": f"{method}-{seed}{_ending(value)}",
                    "methods": method,
                    "seed": seed,
                },
                "engine": self.engine,
            }
            for value in self.values
            for seed in self.seeds
            for method in self.methods
        ]

    def save(self, folder: Path) -> None:
        """Write ``plan.json``."""
        (folder / "plan.json").write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> "Plan":
        """The plan of a comparison's folder. Raises ``ValueError`` when it holds none."""
        path = folder / "plan.json"
        if not path.is_file():
            raise ValueError(f"--resume {folder}: no comparison's folder (it has no plan.json)")
        try:
            known = json.loads(path.read_text())
            vary = known["vary"] and Vary(known["vary"]["key"], tuple(known["vary"]["values"]))
            lists = {"methods": tuple(known["methods"]), "seeds": tuple(known["seeds"])}
            return cls(**(known | lists | {"vary": vary}))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"--resume {folder}: plan.json is damaged ({error!r}); start the comparison anew"
            ) from error

    def _with(self, value: Value | None) -> dict[str, Any]:
        return {**self.config, **({self.vary.key: value} if self.vary and value is not None else {})}


def read_value(key: str, text: str) -> Value:
    """What is written for a key of the run config; a column or a name may look like a number."""
    if isinstance(defaults().get(key), str):
        return text.strip("'\"")
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip("'\"")


def _check(vary: Vary, config: Config) -> None:
    if vary.key in _OWN_KEYS:
        raise ValueError(f"--vary {vary.key}: the comparison sets it itself; it has --methods and --seeds")
    if vary.key not in config.flat():
        raise ValueError(f"--vary {vary.key}: the task {config.run.task!r} does not read it; its own keys start with "
                         f"'{config.run.task}.'")  # fmt: skip
    endings = [_ending(value) for value in vary.values]
    if twice := [value for value, ending in zip(vary.values, endings, strict=True) if endings.count(ending) > 1]:
        raise ValueError(f"--vary {vary.key}: {twice[0]!r} is given twice, or would share a folder with another value")


def _ending(value: Value | None) -> str:
    """The part of a folder's name that tells values apart."""
    return "" if value is None else "-" + re.sub(r"[^\w.+-]+", "_", str(value))
