"""Text classification on nodes that keep their vocabularies to themselves."""

from .options import Options
from .task import TextTask

__all__ = ["Options", "TextTask"]
