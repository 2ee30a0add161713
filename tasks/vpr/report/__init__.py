"""The sections of the report on places."""

from pathlib import Path

FOLDER = Path(__file__).parent
