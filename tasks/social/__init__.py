"""How much a robot disturbs the people around it (SocNav1), learnt from one rater after another."""

from .options import Options
from .task import SocialTask

__all__ = ["Options", "SocialTask"]
