"""``from fedapps.strategies import NAME``: every public class is there, and none needs torch."""

import inspect
import subprocess
import sys
from importlib import import_module
from pkgutil import walk_packages

import pytest
from fedapps.strategies.algorithms.clustered import Similarity
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.compression import Compression
from fedapps.strategies.optimizers import ServerOptimizer
from fedapps.strategies.privacy import PrivacyMechanism
from fedapps.strategies.robust import RobustAggregation
from fedapps.strategies.samplers import Sampler

from fedapps import strategies

KINDS = (BaseStrategy, Compression, PrivacyMechanism, RobustAggregation, Sampler, ServerOptimizer, Similarity)


def test_every_strategy_and_every_part_is_a_public_name():
    modules = [import_module(found.name) for found in walk_packages(strategies.__path__, "fedapps.strategies.")]
    missing = [
        f"from {module.__name__.removeprefix('fedapps.strategies')} import {name}"
        for module in modules
        for name, kind in vars(module).items()
        if inspect.isclass(kind) and issubclass(kind, KINDS) and kind.__module__ == module.__name__
        if not name.startswith("_") and not inspect.isabstract(kind) and name not in strategies.__all__
    ]
    assert missing == [], "add these names to strategies/__init__.py"


def test_all_names_exist():
    names = {}
    exec("from fedapps.strategies import *", names)
    assert set(strategies.__all__) <= names.keys()
    assert set(strategies.__all__) == {name for name, value in vars(strategies).items() if is_public(name, value)}


def is_public(name: str, value: object) -> bool:
    return not name.startswith("_") and not inspect.ismodule(value)


@pytest.mark.subprocesses
def test_the_strategies_need_no_torch():
    code = "import sys, fedapps.strategies; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["False"]
