"""Where a node's data comes from, what of it a round uses, and the data that a process keeps loaded."""

import fcntl
import hashlib
import json
import logging
import os
import shutil
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedapps.tasks.base import NodeData, NodeProfile, Task

from fedapps.base.atomic import remove_leftovers, temporary_name, write_whole
from fedapps.base.errors import DataError

from .state import PrivateState

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DataSource:
    """A folder and this node's part of it; ``partition`` is ``None`` where the whole folder is the node's own."""

    folder: Path
    partition: int | None
    num_partitions: int

    def load(self, task: Task) -> NodeData:
        """The node's data. Raises :class:`DataError` when it is missing or malformed."""
        if self.partition is None:
            return task.load_own(self.folder)
        return task.load_node(self.folder, self.partition, self.num_partitions)

    def outline(self, task: Task) -> NodeData:
        """The node's data without what takes long to read (:meth:`~fedapps.tasks.base.Task.outline_node`)."""
        if self.partition is None:
            return task.load_own(self.folder)
        return task.outline_node(self.folder, self.partition, self.num_partitions)

    def profile(self, task: Task) -> NodeProfile:
        """Who the node is. Raises :class:`DataError` when its data is missing or malformed."""
        if self.partition is None:
            return task.own_profile(self.folder)
        return task.node_profile(self.folder, self.partition, self.num_partitions)

    def pooled(self, task: Task) -> NodeData:
        """The data of all nodes together. Raises ``DataError`` on a node that only has its own folder."""
        if self.partition is None:
            raise DataError(
                f"{self.folder} is a node's own folder: training on the pooled data of all nodes (the Cloud "
                "baseline) is only possible in simulation, where one folder holds the data of all"
            )
        return task.load_all(self.folder)


def find_source(task: Task, node_config: Mapping[str, Any], *, data_dir: str, cache_dir: Path, seed: int) -> DataSource:
    """The source for one node, by the first that is given.

    1. ``data-dir`` in the node's own config: the node's own folder.
    2. ``data_dir`` of the run config, with the node's ``partition-id`` of ``num-partitions``.
    3. A simulated world for ``num-partitions`` nodes in ``cache_dir``, made once and then kept.
    """
    if own := str(node_config.get("data-dir", "")):
        return DataSource(_existing(own, "the node's data-dir"), None, 1)
    if "partition-id" not in node_config:
        raise DataError(
            "this node has neither a data-dir nor a partition-id: start it with "
            "--node-config 'data-dir=\"/path/to/its/data\"'"
        )
    partition, count = node_config["partition-id"], node_config.get("num-partitions")
    if not (type(partition) is type(count) is int and 0 <= partition < count):
        raise DataError(
            f"node config partition-id = {partition!r}, num-partitions = {count!r}: must be whole numbers, the first "
            "at least 0 and below the second"
        )
    if data_dir:
        return DataSource(_existing(data_dir, "data-dir"), partition, count)
    return DataSource(world_folder(task, count, seed, cache_dir), partition, count)


def world_folder(task: Task, num_nodes: int, seed: int, cache_dir: Path) -> Path:
    """The folder of the simulated world for this task, number of nodes and seed; made where it is missing."""
    name = world_name(task, num_nodes, seed)
    folder = cache_dir / name
    if folder.exists():
        return folder
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"cache-dir: {cache_dir} cannot be created ({error}); set cache-dir to another folder"
        ) from error
    with _locked(cache_dir / f".{name}.lock"):
        if not folder.exists():
            logger.warning("simulating the data of %s nodes for task %s in %s", num_nodes, task.name, folder)
            remove_leftovers(cache_dir)
            unfinished = temporary_name(folder)
            unfinished.mkdir()
            try:
                task.make_world(unfinished, num_nodes, seed)
                unfinished.replace(folder)
            except OSError:
                if not folder.exists():  # otherwise another process was faster, where files cannot be locked
                    raise
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def world_name(task: Task, num_nodes: int, seed: int) -> str:
    """The name of :func:`world_folder`, which differs between worlds."""
    identity = json.dumps([task.name, task.world_version, dict(task.world_options), num_nodes, seed], sort_keys=True)
    return f"{task.name}-{num_nodes}-{seed}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


