"""The models of a fleet over time: the one in use (the champion), the one before, and what decides on the next.

The registry is a folder on the server with ``registry.json`` and a file for each decision. Files are replaced as a
whole: a server that is killed has decided, or it has not.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from math import ceil, inf, isfinite, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Self

from fedapps.base.atomic import write_whole
from fedapps.base.report.numbers import half_width, mean_and_interval, number
from fedapps.base.report.tables import text_table

from .records import parsed
from .run_folder import read_object

#: The group of the nodes that lose most.
WORST = "worst tenth"


@dataclass(frozen=True)
class Candidate:
    """A model: a method of a finished run after a round. ``generation`` counts the champions, from 1."""

    generation: int
    run: str
    method: str
    round: int


@dataclass(frozen=True, kw_only=True)
class Rollback:
    """The generations before and after; the nodes that went back, empty for all."""

    before: int
    after: int
    nodes: list[str]


@dataclass(frozen=True, kw_only=True)
class Decided:
    """What a decision changes."""

    promote: bool
    challenger: Candidate | None = None
    rollback: Rollback | None = None


@dataclass(frozen=True)
class Registry:
    """What each node shall use.

    Parameters
    ----------
    folder : Path
    generations : tuple of Candidate
        The last two champions, the newer one last.
    champion : int
        The generation in use, 0 before the first.
    nodes : mapping of str to int
        By key, the generation of nodes that were taken back alone, until the next promotion.
    label : str
        Unique name of the registry, by which nodes know it; empty until its first promotion is delivered. A registry
        that takes the place of this folder has another.
    delivered : int
        The generation in use when the nodes were last brought to theirs; 0 before.
    """

    folder: Path
    generations: tuple[Candidate, ...] = ()
    champion: int = 0
    nodes: Mapping[str, int] = field(default_factory=dict)
    label: str = ""
    delivered: int = 0

    def __post_init__(self) -> None:
        known = [0, *(one.generation for one in self.generations)]
        if missing := {self.champion, *self.nodes.values()}.difference(known):
            raise ValueError(f"generation {min(missing)} is in use, and is not among the generations")

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read a registry; an empty one if there is none. Raises ``ValueError`` for a damaged file.

        A promotion or a rollback that was decided counts, also if the server was killed before it wrote the registry.
        """
        stored = read_object(folder / "registry.json") | {"folder": str(folder)}
        registry = parsed(json.dumps(stored).encode(), str(folder / "registry.json"), cls)
        files = registry.decisions()
        last = parsed(files[-1].read_bytes(), str(files[-1]), Decided) if files else Decided(promote=False)
        if last.rollback and last.rollback.before == registry.champion:
            return registry.rolled_back(last.rollback.nodes)
        newest = max((one.generation for one in registry.generations), default=0)
        if last.promote and last.challenger and last.challenger.generation > newest:
            return registry.promoted(last.challenger)
        return registry

    def labelled(self) -> Self:
        """With a label, a new one if there is none."""
        return self if self.label else replace(self, label=f"{self.folder.name}-{secrets.token_hex(4)}")

    def write(self) -> None:
        """Replace the file."""
        stored = {name: value for name, value in asdict(self).items() if name != "folder"}
        write_whole(self.folder / "registry.json", json.dumps(stored, indent=2).encode(), sync=True)

    def of(self, generation: int) -> Candidate:
        """The model of a generation."""
        return next(one for one in self.generations if one.generation == generation)

    def target(self, node: str) -> int:
        """The generation that a node shall use; 0 for none."""
        return self.nodes.get(node, self.champion)

    def challenger(self, run: Path, method: str, server_round: int) -> Candidate:
        """A model as the next generation."""
        last = max((one.generation for one in self.generations), default=0)
        return Candidate(last + 1, str(run), method, server_round)

    def promoted(self, challenger: Candidate) -> Self:
        """With another champion on all nodes."""
        before = (self.of(self.champion),) if self.champion else ()
        return replace(self, generations=(*before, challenger), champion=challenger.generation, nodes={})

    def rolled_back(self, nodes: Sequence[str] = ()) -> Self:
        """With the champion before on some nodes, by default on all.

        Raises
        ------
        ValueError
            No champion before this one is kept.
        """
        earlier = [one.generation for one in self.generations if one.generation < self.champion]
        if not earlier:
            raise ValueError(
                f"{self.folder}: there is no champion before generation {self.champion} to go back to; the last two "
                "are kept"
            )
        if nodes:
            return replace(self, nodes={**self.nodes, **dict.fromkeys(nodes, earlier[-1])})
        return replace(self, champion=earlier[-1], nodes={})

    def decisions(self) -> list[Path]:
        """The files of all decisions, from the first one on."""
        return sorted(path for path in (self.folder / "decisions").glob("*.json") if path.stem.isdecimal())

    def decided(self, run: Path) -> bool:
        """Whether there is a decision about the models of a run."""
        decisions = map(read_object, reversed(self.decisions()))
        runs = (Path(one["challenger"]["run"]) for one in decisions if "challenger" in one)
        return any(path.resolve() == run.resolve() for path in runs)  # perhaps by way of a link

    def known_nodes(self) -> set[str]:
        """The keys of the nodes in all decisions: those that evaluated both models, were refused, or might not work."""
        decisions = map(read_object, self.decisions())
        return {key for one in decisions for part in ("nodes", "refused", "ineligible") for key in one.get(part, ())}

    def record(self, decision: Mapping[str, Any]) -> Path:
        """Write a decision with its date and all its numbers, which now holds, and return the file."""
        number = max((int(path.stem) for path in self.decisions()), default=0) + 1
        path = self.folder / "decisions" / f"{number:06d}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        dated = {"date": datetime.now(UTC).isoformat(timespec="seconds"), **decision}
        write_whole(path, (json.dumps(dated, indent=2) + "\n").encode(), sync=True)
        return path


