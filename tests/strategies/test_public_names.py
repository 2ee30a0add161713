"""``from fedapps.strategies import NAME``: every public class is there, and none is loaded early."""

import ast
import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.compression import Compression
from fedapps.strategies.privacy import PrivacyMechanism
from fedapps.strategies.robust_aggregation import RobustAggregation
from fedapps.strategies.samplers import Sampler
from fedapps.strategies.server_optimizer import ServerOptimizer
from fedapps.strategies.similarity import Similarity

from fedapps import strategies

KINDS = (BaseStrategy, Compression, PrivacyMechanism, RobustAggregation, Sampler, ServerOptimizer, Similarity)


def test_a_strategy_is_the_class_of_its_module():
    from fedapps.strategies import BaseStrategy as Base
    from fedapps.strategies import HierarchicalFedAvg, Yogi

    assert Base is BaseStrategy
    assert HierarchicalFedAvg is import_module("fedapps.strategies.hierarchical").HierarchicalFedAvg
    assert Yogi is import_module("fedapps.strategies.optimizers").Yogi


def test_every_strategy_and_every_part_is_a_public_name():
    modules = [import_module(f"fedapps.strategies.{found.name}") for found in iter_modules(strategies.__path__)]
    missing = [
        f"from .{module.__name__.rpartition('.')[2]} import {name} as {name}"
        for module in modules
        for name, kind in vars(module).items()
        if inspect.isclass(kind) and issubclass(kind, KINDS) and kind.__module__ == module.__name__
        if not name.startswith("_") and not inspect.isabstract(kind) and name not in strategies.__all__
    ]
    assert missing == [], "add these names to strategies/__init__.py, to the imports and to _MODULES"


def test_type_checkers_see_the_same_names_in_the_same_modules():
    (block,) = (node for node in ast.parse(Path(strategies.__file__).read_text()).body if isinstance(node, ast.If))
    shown = {(name.name, name.asname, node.module) for node in block.body for name in node.names}
    assert shown == {(name, name, module) for name, module in strategies._MODULES.items()}


def test_all_names_exist_and_are_listed():
    found = {}
    exec("from fedapps.strategies import *", found)
    assert set(strategies.__all__) <= found.keys()
    assert set(strategies.__all__) <= set(dir(strategies))
    assert all(found[name].__name__ == name for name in strategies.__all__)


def test_an_unknown_name_is_an_import_error():
    with pytest.raises(ImportError, match="cannot import name 'FedMagic'"):
        from fedapps.strategies import FedMagic  # noqa: F401
    with pytest.raises(AttributeError, match=r"module 'fedapps\.strategies' has no attribute 'FedMagic'"):
        strategies.FedMagic  # noqa: B018


@pytest.mark.subprocesses
def test_importing_the_package_loads_neither_flower_nor_numpy():
    code = (
        "import sys, fedapps.strategies; print(sorted({'flwr', 'numpy', 'torch'} & sys.modules.keys())); "
        "from fedapps.strategies import UniformFraction; print('fedapps.strategies.hierarchical' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "False"]
