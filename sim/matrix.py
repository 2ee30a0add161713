"""Runs an experiment matrix: many cells, several at a time, each in a process of this machine or of a cluster."""

import atexit
import multiprocessing
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from fedapps.base.errors import RunFailedError, accept_all_text
from fedapps.base.processes import usable_cores

Result = TypeVar("Result")
Cell: TypeAlias = Mapping[str, Any]
#: Cells that follow one another: a generator that yields the next cell and is sent its result.
Chain: TypeAlias = Generator[Cell, Result, None]

_SECONDS_PER_TICK = 1.0


class Watch:
    """Follows the cells of a matrix. This one does nothing."""

    def begin(self, cell: Cell) -> None:
        """A cell has begun."""

    def end(self, cell: Cell) -> None:
        """A cell has ended."""

    def tick(self) -> None:
        """About a second has passed while cells run."""


class Lines(Watch):
    """Shows a line with the estimated remaining time after each cell.

    Parameters
    ----------
    total : int
        The number of cells.
    show : callable
        Receives the lines.
    """

    def __init__(self, total: int, show: Callable[[str], None] = print) -> None:
        self._total, self._show, self._done, self._begun = total, show, 0, time.monotonic()

    def end(self, cell: Cell) -> None:
        self._done += 1
        spent = time.monotonic() - self._begun
        to_go = spent / self._done * (self._total - self._done)
        label = ", ".join(f"{name} {value}" for name, value in cell.items() if name != "config")
        self._show(f"[{self._done}/{self._total}] {label}: {spent:.0f} s spent, about {to_go:.0f} s to go")


class WorkerLostError(RunFailedError):
    """A cell lost its process, on other machines again and again."""


class Workers(ABC):
    """Processes that run cells. Use it as a context manager."""

    @abstractmethod
    def __enter__(self) -> "Workers":
        """Start the processes, or connect to them."""

    @abstractmethod
    def __exit__(self, *error: object) -> None:
        """End the processes, or disconnect."""

    @abstractmethod
    def count(self) -> int:
        """The number of cells that can run at the moment, with those that do."""

    @abstractmethod
    def submit(self, work: Callable[..., Result], *arguments: Any) -> "Future[Result]":
        """Begin ``work(*arguments)``."""

    def result(self, future: "Future[Result]") -> Result:
        """Return what the work of a future returned, or raise what it raised.

        Raises :class:`WorkerLostError` if its process was killed.
        """
        return future.result()

    @abstractmethod
    def cancel(self) -> None:
        """Begin nothing any more."""


