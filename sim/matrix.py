"""An experiment matrix: many independent cells, a few at a time, each in a process of its own."""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

from .processes import usable_cores

Result = TypeVar("Result")


def run_matrix(
    cells: Sequence[Mapping[str, Any]],
    work: Callable[..., Result],
    *,
    jobs: int = 0,
    show: Callable[[str], None] = print,
) -> list[Result]:
    """``work(**cell)`` for every cell, ``jobs`` at a time (0: one per CPU core); results in the order of cells.

    ``work`` must be importable (a module's function): the processes are spawned. After each cell a line of
    progress with the time to go is shown. The first failure ends the matrix and is raised.
    """
    workers = max(1, min(jobs or usable_cores(), len(cells)))
    begun = time.monotonic()
    results: dict[int, Result] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_parent) as pool:
        futures = {pool.submit(work, **cell): index for index, cell in enumerate(cells)}
        try:
            for future in as_completed(futures):
                index = futures[future]
                results[index] = future.result()
                spent = time.monotonic() - begun
                to_go = spent / len(results) * (len(cells) - len(results))
                label = ", ".join(f"{name} {value}" for name, value in cells[index].items() if name != "config")
                show(f"[{len(results)}/{len(cells)}] {label}: {spent:.0f} s spent, about {to_go:.0f} s to go")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [results[index] for index in range(len(cells))]


def _end_with_parent() -> None:
    """Let a worker end when the process that started it does, even if that was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
