"""The mixture of Deng et al.: by hand, beside FedAvg and training alone, and the limits of its weight."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from method_worlds import Points, Quadratics, SecondWorld, run_method
from toys import same_rounds

from fedapps.cli.descriptions import described_name
from fedapps.methods.apfl_deng import ApflDengPart

near = lambda *numbers: pytest.approx(list(numbers), abs=2e-6)  # noqa: E731


def shares(run):
    return [float(run.kept[node]["memory.apfl-deng.alpha"]) for node in (0, 1)]


def test_two_worlds():
    run = run_method("apfl-deng(adaptive=false)", rounds=1)
    assert run.memory("personal.theta") == near(0.1925, -0.26625)
    run = run_method("apfl-deng(adaptive=false)")
    assert run.values() == near(-0.065, -0.10725)
    assert run.memory("personal.theta") == near(0.378542, -0.486138)
    run = run_method("apfl-deng(adaptive=false)", SecondWorld)
    assert run.values() == near(-0.16, -0.264)
    assert run.memory("personal.theta") == near(0.195248, -0.47456)


def test_the_weight_is_learned_at_the_start_of_a_round(tmp_path):
    run = run_method("apfl-deng", folder=tmp_path)
    assert shares(run) == near(0.549858, 0.550375)
    assert run.memory("personal.theta") == near(0.395712, -0.505243)
    rows = [row for row in run.folder.lines("nodes.jsonl") if row["round"] == 2]
    assert [row["metrics"]["apfl-deng.alpha"] for row in rows if row["phase"] == "train"] == shares(run)
    # The mixture is with the model that is evaluated, w = -.10725.
    mixed = [-0.10725 + share * (v + 0.10725) for share, v in zip(shares(run), (0.395712, -0.505243), strict=True)]
    losses = [0.5 * a * (m - b) ** 2 for m, (a, b) in zip(mixed, Quadratics.nodes, strict=True)]
    assert [row["metrics"]["test.loss"] for row in rows if row["phase"] == "evaluate"] == near(*losses)
    assert shares(run_method("apfl-deng", absent={(2, 0)})) == near(0.5, 0.550375)


@pytest.mark.parametrize("keys", [{}, {"clip_norm": 0.5}, {"optimizer": "adam", "batch_size": 3}])
def test_the_shared_model_is_that_of_fedavg_and_the_whole_share_is_a_node_alone(keys):
    alone, fedavg, local = (
        run_method(method, Points, **keys) for method in ("apfl-deng(alpha=1,adaptive=false)", "fedavg", "local")
    )
    assert same_rounds(alone.arrays, fedavg.arrays)
    for node in (0, 1):
        assert all(np.array_equal(alone.kept[node][f"memory.personal.{n}"], a) for n, a in local.kept[node].items())
    assert same_rounds(run_method("apfl-deng", Points, **keys).arrays, fedavg.arrays)


def test_no_share_is_fedavg(tmp_path):
    runs = [
        run_method(method, SecondWorld, folder=tmp_path / method[:5])
        for method in ("apfl-deng(alpha=0,adaptive=false)", "fedavg")
    ]
    losses = [[row["evaluate"]["test.loss"] for row in run.folder.lines("metrics.jsonl")] for run in runs]
    assert losses[0] == losses[1]
    assert runs[0].memory("personal.theta") == [0, 0]


@settings(deadline=None, max_examples=5)
@given(st.floats(0, 1), st.floats(-30, 30), st.floats(-30, 30))
def test_the_share_stays_between_none_and_all(share, one, other):
    class World(Quadratics):
        name = "world"
        nodes = ((1.0, one), (3.0, other))

    run = run_method(f"apfl-deng(alpha={share})", World, rounds=3)
    assert all(0 <= found <= 1 for found in shares(run))


def test_a_new_stage_keeps_the_personal_model_and_its_share():
    kept = {"w": 0, "memory.personal.w": 1, "memory.apfl-deng.alpha": 2, "memory.stage": 3}
    assert ApflDengPart().next_stage({"w": 0}, kept) == {"w": 0, "memory.personal.w": 1, "memory.apfl-deng.alpha": 2}


@pytest.mark.parametrize(
    ("name", "authors", "other"), [("apfl", "Nakanoya", "apfl-deng"), ("apfl-deng", "Deng", "which is apfl")]
)
def test_the_list_says_which_of_the_two_methods_of_this_name_is_which(name, authors, other):
    said = " ".join(described_name(name).split())
    assert f"paper {authors} et al." in said
    assert other in said
