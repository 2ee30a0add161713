"""Methods found by name, by alias, with arguments and in other packages."""

import sys
from collections import Counter
from dataclasses import dataclass, fields
from importlib import import_module
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import ClassVar

import pytest

from fedapps import methods
from fedapps.base.options import key_of, option
from fedapps.methods.base import Method
from fedapps.methods.fedprox import FedProx, FedProxOptions
from fedapps.registry import methods as registry
from fedapps.registry.expressions import read_expression
from fedapps.registry.methods import aliases, build_method, canonical, method_class, method_lines, method_names


def build(text, **blocks):
    return build_method(
        read_expression(text), {key.replace("_", ".", 1).replace("_", "-"): v for key, v in blocks.items()}
    )


def test_every_method_has_a_name_a_line_and_options_that_build_it():
    lines = method_lines()
    assert list(lines) == list(method_names())
    assert len(set(lines.values())) == len(lines)
    for name in method_names():
        kind = method_class(name)
        assert kind.name == name
        assert kind.summary
        assert "\n" not in kind.summary
        assert kind().options == kind.Options()
        assert all(f.metadata["doc"] for f in fields(kind.Options))


def test_a_method_stands_in_one_module_with_what_its_nodes_do_and_few_families_share_one():
    kinds = [method_class(name) for name in method_names()]
    modules = Counter(kind.__module__.removeprefix(f"{methods.__name__}.") for kind in kinds)
    assert {name: count for name, count in modules.items() if count > 1} == {
        "baselines": 4, "fedavg": 2, "fedopt": 4, "lora": 4, "partial": 3,
    }  # fmt: skip
    parts = {type(part) for kind in kinds for part in kind().local_parts()}
    assert all(part.__module__.startswith((methods.__name__, "fedapps.clients.")) for part in parts)


def test_arguments_go_before_keys_and_keys_before_defaults():
    assert build("fedprox") == FedProx(FedProxOptions(mu=0.001))
    assert build("fedprox", fedprox_mu=0.3).options.mu == 0.3
    assert build("fedprox(mu=1)", fedprox_mu=0.3).options.mu == 1.0
    assert build("fedprox(mu=0)").options.mu == 0.0


def test_aliases_stand_for_a_method_with_arguments():
    assert type(build("sfl")) is method_class("fedavg")
    assert build("local-ewc").options.local is True
    assert build("fedprox-ewc(mu=0.2)").options.mu == 0.2
    for alias in aliases():
        assert alias not in method_names()
        build(alias)


def test_the_canonical_label_is_the_same_for_all_ways_to_write_a_method():
    assert canonical("sfl") == canonical("fedavg") == "fedavg"
    assert canonical("fedprox(mu=0.001)") == canonical("fedprox( mu=1e-3 )") == "fedprox"
    assert canonical("fedavg-ewc") == canonical("ewc(mu=0.0,local=false)") == "ewc"
    assert canonical("fedprox(mu=0.1)") == "fedprox(mu=0.1)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("magic", "'magic' is unknown; known methods: apd, "),
        ("fedprox(mu=-1)", r"fedprox\.mu = -1\.0: must be a number at least 0"),
        ("fedprox(mu=much)", r"fedprox\.mu = 'much': must be a number at least 0"),
        ("fedprox(nu=1)", r"fedprox\.nu: unknown key; known keys: fedprox\.mu"),
        ("apfl(granularity=layer)", "granularity = 'layer': must be one of 'tensor', 'parameter'"),
        ("ewc(local=yes)", "local = 'yes': must be true or false"),
    ],
)  # fmt: skip
def test_what_cannot_be_built_says_what_is_allowed(text, said):
    with pytest.raises(ValueError, match=said):
        build(text)


# -- other packages ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GossipOptions:
    """Options of a method that another package brings."""

    fan_out: int = option(2, "nodes that hear of an update", minimum=1)


class Gossip(Method):
    """A method that another package brings."""

    name = "gossip"
    summary = "every node tells a few others"
    aliases: ClassVar = {"rumour": "gossip(fan-out=1)", "sfl": "gossip", "fedprox": "gossip"}
    Options = GossipOptions


@pytest.fixture
def installed(monkeypatch):
    """Install an entry point that names an attribute of this module."""

    def install(value, name="gossip"):
        module = SimpleNamespace(Gossip=Gossip, number=3)
        monkeypatch.setitem(sys.modules, "gossip_package", module)
        found = EntryPoint(name, value, registry.METHODS.group)
        monkeypatch.setattr("fedapps.registry.plugins", lambda group: {name: found})

    return install


def test_a_method_of_another_package_is_found_by_its_entry_point(installed):
    installed("gossip_package:Gossip")
    assert method_names()[-1] == "gossip"
    assert method_lines()["gossip"] == f"{Gossip.summary} [also: rumour]"
    assert build("gossip(fan-out=3)").options.fan_out == 3
    assert [key_of(f.name) for f in fields(method_class("gossip").Options)] == ["fan-out"]


def test_its_other_names_stand_for_it_where_no_method_of_this_package_has_them(installed):
    installed("gossip_package:Gossip")
    assert build("rumour").options.fan_out == 1
    assert build("rumour(fan-out=5)").options.fan_out == 5
    assert type(build("sfl")) is method_class("fedavg")
    assert type(build("fedprox")) is FedProx


@pytest.mark.parametrize(
    ("value", "name", "said"),
    [
        ("nowhere_to_be_found:Gossip", "gossip", "cannot be imported .ModuleNotFoundError.*reinstall its package"),
        ("gossip_package:number", "gossip", "must name a subclass of fedapps.methods.base.Method, not 3"),
        ("gossip_package:Gossip", "rumour", "must have name = 'rumour', not 'gossip'"),
    ],
)
def test_an_entry_point_that_cannot_be_used_is_named(installed, value, name, said):
    installed(value, name)
    with pytest.raises(ValueError, match=said):
        method_class(name)


def test_no_module_outside_the_room_names_a_method():
    """Whoever adds a method touches no other file: no other module may know the names."""
    from pathlib import Path

    root = Path(import_module("fedapps").__file__).parent
    # Words that are names of other things, too: a kind of privacy, a kind of optimizer, an English word.
    ordinary = {"local", "clustered"}
    audit = "audit/text.py"  # what a paper says of the leakage of three ways of sharing
    default_run = "config/run_config.py"  # the default of the key methods
    for path in root.rglob("*.py"):
        place = path.relative_to(root).as_posix()
        if place.startswith(("methods/", audit)) or place == default_run:
            continue
        text = path.read_text()
        named = [name for name in {*method_names(), *aliases()} - ordinary if f'"{name}"' in text]
        assert not named, f"{place} names {named}"
