"""The sections of the report on houses."""

from pathlib import Path

FOLDER = Path(__file__).parent