def decide(
    champion: Mapping[str, float],
    challenger: Mapping[str, float],
    groups: Mapping[str, Sequence[str]],
    *,
    mode: str,
    margin: float,
    group_margin: float,
) -> dict[str, Any]:
    """Decide whether a challenger takes the champion's place.

    It does if the 95 % interval (Student's t) of the mean gain over the nodes that evaluated both lies above
    ``-margin``, with or without the tenth of the nodes that gains most, and the mean gain of no group lies below
    ``-group_margin``. The nodes with the lowest gains, a tenth of all and at least one, are a group, too.

    Parameters
    ----------
    champion, challenger : mapping of str to float
        The metric of each model, by node.
    groups : mapping of str to sequence of str
        The nodes of each group.
    mode : "min" or "max"
        Whether a lower or a higher metric is better.
    margin, group_margin : float
        ≥ 0, in the unit of the metric.

    Returns
    -------
    dict
        ``promote``, ``reason``, ``gain`` (mean, nodes, low, high), ``without-best`` (the lower limit without the tenth
        that gains most; ``None`` if there is none), ``groups`` (the mean gain of each), ``members`` (the nodes of each
        group) and ``nodes`` (champion, challenger and gain of each).
    """
    sign = -1.0 if mode == "min" else 1.0
    both = sorted(champion.keys() & challenger.keys())
    gains = {node: sign * (challenger[node] - champion[node]) for node in both}
    decision: dict[str, Any] = {"promote": False, "margin": margin, "group-margin": group_margin, "mode": mode}
    decision["nodes"] = {
        node: {"champion": champion[node], "challenger": challenger[node], "gain": gains[node]} for node in both
    }
    decision["members"] = {name: [node for node in nodes if node in gains] for name, nodes in groups.items()}
    if len(both) < 2:
        return decision | {"reason": f"{len(both)} nodes evaluated both models; an interval needs 2", "groups": {}}
    members = {**decision["members"], WORST: sorted(both, key=gains.__getitem__)[: ceil(len(both) / 10)]}
    means = {name: sum(gains[node] for node in of) / len(of) for name, of in sorted(members.items()) if of}
    gain = mean_and_interval(list(gains.values()))
    without_best = _low_without_best(list(gains.values()))
    low = max(gain["low"], -inf if without_best is None else without_best)
    losing = [name for name, mean in means.items() if not mean >= -group_margin]
    promote = low > -margin and not losing
    if not low > -margin:
        reason = f"the interval of the gain begins at {number(low)}, not above {number(0.0 - margin)}"
    elif losing:
        reason = f"{', '.join(losing)}: the mean gain is below {number(0.0 - group_margin)}"
    else:
        reason = "the interval lies above minus the margin, and no group loses more than its own"
    decision |= {"gain": gain, "without-best": without_best, "groups": means}
    return decision | {"promote": promote, "reason": reason}


def _low_without_best(gains: Sequence[float]) -> float | None:
    """The lower limit of the 95 % interval of the mean gain without the highest tenth, at least one, of the gains.

    It is also one of the mean gain of all, which is higher. One very high gain makes Student's interval of all so wide
    that it refuses a model from which every node gains; it has no part in this limit. To take the higher of two limits
    errs a little more often than one of them, with three or four nodes.

    The interval of a trimmed mean: J. W. Tukey and D. H. McLaughlin, Less Vulnerable Confidence and Significance
    Procedures for Location Based on a Single Sample, Sankhya A 25, 1963; here trimmed on one side.

    Returns
    -------
    float or None
        ``None`` with fewer than three gains, or where one is not finite.
    """
    ordered, count = sorted(gains), len(gains)
    kept = count - ceil(count / 10)
    if kept < 2 or not all(map(isfinite, gains)):
        return None
    # s_w: the standard deviation of the Winsorized gains; with h of n gains kept, t(h - 1) sqrt(n) s_w / h
    winsorized = [*ordered[:kept], *[ordered[kept - 1]] * (count - kept)]
    return fmean(ordered[:kept]) - half_width(stdev(winsorized) * sqrt(count / kept), kept)


def decision_text(decision: Mapping[str, Any]) -> str:
    """The numbers of a decision as tables, and its sentence."""
    columns = ("champion", "challenger", "gain")
    rows = [[node, *(number(of[name]) for name in columns)] for node, of in decision["nodes"].items()]
    parts = [text_table(["node", *columns], rows)] if rows else []
    if gain := decision.get("gain"):
        limits = f"{number(gain['low'])} to {number(gain['high'])}"
        groups = [[name, number(mean)] for name, mean in decision["groups"].items()]
        low = decision["without-best"]
        without_best = "" if low is None else f"; without the tenth that gains most, from {number(low)}"
        parts += [
            text_table(["group", "mean gain"], groups),
            f"mean gain {number(gain['mean'])} ({limits}){without_best}",
        ]
    return "\n".join([*parts, f"{'promoted' if decision['promote'] else 'kept the champion'}: {decision['reason']}"])
