"""How the hooks of several local parts become one: the rules that :class:`~.local_part.LocalPart` declares."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any, TypeVar

#: How the results of one hook of several parts become one: called with the parts' hooks and the hook's arguments.
Rule = Callable[..., Any]
Hook = TypeVar("Hook", bound=Callable[..., Any])
Value = TypeVar("Value")


def combined_by(rule: Rule) -> Callable[[Hook], Hook]:
    """Declare by which rule the hook of several parts is combined (:class:`~.composed_parts.ComposedParts`)."""

    def declare(hook: Hook) -> Hook:
        hook.rule = rule  # type: ignore[attr-defined]
        return hook

    return declare


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
    """Call the hook of the first part that overrides it, or the default hook if no part does."""
    own = [hook for hook in hooks if not hasattr(hook, "rule")]
    return (own or hooks)[0](*arguments)


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


def entries_of(mappings: Iterable[Mapping[str, Value]]) -> dict[str, Value]:
    """All entries in one dictionary. Raises ``ValueError`` for a name that occurs twice."""
    merged: dict[str, Value] = {}
    for mapping in mappings:
        if twice := merged.keys() & mapping.keys():
            raise ValueError(f"two local algorithms of this node use the name {', '.join(sorted(twice))}: rename one")
        merged |= mapping
    return merged
