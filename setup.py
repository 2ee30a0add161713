"""The wheel has strategies/, clients/, tasks/ and sim/ below ``fedapps``; everything else stands in pyproject.toml."""

from setuptools import find_packages, setup

BESIDE = ("strategies", "clients", "tasks", "sim")

setup(
    packages=[
        *find_packages(include=["fedapps", "fedapps.*"]),
        *(f"fedapps.{name}" for folder in BESIDE for name in find_packages(include=[folder, f"{folder}.*"])),
    ],
    package_dir={f"fedapps.{folder}": folder for folder in BESIDE},
)
