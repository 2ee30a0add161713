"""The runs of a registry of champions whose private state and models a node keeps.

A node of a fleet takes part in a run every week. What it removes, no later run of the registry goes on from, and no
gate compares. The state of runs without a registry stays.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedapps.base.atomic import naming_errors, path_name, remove_folder, remove_leftovers, write_whole

from .kept_models import CHAMPIONS, MODELS

#: The folder of the lists of runs, beside the private state of the runs.
RUNS = "runs"


@dataclass(frozen=True)
class KeptRuns:
    """The list of the runs of a registry in which a node has worked, in a file of the node alone.

    Only runs in the list are ever removed. A run is in it before it has state, and until all of its state is gone, so
    that a process that is killed leaves nothing that is not removed later.

    Parameters
    ----------
    root : Path
        The node's state folder.
    registry : str
        The label of the registry, which no other has.
    node : str
        The key of the node.
    """

    root: Path
    registry: str
    node: str

    @property
    def path(self) -> Path:
        """The file."""
        return self.root / RUNS / path_name(self.registry) / f"{path_name(self.node)}.json"

    def note(
        self, run: str, lineage: Sequence[str], champions: Iterable[Sequence[str]], keep: int, *, trains: bool
    ) -> list[str]:
        """Note that the node works in a run, and remove what no later run of the registry can need.

        The node keeps the state of this run and of the champions, each or, where the node took no part in it, that of
        the newest run before it in which the node did; and that of the last ``keep`` runs beside these. In a run where
        it was only evaluated, its state is a copy.

        Parameters
        ----------
        run : str
            The label of the run.
        lineage : sequence of str
            The labels of the runs before it, from the last one on.
        champions : sequences of str
            For each champion: the label of its run, then the labels of the runs that it started from.
        keep : int
            ≥ 0; 0 removes nothing.
        trains : bool
            Whether the node trains.

        Returns
        -------
        list of str
            The labels of the runs that were removed.

        Raises
        ------
        UnwritableError
            A file or folder cannot be written or removed.
        ValueError
            The file is damaged.
        """
        before = self._read()
        others = [label for label in before if label != run]
        listed = [*others, run] if trains else before if run in before else [run, *others]
        if listed != before:
            remove_leftovers(self.path.parent)
            self._write(listed)
        if not keep or len(listed) <= keep:
            return []
        chains = [[run, *lineage], *champions]
        needed = {run}.union(*(self._newest([label for label in chain if label in listed]) for chain in chains))
        removed = [label for label in listed if label not in needed][:-keep]
        kept = [label for label in listed if label not in removed]
        for label in removed:
            for folder in self._folders(label, kept):
                self._remove(folder)
        if removed:
            self._write(kept)
        return removed

    def _newest(self, chain: Sequence[str]) -> set[str]:
        """The runs whose state a node would begin from in the first run of a chain: one for each method."""
        newest: dict[str, str] = {}
        for label in chain:
            for path in (self.root / path_name(label)).glob("*"):
                if (path / path_name(self.node)).exists():
                    newest.setdefault(path.name, label)
        return set(newest.values())

    def _folders(self, label: str, kept: Sequence[str]) -> list[Path]:
        """The folder of the state of a run, and that of the models that ``keep-model`` keeps under the run's name."""
        name = label.rpartition("-")[0]
        shared = name in ("", CHAMPIONS, *(other.rpartition("-")[0] for other in kept))
        models = [label] if shared else [label, name]
        return [self.root / path_name(label), *(self.root / MODELS / path_name(one) for one in models)]

    def _remove(self, folder: Path) -> None:
        """Remove what the node has in the folder of a run, and the folders that are empty then."""
        for method in folder.glob("*"):
            remove_leftovers(method)
            path = method / path_name(self.node)
            with naming_errors(path):
                remove_folder(path)
                if not any(method.iterdir()):
                    method.rmdir()
        with naming_errors(folder):
            if folder.exists() and not any(folder.iterdir()):
                folder.rmdir()

    def _read(self) -> list[str]:
        if not self.path.exists():
            return []
        try:
            listed = json.loads(self.path.read_bytes())
        except ValueError:
            listed = None
        if not isinstance(listed, list) or not all(isinstance(label, str) for label in listed):
            raise ValueError(f"{self.path} is damaged: remove it; the state of the runs in it then stays for ever")
        return listed

    def _write(self, listed: Sequence[str]) -> None:
        write_whole(self.path, json.dumps(listed).encode(), sync=True)
