"""The sections of the report on control."""

from pathlib import Path

FOLDER = Path(__file__).parent