class DataCache:
    """Keeps the data used last: of ``nodes`` nodes, and of more while all of it takes at most ``size`` bytes.

    Nodes take turns, so a cache that is too small for all of them would never hold the one whose turn it is.

    Parameters
    ----------
    nodes : int
        ≥ 1.
    size : int
        ≥ 0, in bytes. Tensors that several nodes share count for each of them.
    """

    def __init__(self, nodes: int = 256, size: int = 1 << 30) -> None:
        self.nodes, self.size = nodes, size
        self._kept: OrderedDict[Hashable, tuple[NodeData, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: Hashable, load: Callable[[], NodeData]) -> NodeData:
        """The data under a key, loaded if it is not kept."""
        entry = self._kept.pop(key, None)
        if entry is None:
            data = load()
            entry = data, _size_of(data)
            self._bytes += entry[1]
        self._kept[key] = entry  # the last one
        data = entry[0]
        while len(self._kept) > self.nodes and self._bytes > self.size:
            self._bytes -= self._kept.popitem(last=False)[1][1]
        return data

    def clear(self) -> None:
        """Forget all data, so that they are loaded again."""
        self._kept.clear()
        self._bytes = 0


#: The data of the nodes of this process.
loaded_data = DataCache()
#: Runs whose numbers a node remembers, because several can be under way at a time.
_RUNS = 16


@dataclass(frozen=True)
class Growth:
    """How many training examples a node had before each of its last 16 runs, and has now: a file of the node alone.

    A damaged file counts as missing, with a warning.

    Parameters
    ----------
    path : Path
    """

    path: Path

    def before(self, run: str) -> int:
        """The number of examples that the node had before the run of this name, 0 without an earlier run.

        It stays the same in a run, whatever other runs note.
        """
        runs, examples = self._read()
        return runs.get(run, examples)

    def note(self, run: str, count: int) -> bool:
        """Note the number of examples in a run. Returns whether it was not noted before.

        Raises :class:`~fedapps.base.atomic.UnwritableError`.
        """
        runs, examples = self._read()
        if run in runs and count == examples:
            return False
        others = {other: before for other, before in runs.items() if other != run}
        last = [*others.items(), (run, runs.get(run, examples))][-_RUNS:]
        write_whole(self.path, json.dumps({"runs": dict(last), "examples": count}).encode(), sync=True)
        return True

    def _read(self) -> tuple[dict[str, int], int]:
        """The numbers before the runs, the last one at the end, and the number that was noted last."""
        if not self.path.exists():
            return {}, 0
        try:
            seen = json.loads(self.path.read_bytes())
        except ValueError:
            seen = None
        runs, examples = (seen.get("runs"), seen.get("examples")) if isinstance(seen, dict) else (None, None)
        if isinstance(runs, dict) and isinstance(examples, int) and all(type(each) is int for each in runs.values()):
            return runs, examples
        logger.warning("%s is damaged: this run counts all training examples as new and replaces the file", self.path)
        return {}, 0


def newest_count(newest: str, count: int, before: int) -> int:
    """How many of ``count`` examples the key ``newest`` takes, ``before`` of which are not new.

    All of fewer examples than before are new: the node has lost the others, and which is unknown.
    """
    if newest == "all":
        return count
    return (count - before if before <= count else count) if newest == "new" else min(count, int(newest))


def cached_load(source: DataSource, task: Task, pooled: bool) -> NodeData:
    """A source's data, kept by the process (:class:`~fedapps.clients.data.DataCache`): they do not change in a run."""
    return loaded_data.get((source, task, pooled), lambda: source.pooled(task) if pooled else source.load(task))


def cached_on(device: "torch.device", source: DataSource, task: Task, pooled: bool) -> NodeData:
    """As :func:`cached_load`; on a GPU, copied there once if the task is :attr:`~Task.on_device`."""
    if device.type == "cpu" or not task.on_device:
        return cached_load(source, task, pooled)
    key = source, task, pooled, str(device)
    return loaded_data.get(key, lambda: cached_load(source, task, pooled).on(device))


def _existing(folder: str, what: str) -> Path:
    path = Path(os.path.expanduser(folder))  # unlike pathlib's, neither function raises for a name that cannot be
    if not os.path.isdir(path):
        raise DataError(f"{what} = {folder!r}: no such folder; give the folder that holds the data files")
    return path


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock within this context, if the file system has locks."""
    with path.open("w", encoding="utf-8") as lock:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield  # closing the file ends the lock


def of_stage(task: Task, data: NodeData, collectors: Sequence[PrivateState], stage: int) -> NodeData:
    """Return a node's data in a stage.

    Parameters
    ----------
    task : Task
    data : NodeData
        If it has stages, the result is the data of the stage. Otherwise it is this data with everything that was
        collected for the stages up to this one.
    collectors : sequence of PrivateState
        Where collected data is kept, under the names of :func:`collection`.
    stage : int
        Counted from 0.

    Raises
    ------
    ValueError
        No collector has data for one of the stages.
    """
    if data.stages:
        return data.at(stage)
    for collected_in in range(1, stage + 1):
        found = [collector.load_extra(collection(collected_in)) for collector in collectors]
        present = [collected for collected in found if collected is not None]
        if not present:
            raise ValueError(
                f"node {data.key} cannot train in stage {stage}: it has no data collected for stage "
                f"{collected_in}, because it was not evaluated at the end of the stage before"
            )
        for collected in present:
            data = task.with_collected(data, collected)
    return data


def collection(stage: int) -> str:
    """The name under which a node keeps the data collected for a stage, counted from 0 and at least 1."""
    return f"collected-{stage}"


def _size_of(data: NodeData) -> int:
    splits = [*data.splits.values(), *(split for stage in data.stages for split in stage.values())]
    tensors = [tensor for split in splits for tensor in split.values()]
    return sum(tensor.nbytes for tensor in tensors) + sum(getattr(v, "nbytes", 0) for v in data.extra.values())
