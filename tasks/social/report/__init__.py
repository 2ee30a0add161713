"""The sections of the report on social scenes."""

from pathlib import Path

FOLDER = Path(__file__).parent
