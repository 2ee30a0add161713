"""``from fedapps.strategies import NAME``: every public class is there, and none is loaded early."""

import inspect
import subprocess
import sys
from importlib import import_module
from pkgutil import walk_packages

import pytest
from fedapps.strategies.aggregation.robust import RobustAggregation
from fedapps.strategies.algorithms.clustered import Similarity
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.compression import Compression
from fedapps.strategies.nodes.samplers import Sampler
from fedapps.strategies.optimizers import ServerOptimizer
from fedapps.strategies.privacy import PrivacyMechanism

from fedapps import strategies

KINDS = (BaseStrategy, Compression, PrivacyMechanism, RobustAggregation, Sampler, ServerOptimizer, Similarity)


def test_every_strategy_and_every_part_is_a_public_name():
    modules = [import_module(found.name) for found in walk_packages(strategies.__path__, "fedapps.strategies.")]
    missing = [
        f"from {module.__name__.removeprefix('fedapps.strategies')} import {name} as {name}"
        for module in modules
        for name, kind in vars(module).items()
        if inspect.isclass(kind) and issubclass(kind, KINDS) and kind.__module__ == module.__name__
        if not name.startswith("_") and not inspect.isabstract(kind) and name not in strategies.__all__
    ]
    assert missing == [], "add these names to strategies/__init__.py"


def test_all_names_exist_and_are_listed():
    found = {}
    exec("from fedapps.strategies import *", found)
    assert set(strategies.__all__) <= found.keys()
    assert set(strategies.__all__) <= set(dir(strategies))
    for name, module in strategies._MODULES.items():
        assert found[name] is getattr(import_module(f"fedapps.strategies.{module}"), name)


def test_an_unknown_name_is_an_import_error():
    with pytest.raises(ImportError, match="cannot import name 'FedMagic'"):
        from fedapps.strategies import FedMagic  # noqa: F401
    with pytest.raises(AttributeError, match=r"module 'fedapps\.strategies' has no attribute 'FedMagic'"):
        strategies.FedMagic  # noqa: B018


@pytest.mark.subprocesses
def test_importing_the_package_loads_neither_flower_nor_numpy():
    code = (
        "import sys, fedapps.strategies; print(sorted({'flwr', 'numpy', 'torch'} & sys.modules.keys())); "
        "from fedapps.strategies import UniformFraction; print('fedapps.strategies.base' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "False"]
