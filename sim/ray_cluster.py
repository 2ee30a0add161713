"""The machines of a Ray cluster as workers of an experiment matrix."""

import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from .matrix import Result, WorkerLostError, Workers

_SECONDS_TO_REACH = 10.0
#: The environment variable with the address of a cluster, which Ray joins where a program names none.
RAY_ADDRESS = "RAY_ADDRESS"
#: How often a cell begins again whose worker was lost.
RETRIES = 3


class ClusterError(ValueError):
    """There is no cluster to connect to."""


def check_named_cluster() -> None:
    """Check that the cluster in the environment variable ``RAY_ADDRESS``, if any, can be reached.

    Flower's simulation engine would try to join it for as long as the run waits for its nodes.

    Raises
    ------
    ClusterError
        Nothing listens at the address.
    """
    address = os.environ.get(RAY_ADDRESS, "")
    if address in ("", "auto", "local"):
        return
    try:
        _reach(address.removeprefix("ray://"))
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"{RAY_ADDRESS} = {address!r}: the Ray cluster that this environment variable names cannot be reached "
            f"({error}): unset it to start Ray on this machine, or start the cluster"
        ) from error


def _reach(address: str) -> None:
    """Raise an error where nothing listens at an address; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError("the address must be HOST:PORT, or auto")
    socket.create_connection((host, int(port)), timeout=_SECONDS_TO_REACH).close()


def most_workers(machines: Sequence[Mapping[str, Any]], cpus: int, gpus: float = 0.0) -> int:
    """The workers for which the machines that ``ray.nodes()`` lists have room."""
    needs = {kind: amount for kind, amount in (("CPU", cpus), ("GPU", gpus)) if amount}
    has = [machine["Resources"] for machine in machines]
    return sum(min(int(one.get(kind, 0) / amount) for kind, amount in needs.items()) for one in has)


def no_room(cpus: int, gpus: float = 0.0) -> str:
    """The message where there is room for no worker."""
    return (
        f"node-cpus = {cpus}: no machine has {cpus} CPU cores and {gpus:g} GPUs, which each node needs: lower "
        "node-cpus, or take another device"
    )


class RayCluster(Workers):
    """Cells as Ray tasks. A cell whose worker or machine is lost begins again on another one.

    All machines need the same Python environment, and cells find their files at the same paths on all of them.

    Parameters
    ----------
    address : str
        ``HOST:PORT`` of the cluster's head, or ``auto`` for the cluster that this machine belongs to.
    cpus : int
        CPU cores of a cell.
    """

    def __init__(self, address: str, cpus: int = 1) -> None:
        self._address, self._cpus = address, cpus
        self._references: dict[Future[Any], Any] = {}
        self._ray: Any  # the module, which takes a second to import

    def __enter__(self) -> "RayCluster":
        """Connect to the cluster. Raises :class:`ClusterError` if there is none, or one that does not fit."""
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # otherwise Ray warns of a later default
        import ray

        self._ray = ray
        try:
            if self._address != "auto":
                _reach(self._address)
            ray.init(address=self._address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError) as error:
            raise ClusterError(
                f"cluster {self._address!r}: cannot connect to a Ray cluster: {error}\nstart one with "
                "`ray start --head --port 6379`, and with `ray start --address HEAD:6379` on each other machine"
            ) from error
        if not self.count():  # cells would wait for ever
            ray.shutdown()
            raise ClusterError(f"cluster {self._address!r}: {no_room(self._cpus)}")
        return self

    def __exit__(self, *error: object) -> None:
        self._ray.shutdown()

    def count(self) -> int:
        return most_workers(self._ray.nodes(), self._cpus)

    def submit(self, work: Callable[..., Result], *arguments: Any) -> "Future[Result]":
        task = self._ray.remote(num_cpus=self._cpus, max_retries=RETRIES)(work)
        reference = task.remote(*arguments)
        future: Future[Result] = reference.future()
        self._references[future] = reference
        return future

    def result(self, future: "Future[Result]") -> Result:
        """As :meth:`Workers.result`. Raises :class:`WorkerLostError` if the cell lost its worker too often."""
        del self._references[future]
        try:
            return future.result()
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self._ray.exceptions.RayError as error:
            raise WorkerLostError(f"a run lost its worker {RETRIES + 1} times: {error}") from error

    def cancel(self) -> None:
        for reference in self._references.values():
            self._ray.cancel(reference, force=True)
