"""The local parts of a node as one part, with the defaults of plain training."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from fedapps.tasks.base import NodeData
from flwr.app import ArrayRecord, RecordDict
from torch import nn

from .local_part import LocalPart, NodeRound, Prepared
from .named_arrays import Arrays, get_arrays, matches, private_names
from .penalties import QuadraticPrior, sum_of
from .training import Loss, Phase

Value = TypeVar("Value")


@dataclass(frozen=True)
class ComposedParts(LocalPart):
    """Calls every hook of the parts in their order.

    Parameters
    ----------
    parts : tuple of LocalPart
        As :func:`~fedapps.clients.local_part.composed` returns them. Without parts a round is plain training.
    """

    parts: tuple[LocalPart, ...] = ()

    def read(self, config: Mapping[str, object], content: RecordDict) -> Self:
        return type(self)(tuple(part.read(config, content) for part in self.parts))

    def check(self, node_round: NodeRound) -> None:
        for part in self.parts:
            part.check(node_round)

    def kept(self, kept: Arrays) -> Arrays:
        for part in self.parts:
            kept = part.kept(kept)
        return kept

    def next_stage(self, carried: Arrays, kept: Arrays) -> Arrays:
        for part in self.parts:
            carried = part.next_stage(carried, kept)
        return carried

    def remember(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        return _merged(part.remember(model, node_round) for part in self.parts)

    def wrap(self, model: nn.Module, node_round: NodeRound) -> nn.Module:
        for part in self.parts:
            model = part.wrap(model, node_round)
        return model

    def stage_model(self, model: nn.Module, stage: int) -> nn.Module:
        for part in self.parts:
            model = part.stage_model(model, stage)
        return model

    def shared_parameters(self, model: nn.Module, node_round: NodeRound) -> Mapping[str, nn.Parameter]:
        for part in self.parts:
            if (shared := part.shared_parameters(model, node_round)) is not None:
                return shared
        return {name: p for name, p in model.named_parameters() if name in node_round.received}

    def private(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        for part in self.parts:
            if (private := part.private(model, node_round)) is not None:
                return private
        names = private_names(model, node_round.received)
        return get_arrays(model, [name for name in names if not matches(name, node_round.task.fixed)])

    def outgoing(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        for part in self.parts:
            if (outgoing := part.outgoing(model, node_round)) is not None:
                return outgoing
        return get_arrays(model, node_round.received)

    def seed_labels(self) -> tuple[int | str, ...]:
        return tuple(label for part in self.parts for label in part.seed_labels())

    def draw(self, data: NodeData, node_round: NodeRound) -> NodeData:
        for part in self.parts:
            data = part.draw(data, node_round)
        return data

    def plan(self, plan: Sequence[Phase], model: nn.Module, data: NodeData, node_round: NodeRound) -> Sequence[Phase]:
        for part in self.parts:
            plan = part.plan(plan, model, data, node_round)
        return plan

    def loss(self, loss: Loss) -> Loss:
        for part in self.parts:
            loss = part.loss(loss)
        return loss

    def with_own_objective(self) -> str:
        """The name of the first part that wraps the model or changes the loss, so that nodes differ; empty if none."""
        for part in self.parts:
            if type(part).wrap is not LocalPart.wrap or type(part).loss is not LocalPart.loss:
                return type(part).__name__
        return ""

    def prior(
        self, shared: Mapping[str, nn.Parameter], model: nn.Module, node_round: NodeRound
    ) -> QuadraticPrior | None:
        return sum_of(part.prior(shared, model, node_round) for part in self.parts)

    def records(self, trained: Arrays, model: nn.Module, node_round: NodeRound) -> Mapping[str, ArrayRecord]:
        return _merged(part.records(trained, model, node_round) for part in self.parts)

    def trainable_parameters(self, model: nn.Module, stages: int) -> int:
        for part in self.parts:
            if (count := part.trainable_parameters(model, stages)) is not None:
                return count
        return sum(parameter.numel() for parameter in model.parameters())

    def static_parameters(self, shared: Mapping[str, nn.Parameter], memory: Arrays) -> int:
        return sum(part.static_parameters(shared, memory) for part in self.parts)

    def answer(self, query: str, node_round: NodeRound) -> Mapping[str, ArrayRecord]:
        """Return the answer of the first part that knows the query.

        Raises
        ------
        ValueError
            No part knows the query, or the part that does cannot answer it.
        """
        for part in self.parts:
            if (records := part.answer(query, node_round)) is not None:
                return records
        known = ", ".join(type(part).__name__ for part in self.parts) or "none"
        raise ValueError(f"query {query!r}: no local algorithm of this node answers it; it has: {known}")

    def before_evaluation(self, model: nn.Module, node_round: NodeRound) -> Prepared:
        prepared = [part.before_evaluation(model, node_round) for part in self.parts]
        return Prepared(sum(one.steps for one in prepared), _merged(one.kept for one in prepared))

    def unprepared_prefix(self) -> str:
        return next((prefix for part in self.parts if (prefix := part.unprepared_prefix())), "")

    def also_evaluated(self) -> Mapping[str, Arrays]:
        return _merged(part.also_evaluated() for part in self.parts)

    def bytes_on_disk(self, model_bytes: int, version_bytes: int, stages: int) -> int:
        return sum(part.bytes_on_disk(model_bytes, version_bytes, stages) for part in self.parts)


def _merged(mappings: Iterable[Mapping[str, Value]]) -> dict[str, Value]:
    """All entries in one dictionary. Raises ``ValueError`` for a name that occurs twice."""
    merged: dict[str, Value] = {}
    for mapping in mappings:
        if twice := merged.keys() & mapping.keys():
            raise ValueError(f"two local algorithms of this node use the name {', '.join(sorted(twice))}: rename one")
        merged |= mapping
    return merged