class LocalProcesses(Workers):
    """Processes of this machine, which end with this one.

    Parameters
    ----------
    processes : int
        At least 1.
    """

    def __init__(self, processes: int) -> None:
        self._processes = processes

    def __enter__(self) -> "LocalProcesses":
        context = multiprocessing.get_context("spawn")
        gpus = context.SimpleQueue()
        for gpu in _gpu_of_each(self._processes):
            gpus.put(gpu)
        self._pool = ProcessPoolExecutor(self._processes, context, initializer=_begin, initargs=(gpus,))
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown()

    def count(self) -> int:
        return self._processes

    def submit(self, work: Callable[..., Result], *arguments: Any) -> "Future[Result]":
        return self._pool.submit(work, *arguments)

    def result(self, future: "Future[Result]") -> Result:
        try:
            return future.result()
        except BrokenProcessPool as error:
            raise WorkerLostError(
                "the process of a run was killed, often for lack of memory: resume with fewer runs at a time, --jobs 1"
            ) from error

    def cancel(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def run_matrix(
    cells: Sequence[Cell],
    work: Callable[..., Result],
    *,
    jobs: int = 0,
    cluster: Workers | None = None,
    watch: Watch | None = None,
    log_of: Callable[[Cell], Path] | None = None,
) -> list[Result]:
    """Call ``work(**cell)`` for every cell and return the results in the order of the cells.

    The first failure stops the matrix.

    Parameters
    ----------
    cells : sequence of mappings
        Keyword arguments of ``work``.
    work : callable
        A function of an importable module, because processes are spawned.
    jobs, cluster, watch, log_of
        As for :func:`run_chains`.

    Raises
    ------
    Exception
        The first exception of ``work``.
    """
    results: dict[int, Result] = {}

    def alone(index: int) -> Chain[Result]:
        results[index] = yield cells[index]

    run_chains(
        [alone(index) for index in range(len(cells))], work, jobs=jobs, cluster=cluster, watch=watch, log_of=log_of
    )
    return [results[index] for index in range(len(cells))]


def run_chains(
    chains: Sequence[Chain[Result]],
    work: Callable[..., Result],
    *,
    jobs: int = 0,
    cluster: Workers | None = None,
    watch: Watch | None = None,
    log_of: Callable[[Cell], Path] | None = None,
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
    jobs : int
        The number of parallel processes; 0 = one per CPU core of this machine, or what ``cluster.count()`` allows.
    cluster : Workers, optional
        Where cells run in place of this machine; entered by the caller.
    watch : Watch, optional
        Is told of the cells.
    log_of : callable, optional
        The file to which everything that a cell prints is appended; by default it appears in this process's output.

    Raises
    ------
    Exception
        The first exception of ``work`` or of a chain. It stops all chains.
    """
    watch = watch or Watch()
    with nullcontext(cluster) if cluster else LocalProcesses(jobs or usable_cores()) as workers:
        waiting = deque((chain, partial(next, chain)) for chain in chains)
        running: dict[Future[Result], tuple[Chain[Result], Cell]] = {}
        try:
            while waiting or running:
                at_once = min(jobs, workers.count()) if jobs else workers.count()
                while waiting and len(running) < max(1, at_once):
                    chain, advance = waiting.popleft()
                    try:
                        cell = advance()
                    except StopIteration:
                        continue
                    running[workers.submit(_call, work, cell, log_of(cell) if log_of else None)] = chain, cell
                    watch.begin(cell)
                for future in wait(running, timeout=_SECONDS_PER_TICK, return_when=FIRST_COMPLETED).done:
                    chain, cell = running.pop(future)
                    waiting.append((chain, partial(chain.send, workers.result(future))))
                    watch.end(cell)
                watch.tick()
        except BaseException:
            workers.cancel()
            raise


def _call(work: Callable[..., Result], cell: Cell, log: Path | None) -> Result:
    if log is None:
        return work(**cell)
    with _output_to(log):
        return work(**cell)


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Append everything that this process and its children print to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    streams = ((sys.stdout, 1), (sys.stderr, 2))
    kept = [os.dup(number) for _, number in streams]
    with path.open("ab") as log:
        for stream, number in streams:
            stream.flush()
            os.dup2(log.fileno(), number)
    try:
        yield
    finally:
        for (stream, number), before in zip(streams, kept, strict=True):
            stream.flush()
            os.dup2(before, number)
            os.close(before)


def _gpu_of_each(processes: int) -> list[str]:
    """The GPU that each process sees, as ``CUDA_VISIBLE_DEVICES`` names it, in turn; empty if there is no choice."""
    torch = sys.modules.get("torch")  # a program without torch has no work for GPUs
    count = torch.cuda.device_count() if torch else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    names = visible if len(visible) == count else [str(gpu) for gpu in range(count)]
    return [names[process % count] if count > 1 else "" for process in range(processes)]


def _begin(gpus: Any) -> None:
    """Begin a process of a pool: choose its GPU before torch uses one, and end quickly (:func:`_quick_ends`)."""
    if gpu := gpus.get():
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    _quick_ends()


def _quick_ends() -> None:
    """Exit when the parent process ends, even if it was killed; and at the usual end leave torch as it is.

    Taking apart all imported modules would take more than a second of processor time.
    """
    accept_all_text()
    atexit.register(os._exit, 0)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
