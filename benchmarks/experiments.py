"""The table of experiments, ``experiments.toml``."""

import re
import shlex
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .pretrained import PACKAGES
from .results import FOLDER, result

TABLE = Path(__file__).with_name("experiments.toml")
#: The word that stands for the folder of the published data sets.
DATA = "data"
_BRACES = re.compile(r"\{([\w-]+)\}")


@dataclass(frozen=True)
class Experiment:
    """One experiment: a command with a result.

    Parameters
    ----------
    name : str
    answers : str
        The question that it answers, in a line.
    run : str
        What follows ``python -m``; ``{data}`` and names of pretrained networks and of other experiments in braces
        stand for folders.
    after : tuple of str
        The experiments whose run folders the command uses.
    by_node : bool
        Whether its result also has the final test error of each node in each stage.
    by_round : str
        A metric whose mean over the nodes its result also has after each round with an evaluation; empty = none.
    minutes : float
        As its result has measured, otherwise about, on two cores; 0 = not measured.
    """

    name: str
    answers: str
    run: str
    after: tuple[str, ...] = ()
    by_node: bool = False
    by_round: str = ""
    minutes: float = 0.0

    @property
    def needs_data(self) -> bool:
        """Whether it needs the published data sets."""
        return f"{{{DATA}}}" in self.run

    @property
    def networks(self) -> tuple[str, ...]:
        """The names of the pretrained networks that it needs (:mod:`benchmarks.pretrained`)."""
        return tuple(name for name in PACKAGES if f"{{{name}}}" in self.run)

    def command(self, folders: Mapping[str, str]) -> list[str]:
        """The command; ``folders`` has those of data, networks, and each experiment in ``after``."""
        return [sys.executable, "-m", *(_filled(word, folders) for word in shlex.split(self.run))]

    @property
    def shown(self) -> str:
        """The command for readers."""
        return f"python -m {self.run}"


@cache
def experiments(path: Path = TABLE) -> dict[str, Experiment]:
    """All experiments by name, in the order of the table.

    Raises
    ------
    ValueError
        If a field is missing or unknown, or an experiment uses the folder of one that does not stand before it.
    """
    table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    words: Mapping[str, str] = table.pop("words", {})
    listed: dict[str, Experiment] = {}
    for name, fields in table.items():
        try:
            run = _spelled_out(fields["run"], words)
            after = tuple(one for one in dict.fromkeys(_BRACES.findall(run)) if one in table)
            measured = (FOLDER / f"{name}.json").exists() and result(name).minutes
            known = {"minutes": measured} if measured else {}
            listed[name] = Experiment(name, **{**fields, "run": run, "after": after, **known})
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path.name}, [{name}]: {error}") from None
        if late := [one for one in after if one not in listed or one == name]:
            raise ValueError(f"{path.name}, [{name}]: {', '.join(late)} must stand before it")
    return listed


def _spelled_out(text: str, words: Mapping[str, str]) -> str:
    """The text with all words of the table in place of their names."""
    while (filled := _filled(text, words)) != text:
        text = filled
    return text


def _filled(text: str, values: Mapping[str, str]) -> str:
    return _BRACES.sub(lambda match: values.get(match[1], match[0]), text)
