"""Calls that run one after another and do a part of their work together.

:func:`side_by_side` runs a group of calls. A call that reaches :func:`jointly` pauses there until all others of its
group have reached it, too, or have ended. One function call then does the work of all that wait. No two calls run at
the same time, so they need no locks.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextvars import ContextVar, copy_context
from threading import Semaphore
from typing import Any, Generic, TypeVar

from fedapps.base.seeding import TorchState

Job = TypeVar("Job")
Result = TypeVar("Result")
#: Does the jobs of several calls. Each job comes with the state of torch's generators in its call. The result of a job,
#: or the exception that its call shall raise, has the position of the job.
JointFunction = Callable[[Sequence[Job], Sequence[TorchState]], Sequence[Result | Exception]]


def jointly(function: JointFunction[Job, Result], job: Job) -> Result:
    """Do a job together with those of all calls that run side by side with this one; alone if there are none.

    Parameters
    ----------
    function : JointFunction
        All calls of a group must name the same function.
    job : Job
        The job of this call.

    Returns
    -------
    Result
        The result of ``job``.

    Raises
    ------
    Exception
        The exception that ``function`` returned for ``job``, or raised.
    """
    result: Result | Exception
    if call := current_call.get():
        result = call.pause(function, job)
    else:
        state = TorchState()
        result = function([job], [state])[0]
        state.put()
    if isinstance(result, Exception):
        raise result
    return result


def side_by_side(calls: Sequence[Callable[[], Result]], threads: Executor) -> list[Result]:
    """Run calls, whose work in :func:`jointly` is done together, and return their results.

    Each call has its own state of torch's generators, which starts as the caller's; the caller's does not change.

    Parameters
    ----------
    calls : sequence of callables
    threads : Executor
        Runs each call in its own thread. To reuse a thread is faster than to start one.

    Raises
    ------
    Exception
        That of the first call which raised one, in the order of ``calls``, after all calls have ended.
    """
    if len(calls) == 1:
        with TorchState():
            return [calls[0]()]
    running = [_Call(call, threads) for call in calls]
    try:
        for call in running:
            call.go_on()
        while waiting := [call for call in running if not call.ended]:
            # The first that waits does the work, in its own thread: torch keeps settings for each thread.
            waiting[0].go_on(waiting)
            for call in waiting[1:]:
                call.go_on()
    finally:
        for call in running:
            call.give_up()
    return [call.result() for call in running]


class _GivenUpError(BaseException):
    """Ends a call that waits, because the group is given up."""


class _Call(Generic[Result]):
    """A call in its own thread. :meth:`go_on` lets the thread run until the call pauses or ends."""

    def __init__(self, call: Callable[[], Result], threads: Executor) -> None:
        self.ended = False
        self.function: JointFunction[Any, Any]
        self.job: Any = None
        self.answer: Any = None
        self.state = TorchState()
        self._call = call
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._group: Sequence[_Call[Any]] = ()
        self._given_up = False
        self._turn, self._paused = Semaphore(0), Semaphore(0)
        self._future = threads.submit(copy_context().run, self._run)

    def go_on(self, group: Sequence["_Call[Any]"] = ()) -> None:
        """Let the call run until it pauses or ends. With a group, it does the joint work of these calls first."""
        self._group = group
        self._turn.release()
        self._paused.acquire()

    def give_up(self) -> None:
        """End the call if it waits."""
        if not self.ended:
            self._given_up = True
            self._turn.release()
        self._future.result()

    def result(self) -> Result:
        """Return what the call returned, or raise what it raised."""
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def pause(self, function: JointFunction[Job, Result], job: Job) -> Result | Exception:
        """Wait until the work is done; called in the thread of this call."""
        self.function, self.job = function, job
        with self.state.away():
            self._wait()
            if self._group:
                _do_together(self._group)
        answer: Result | Exception = self.answer
        self.job = self.answer = None
        return answer

    def _run(self) -> None:
        current_call.set(self)
        try:
            self._turn.acquire()
            if not self._given_up:
                with self.state:
                    self._result = self._call()
        except BaseException as error:
            self._error = error
        finally:
            self.ended = True
            self._paused.release()

    def _wait(self) -> None:
        self._paused.release()
        self._turn.acquire()
        if self._given_up:
            raise _GivenUpError


#: The call that runs side by side with others in this context; ``None`` outside of :func:`side_by_side`.
current_call: ContextVar[_Call[Any] | None] = ContextVar("call", default=None)


def _do_together(group: Sequence[_Call[Any]]) -> None:
    """Do the jobs of calls that wait, and leave each its answer: a result or an exception."""
    function = group[0].function
    if any(call.function != function for call in group):
        error = ValueError("calls that run side by side asked for different functions: ask for the same one")
        answers: Sequence[Any] = [error] * len(group)
    else:
        try:
            answers = function([call.job for call in group], [call.state for call in group])
        except Exception as error:
            answers = [error] * len(group)
    for call, answer in zip(group, answers, strict=True):
        call.answer = answer
