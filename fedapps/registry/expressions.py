"""Methods as they are written in a run config: ``fedavg, fedprox(mu=0.1), fedprox(mu=1) as FedProx``."""

import re
from dataclasses import dataclass

_NAME = re.compile(r"[A-Za-z][\w.-]*")
_FORM = "write methods as name or name(key=value, key=value), with 'as NAME' behind for reports, separated by commas"


@dataclass(frozen=True)
class Expression:
    """A method's name with its arguments as text.

    Parameters
    ----------
    name : str
    arguments : tuple of (key, text) pairs
        In the order in which they were written.
    display : str
        The name behind ``as``; empty if there is none.
    """

    name: str
    arguments: tuple[tuple[str, str], ...] = ()
    display: str = ""

    @property
    def shown(self) -> str:
        """The name in tables, figures and reports."""
        return self.display or self.label

    @property
    def label(self) -> str:
        """The expression without optional spaces and quotes: the method's name in folders and commands."""
        if not self.arguments:
            return self.name
        return f"{self.name}({','.join(f'{key}={_quoted(text)}' for key, text in self.arguments)})"


def split_expressions(text: str) -> list[str]:
    """The parts of ``text`` between commas that stand outside parentheses and quotes, without empty ones."""
    parts, depth, quote = [""], 0, ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "()":
            depth += 1 if sign == "(" else -1
        if sign == "," and not quote and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts if part.strip()]


def read_expression(text: str) -> Expression:
    """One expression.

    Raises
    ------
    ValueError
        The text does not have the form ``name(key=value, ...) as NAME``, or a key is given twice.
    """
    call, display = _named(text)
    name, bracket, rest = call.strip().partition("(")
    name = name.strip()
    if not _NAME.fullmatch(name) or (bracket and not rest.rstrip().endswith(")")):
        raise ValueError(f"{text!r}: {_FORM}")
    arguments: dict[str, str] = {}
    for pair in split_expressions(rest.rstrip()[:-1]) if bracket else []:
        key, equals, value = (piece.strip() for piece in pair.partition("="))
        if not equals or not _NAME.fullmatch(key):
            raise ValueError(f"{text!r}: {pair!r} is no key=value; {_FORM}")
        if key in arguments:
            raise ValueError(f"{text!r}: {key} is given twice")
        arguments[key] = _unquoted(value)
    return Expression(name, tuple(arguments.items()), display)


def read_expressions(text: str) -> tuple[list[Expression], list[str]]:
    """All expressions of a text, and a message for every one that cannot be read."""
    expressions: list[Expression] = []
    errors: list[str] = []
    for part in split_expressions(text):
        try:
            expressions.append(read_expression(part))
        except ValueError as error:
            errors.append(f"methods: {error}")
    return expressions, errors


def labels(text: str) -> list[str]:
    """The labels of the methods that a run config names, in its order. Raises ``ValueError`` for a malformed one."""
    return [read_expression(part).label for part in split_expressions(text)]


def shown_names(text: str) -> dict[str, str]:
    """The display names of the methods that a run config names, by label; methods without one are left out.

    Raises
    ------
    ValueError
        A method is malformed, or two of them would have the same name in tables.
    """
    expressions = [read_expression(part) for part in split_expressions(text)]
    names = {expression.label: expression.shown for expression in expressions}
    if twice := [name for label, name in names.items() if name != label and [*names.values()].count(name) > 1]:
        raise ValueError(f"methods: {twice[0]!r} is the name of two methods; choose another behind 'as'")
    return {label: name for label, name in names.items() if name != label}


def _named(text: str) -> tuple[str, str]:
    """What stands before and behind an ``as`` outside parentheses and quotes; the second is empty without one."""
    for match in re.finditer(r"\sas\s", text):
        outside = re.sub(r"'[^']*'|\"[^\"]*\"", "", text[: match.start()])
        if outside.count("(") == outside.count(")") and not set(outside) & set("'\""):
            return text[: match.start()], _unquoted(text[match.end() :].strip())
    return text, ""


def _quoted(text: str) -> str:
    return f"'{text}'" if set(text) & set(",() ") or not text else text


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
