"""Addresses of Ray clusters that cannot be used."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from fedapps.sim.ray_cluster import ClusterError, RayCluster, check_named_cluster

from fedapps.base.processes import free_port
from fedapps.comparison.compare import compare_recipe
from fedapps.launch.launch import Simulation, launch


@pytest.mark.parametrize("address", ["localhost", "6379", ":6379", "localhost:port"])
def test_an_address_without_host_or_port_is_refused(address):
    with pytest.raises(ClusterError, match="the address must be HOST:PORT, or auto"), RayCluster(address):
        pass


def test_an_address_where_nothing_listens_is_refused_before_anything_runs(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(ClusterError, match=rf"cluster '{address}': cannot connect.*refused") as told:
        compare_recipe(Path("lqr"), methods=[], seeds=1, cluster=address, output_dir=str(tmp_path))
    assert "ray start --head" in str(told.value)
    assert not list(tmp_path.iterdir())


def test_a_cluster_without_room_for_a_run_is_refused(monkeypatch):
    """Six cores in all, but each machine has two."""
    calls = []
    stand_in = SimpleNamespace(
        init=lambda **options: calls.append("init"), shutdown=lambda: calls.append("shutdown"),
        nodes=lambda: [{"Resources": {"CPU": 2.0}}] * 3, cluster_resources=lambda: {"CPU": 6.0},
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "ray", stand_in)
    with pytest.raises(ClusterError, match="cluster 'auto': node-cpus = 3: no machine has 3"), RayCluster("auto", 3):
        pass
    assert calls == ["init", "shutdown"]
    with RayCluster("auto", 2) as workers:
        assert workers.count() == 3


def test_runs_that_start_ray_themselves_are_refused(tmp_path):
    with pytest.raises(ValueError, match="cluster 'auto': needs the engine inline"):
        compare_recipe(Path("lqr"), methods=[], seeds=1, engine="ray", cluster="auto", output_dir=str(tmp_path))


@pytest.mark.parametrize("form", ["{}", "ray://{}"])
def test_a_named_cluster_that_is_gone_is_refused_before_the_run(form, tmp_path, monkeypatch):
    address = form.format(f"127.0.0.1:{free_port()}")
    monkeypatch.setenv("RAY_ADDRESS", address)
    given = {"task": "lqr", "num-nodes": 2, "collect-after": 0, "cache-dir": str(tmp_path / "worlds")}
    with pytest.raises(ClusterError, match=rf"RAY_ADDRESS = '{address}': .* cannot be reached .*: unset it"):
        launch(given, Simulation("ray"), str(tmp_path / "runs"))
    assert not list((tmp_path / "runs").glob("*/*"))
    monkeypatch.setenv("RAY_ADDRESS", "local")
    check_named_cluster()
