"""The task "lqr" with an option that names a file: the checkpoint that the model starts from."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from fedapps.strategies.records import under
from fedapps.tasks.base import DataError, NodeData
from fedapps.tasks.lqr.task import LqrModel, LqrOptions, LqrTask

from fedapps.base.options import option
from fedapps.registry import tasks
from fedapps.runs.checkpoints import read_snapshot


@dataclass(frozen=True)
class WarmOptions(LqrOptions):
    """Those of lqr, and the checkpoint."""

    start: str = option("", "Checkpoint that the model starts from; '' = random parameters", path=True)


class WarmLqr(LqrTask):
    """Linear-quadratic robots that start from a checkpoint."""

    name: ClassVar[str] = "warm-lqr"
    Options: ClassVar[type] = WarmOptions

    def build_model(self) -> LqrModel:
        model = super().build_model()
        if self.options.start:
            arrays = under("shared.", read_snapshot(self._file()).arrays)
            model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
        return model

    def load_node(self, folder: Path, partition: int, num_partitions: int) -> NodeData:
        if self.options.start:
            self._file()
        return super().load_node(folder, partition, num_partitions)

    def _file(self) -> Path:
        if not Path(self.options.start).is_file():
            raise DataError(f"warm-lqr.start = {self.options.start!r}: no such file")
        return Path(self.options.start)


@contextmanager
def warm_lqr() -> Iterator[None]:
    """The task is known, as if a package had it."""
    found = {"warm-lqr": EntryPoint("warm-lqr", f"{__name__}:WarmLqr", tasks.GROUP)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "plugins", lambda group: found)
        yield
    tasks.task_class.cache_clear()
