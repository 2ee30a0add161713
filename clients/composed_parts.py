"""Several local parts as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from itertools import combinations
from types import UnionType
from typing import Any, Self, Union, get_args, get_origin, get_type_hints

from flwr.app import RecordDict
from torch import nn

from fedapps.base.text_files import shown

from .hook_rules import Rule
from .local_part import LocalPart


def composed(parts: Sequence[LocalPart]) -> tuple[LocalPart, ...]:
    """Check that parts can be combined, and return them as a tuple.

    Raises
    ------
    ValueError
        Two parts need the same thing for themselves, or are of the same class; or one is no part.
    """
    if not isinstance(parts, Sequence):
        raise ValueError(f"local_parts() returned {shown(parts)}: it must return a list of parts, which can be empty")
    for part in parts:
        if not isinstance(part, LocalPart):
            raise ValueError(f"local_parts() returned {shown(part)}: each must be an object of a subclass of LocalPart")
        if not is_dataclass(part):
            raise ValueError(
                f"the local algorithm {type(part).__name__} must have the decorator @dataclass(frozen=True)"
            )
    for one, other in combinations(parts, 2):
        if type(one) is type(other):
            raise ValueError(f"the local algorithm {type(one).__name__} is given twice: give it once")
        if needs := one.exclusive & other.exclusive:
            raise ValueError(
                f"the local algorithms {type(one).__name__} and {type(other).__name__} cannot be combined: both need "
                f"{' and '.join(sorted(needs))} for themselves"
            )
    return tuple(parts)


@dataclass(frozen=True)
class ComposedParts(LocalPart):
    """Several parts as one: each hook is combined by the rule that :class:`LocalPart` declares beside it.

    Parameters
    ----------
    parts : tuple of LocalPart
        As :func:`composed` returns them. Without parts a round is plain training.
    """

    parts: tuple[LocalPart, ...] = ()

    def read(self, config: Mapping[str, object], content: RecordDict) -> Self:
        return type(self)(tuple(part.read(config, content) for part in self.parts))

    def without_extension(self, model: nn.Module) -> nn.Module:
        """The task's model of the parts that extended it, as :meth:`stage_model` gives it; others do not wrap it."""
        for part in self.parts:
            if type(part).extend is not LocalPart.extend:
                model = part.stage_model(model, 0)
        return model

    def with_own_objective(self) -> str:
        """The name of the first part that wraps the model or changes the loss, so that nodes differ; empty if none."""
        for part in self.parts:
            if type(part).wrap is not LocalPart.wrap or type(part).loss is not LocalPart.loss:
                return type(part).__name__
        return ""


def _combined(name: str, rule: Rule) -> Callable[..., Any]:
    def hook(self: ComposedParts, *arguments: Any) -> Any:
        return rule([_checked(part, name) for part in self.parts or (LocalPart(),)], *arguments)

    return hook


def _checked(part: LocalPart, name: str) -> Callable[..., Any]:
    """The hook of a part, with a check of what it returns where the part has its own."""
    hook: Callable[..., Any] = getattr(part, name)
    if hasattr(hook, "rule"):
        return hook

    def checked(*arguments: Any) -> Any:
        found = hook(*arguments)
        if not isinstance(found, _RETURNED[name]):
            allowed = " or ".join("None" if kind is type(None) else kind.__name__ for kind in _RETURNED[name])
            returned = "None" if found is None else type(found).__name__  # its values may be private
            raise TypeError(f"{type(part).__name__}.{name} returned {returned}: it must return {allowed}")
        return found

    return checked


def _kinds(hint: Any) -> tuple[type, ...]:
    """The classes of the values that a type hint stands for."""
    if get_origin(hint) in (Union, UnionType):
        return tuple(kind for part in get_args(hint) for kind in _kinds(part))
    kind = get_origin(hint) or hint
    return (Mapping if kind is dict else kind,)


#: What each hook returns, for the check of hooks that other packages define.
_RETURNED: dict[str, tuple[type, ...]] = {}
for _name, _hook in vars(LocalPart).items():
    if hasattr(_hook, "rule"):
        _RETURNED[_name] = _kinds(get_type_hints(_hook)["return"])
        setattr(ComposedParts, _name, _combined(_name, _hook.rule))
