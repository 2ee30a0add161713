"""Several local parts as one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import reduce
from itertools import combinations
from operator import add
from types import UnionType
from typing import Any, Self, Union, get_args, get_origin, get_type_hints

from flwr.app import RecordDict

from fedapps.base.text_files import shown

from .local_part import LocalPart, entries_of

#: How the results of one hook of several parts become one: called with the parts' hooks and the hook's arguments.
Rule = Callable[..., Any]


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


def every(hooks: Sequence[Callable[..., Any]], *arguments: Any) -> None:
    """Call all hooks in their order."""
    for hook in hooks:
        hook(*arguments)


def chain(hooks: Sequence[Callable[..., Any]], value: Any, *arguments: Any) -> Any:
    """Give each hook, as its first argument, the value that the last one returned."""
    for hook in hooks:
        value = hook(value, *arguments)
    return value


def override(hooks: Sequence[Callable[..., Any]], *arguments: Any) -> Any:
    """Call the hook of the first part that overrides it; without one, the default."""
    return hooks[0](*arguments)


def first(hooks: Sequence[Callable[..., Any]], *arguments: Any) -> Any:
    """Return the first result that is not ``None``."""
    results = (hook(*arguments) for hook in hooks)
    return next((result for result in results if result is not None), None)


def total(hooks: Sequence[Callable[..., Any]], *arguments: Any) -> Any:
    """Add up the results that are not ``None``; ``None`` if all are."""
    results = [result for hook in hooks if (result := hook(*arguments)) is not None]
    return reduce(add, results) if results else None


def merged(hooks: Sequence[Callable[..., Any]], *arguments: Any) -> dict[str, Any]:
    """Return the entries of all results. Raise ``ValueError`` for a name that occurs twice."""
    return entries_of(hook(*arguments) for hook in hooks)


#: The rule of each hook.
RULES: Mapping[str, Rule] = {
    "check": every,
    "next_stage": chain,
    "remember": merged,
    "begin": chain,
    "wrap": chain,
    "stage_model": chain,
    "shared_parameters": override,
    "private": override,
    "outgoing": override,
    "seed_labels": total,
    "before_training": merged,
    "draw": chain,
    "plan": chain,
    "loss": chain,
    "prior": total,
    "metrics": merged,
    "records": merged,
    "trainable_parameters": override,
    "static_parameters": total,
    "answer": first,
    "before_evaluation": total,
    "adaptation": chain,
    "unprepared_prefix": first,
    "also_evaluated": merged,
    "bytes_on_disk": total,
}


@dataclass(frozen=True)
class ComposedParts(LocalPart):
    """Several parts as one: each hook is combined by its rule in :data:`RULES`.

    Parameters
    ----------
    parts : tuple of LocalPart
        As :func:`composed` returns them. Without parts a round is plain training.
    """

    parts: tuple[LocalPart, ...] = ()

    def read(self, config: Mapping[str, object], content: RecordDict) -> Self:
        return type(self)(tuple(part.read(config, content) for part in self.parts))

    def with_own_objective(self) -> str:
        """The name of the first part that wraps the model or changes the loss, so that nodes differ; empty if none."""
        return next((type(part).__name__ for part in self.parts if _has(part, "wrap") or _has(part, "loss")), "")


def _has(part: LocalPart, name: str) -> bool:
    """Whether a part overrides a hook."""
    return getattr(type(part), name) is not getattr(LocalPart, name)


def _combined(name: str, rule: Rule) -> Callable[..., Any]:
    default = getattr(LocalPart(), name)

    def hook(self: ComposedParts, *arguments: Any) -> Any:
        hooks = [_checked(part, name) for part in self.parts if _has(part, name)]
        return rule(hooks or [default], *arguments)

    return hook


def _checked(part: LocalPart, name: str) -> Callable[..., Any]:
    """The hook of a part, with a check of what it returns: another package may define it."""

    def checked(*arguments: Any) -> Any:
        result = getattr(part, name)(*arguments)
        if not isinstance(result, _RETURNED[name]):
            allowed = " or ".join("None" if kind is type(None) else kind.__name__ for kind in _RETURNED[name])
            returned = "None" if result is None else type(result).__name__  # its values may be private
            raise TypeError(f"{type(part).__name__}.{name} returned {returned}: it must return {allowed}")
        return result

    return checked


def _kinds(hint: Any) -> tuple[type, ...]:
    """The classes of the values that a type hint stands for."""
    if get_origin(hint) in (Union, UnionType):
        return tuple(kind for part in get_args(hint) for kind in _kinds(part))
    kind = get_origin(hint) or hint
    return (Mapping if kind is dict else kind,)


_RETURNED = {name: _kinds(get_type_hints(getattr(LocalPart, name))["return"]) for name in RULES}
for _name, _rule in RULES.items():
    setattr(ComposedParts, _name, _combined(_name, _rule))
