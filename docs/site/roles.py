"""Sphinx roles of docstrings, such as ``:class:`BaseStrategy```, as plain code on the site."""

import re
from typing import Any

from griffe import Extension, Object


class PlainRoles(Extension):
    """Takes the role away and leaves the name."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Change the docstring of a module, class, function or attribute that was just read."""
        if obj.docstring:
            obj.docstring.value = re.sub(
                r":(?:class|func|meth|mod|data|attr):`~?([^`]+)`", r"`\1`", obj.docstring.value
            )
