"""Runs an experiment matrix: many cells, several at a time, each in a separate process."""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from typing import Any, TypeAlias, TypeVar

from .processes import usable_cores

Result = TypeVar("Result")
Cell: TypeAlias = Mapping[str, Any]
#: Cells that follow one another: a generator that yields the next cell and is sent its result.
Chain: TypeAlias = Generator[Cell, Result, None]


def run_matrix(
    cells: Sequence[Mapping[str, Any]],
    work: Callable[..., Result],
    *,
    jobs: int = 0,
    show: Callable[[str], None] = print,
) -> list[Result]:
    """Call ``work(**cell)`` for every cell and return the results in the order of the cells.

    After each cell, a line of progress with the estimated remaining time is shown. The first failure stops the matrix.

    Parameters
    ----------
    cells : sequence of mappings
        Keyword arguments of ``work``.
    work : callable
        A function of an importable module, because processes are spawned.
    jobs : int
        The number of parallel processes; 0 = one per CPU core.
    show : callable
        Receives the lines of progress.

    Raises
    ------
    Exception
        The first exception of ``work``.
    """
    results: dict[int, Result] = {}

    def alone(index: int) -> Chain[Result]:
        results[index] = yield cells[index]

    run_chains([alone(index) for index in range(len(cells))], work, total=len(cells), jobs=jobs, show=show)
    return [results[index] for index in range(len(cells))]


def run_chains(
    chains: Sequence[Chain[Result]],
    work: Callable[..., Result],
    *,
    total: int,
    jobs: int = 0,
    show: Callable[[str], None] = print,
) -> None:
    """Call ``work(**cell)`` for the cells of chains: those of one chain follow one another, chains run side by side.

    A chain decides on its next cell when it is sent the result of the last one. It runs in this process, between the
    cells, and should take no time.

    Parameters
    ----------
    chains : sequence of generators
        Each yields keyword arguments of ``work``.
    work : callable
        A function of an importable module, because processes are spawned.
    total : int
        The number of cells of all chains, or an upper bound, for the estimated remaining time.
    jobs : int
        The number of parallel processes; 0 = one per CPU core.
    show : callable
        Receives a line of progress after each cell.

    Raises
    ------
    Exception
        The first exception of ``work`` or of a chain. It stops all chains.
    """
    workers = max(1, min(jobs or usable_cores(), len(chains)))
    begun, done = time.monotonic(), 0
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_parent) as pool:
        running: dict[Future[Result], tuple[Chain[Result], Cell]] = {}

        def submit(chain: Chain[Result], advance: Callable[[], Cell]) -> None:
            try:
                cell = advance()
            except StopIteration:
                return
            running[pool.submit(work, **cell)] = chain, cell

        try:
            for chain in chains:
                submit(chain, partial(next, chain))
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    chain, cell = running.pop(future)
                    result = future.result()
                    done += 1
                    spent = time.monotonic() - begun
                    to_go = spent / done * (total - done)
                    label = ", ".join(f"{name} {value}" for name, value in cell.items() if name != "config")
                    show(f"[{done}/{total}] {label}: {spent:.0f} s spent, about {to_go:.0f} s to go")
                    submit(chain, partial(chain.send, result))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _end_with_parent() -> None:
    """Exit when the parent process ends, even if it was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
