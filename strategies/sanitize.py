"""Words of nodes as they may stand in logs, records and reports: of bounded length, without control characters."""

from typing import TypeGuard

MOST_SIGNS = 4000
MOST_IN_NAME = 200


def truncate(text: str, most: int = MOST_SIGNS) -> str:
    """A text of at most about ``most`` > 0 signs, whatever came.

    The first quarter is kept and the last three, where a traceback says what went wrong; control characters other than
    line ends and tabs are written as escapes.
    """
    if len(text) > most:
        head = most // 4
        text = f"{text[:head]} [... {len(text) - most} characters left out ...] {text[head - most :]}"
    return "".join(sign if sign.isprintable() or sign in "\n\t" else _escaped(sign) for sign in text)


def is_valid_name(text: object) -> TypeGuard[str]:
    """Whether a node may call something so: a string of 1 to 200 printable signs, on one line."""
    return isinstance(text, str) and 0 < len(text) <= MOST_IN_NAME and text.isprintable()


def _escaped(sign: str) -> str:
    return sign.encode("unicode_escape").decode()
