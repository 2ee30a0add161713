"""Callbacks of a run from short keywords of a test."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedapps.strategies import Callback, Each, RequireEvaluations, Run, Save, Track


@dataclass
class Release(Callback):
    """Calls a function with a round and the identifier of the attempt, before TRAIN messages leave."""

    call: Callable[[int, str], object]

    def before_training(self, run: Run, server_round: int) -> None:
        self.call(server_round, run.attempts[-1][1])


def between(
    *, tracked=None, on_release=None, on_round=None, checkpoints=None, resume=False, max_failed_evaluations=3, **options
) -> dict[str, Any]:
    """The keywords of ``start``: callbacks in place of those that have one here."""
    callbacks: list[Callback] = [Track(tracked)] if tracked else []
    callbacks += [Release(on_release)] if on_release else []
    callbacks += [Each(on_round)] if on_round else []
    callbacks += [Save(checkpoints, resume)] if checkpoints else []
    callbacks.append(RequireEvaluations(max_failed_evaluations, tracked.metric if tracked else ""))
    return {**options, "callbacks": callbacks}
