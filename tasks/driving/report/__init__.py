"""The sections of the report on driving."""

from pathlib import Path

FOLDER = Path(__file__).parent
