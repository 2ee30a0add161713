"""What runs take of the GPUs of a machine, which torch says it has."""

from types import SimpleNamespace

import pytest

from fedapps.launch import launch
from fedapps.launch.plan import JobPlan


@pytest.mark.parametrize(("gpus", "device", "share"), [(0, "auto", 0.0), (1, "auto", 1 / 16), (3, "auto", 1 / 6),
                                                      (32, "auto", 1.0), (2, "cpu", 0.0)])  # fmt: skip
def test_nodes_share_the_gpus_in_ray(monkeypatch: pytest.MonkeyPatch, gpus: int, device: str, share: float) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setattr(launch, "usable_cores", lambda: 16)
    config = SimpleNamespace(run=SimpleNamespace(device=device, node_cpus=1))
    assert launch._gpus_per_node(config) == share  # type: ignore[arg-type]


@pytest.mark.parametrize(("device", "asked", "jobs"), [("auto", 0, 2), ("cpu", 0, 0), ("auto", 5, 5)])
def test_a_job_runs_once_per_gpu(monkeypatch: pytest.MonkeyPatch, device: str, asked: int, jobs: int) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("fedapps.app.node.has_gpus", lambda: True)
    plan = SimpleNamespace(engine="inline", config={"device": device})
    assert JobPlan.parallel(plan, asked) == jobs  # type: ignore[arg-type]
