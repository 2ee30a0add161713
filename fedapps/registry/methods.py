"""Methods by their names: the modules of ``fedapps/methods``, the entry points of other packages, and files."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from fedapps import methods
from fedapps.base.options import option_fields, option_values, parse_options
from fedapps.methods.base import Method

from .classes import Registry
from .expressions import Expression, read_expression
from .local_methods import local_methods

#: Prefix of the arguments that set a key of the run for one method: ``fedavg(run.learning-rate=0.01)``.
RUN_PREFIX = "run."


METHODS: Registry[Method] = Registry(methods, Method, "fedapps.methods", "methods", local_methods)
#: The names of all methods, without aliases, this package's first.
method_names = METHODS.names
#: The class of a method by its name, not by an alias.
method_class = METHODS.find


@cache
def own_aliases() -> Mapping[str, Expression]:
    """Other names of this package's methods, and what they stand for."""
    return _aliases_of(METHODS.own)


def aliases() -> Mapping[str, Expression]:
    """Other names of all methods, and what they stand for; this package's names go before those of other packages."""
    taken = {*own_aliases(), *method_names()}
    others = {a: meaning for a, meaning in _aliases_of(METHODS.usable()).items() if a not in taken}
    return {**own_aliases(), **others}


def _aliases_of(kinds: Mapping[str, type[Method]]) -> dict[str, Expression]:
    return {
        alias: read_expression(meaning or name)
        for name, kind in kinds.items()
        for alias, meaning in kind.aliases.items()
    }


@dataclass(frozen=True)
class Call:
    """A method's name and arguments, with aliases resolved."""

    name: str
    arguments: Mapping[str, str]

    @property
    def own(self) -> dict[str, str]:
        """The arguments that set options of the method."""
        return {key: text for key, text in self.arguments.items() if not key.startswith(RUN_PREFIX)}

    @property
    def run(self) -> dict[str, str]:
        """The arguments that set keys of the run for this method, without the prefix ``run.``."""
        run = self.arguments.items() - self.own.items()
        return {key.removeprefix(RUN_PREFIX): text for key, text in sorted(run)}


def resolved(expression: Expression) -> Call:
    """What an expression stands for. Raises ``ValueError`` for an unknown name."""
    known = own_aliases()
    if expression.name not in known and expression.name not in method_names():
        known = aliases()  # imports the methods of other packages
    named = known.get(expression.name, expression)
    return Call(method_class(named.name).name, {**dict(named.arguments), **dict(expression.arguments)})


def build_method(expression: Expression, blocks: Mapping[str, Any]) -> Method:
    """The method of an expression.

    Parameters
    ----------
    expression : Expression
        Its arguments go before the ``blocks``.
    blocks : mapping
        Flat keys of the run config such as ``fedprox.mu``; those of other methods are ignored.

    Raises
    ------
    ValueError
        The name or an option is unknown, or a value is not allowed; the message has a line per error.
    """
    call = resolved(expression)
    kind, prefix = method_class(call.name), f"{call.name}."
    own = {key.removeprefix(prefix): value for key, value in blocks.items() if key.startswith(prefix)}
    arguments, errors = parse_options(kind.Options, own, prefix)
    typed = {key: typed_argument(kind.Options, key, text) for key, text in call.own.items()}
    parsed, bad = parse_options(kind.Options, typed, prefix)
    if errors or bad:
        raise ValueError("\n".join([*errors, *bad]))
    options: Any = kind.Options(**(arguments | parsed))
    return kind(options)


@cache
def canonical(label: str) -> str:
    """The label of the same method without aliases and without arguments that are the defaults.

    Arguments that set keys of the run are kept.
    """
    call = resolved(read_expression(label))
    kind = method_class(call.name)
    differing = {
        key: text
        for key, value in option_values(kind.Options()).items()
        if (text := call.arguments.get(key)) is not None and typed_argument(kind.Options, key, text) != value
    }
    differing |= {RUN_PREFIX + key: text for key, text in call.run.items()}
    return Expression(call.name, tuple(differing.items())).label


def options_of(name: str) -> Mapping[str, Any]:
    """The default options of a method, by their keys in the run config."""
    return {f"{name}.{key}": value for key, value in option_values(method_class(name).Options()).items()}


def method_lines() -> Mapping[str, str]:
    """One line of help for each method, with its aliases; why it cannot be used for a damaged one."""
    known = aliases()

    def line(kind: type[Method]) -> str:
        others = [alias for alias, meaning in known.items() if meaning.name == kind.name]
        return kind.summary + (f" [also: {', '.join(others)}]" if others else "")

    return METHODS.lines(line)


def queries() -> tuple[str, ...]:
    """The names of the QUERY messages that nodes answer for their methods."""
    return tuple(dict.fromkeys(query for kind in METHODS.usable().values() for query in kind.queries))


def typed_argument(options: type, key: str, text: str) -> Any:
    """The text of an argument as its option's type, or unchanged where it is none; then it is refused as it stands."""
    known = option_fields(options)
    kind: Any = type(known[key].default) if key in known else str
    if kind is bool:
        return {"true": True, "false": False}.get(text, text)
    try:
        return kind(text)
    except ValueError:
        return text
