"""Runs under the keys dp*: every method does what the table of docs/privacy.md says."""

import json
import re
import shutil
from math import sqrt

import pytest
from fedapps.sim.flower_internals import flower_identity
from fedapps.strategies import PoissonSampling, epsilon
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from killed_processes import killed_in
from safetensors.numpy import load_file
from small_runs import run_inline
from torch import nn

from fedapps.app.privacy import check_statistics, protected, spent
from fedapps.app.strategy import build_strategy
from fedapps.config.parsing import ConfigError, parse
from fedapps.registry.methods import method_class, method_names

SMALL = {
    "task": "lqr", "num-nodes": 3, "rounds": 2, "evaluate-every": 2, "epochs": 1, "batch-size": 32,
    "learning-rate": 0.01, "collect-after": 0, "name": "dp", "methods": "sfl",
}  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return tmp_path_factory.mktemp("worlds")


@pytest.fixture
def run(tmp_path, world):
    def start(**changes):
        given = SMALL | {key.replace("_", "-"): value for key, value in changes.items()}
        given |= {"cache-dir": str(world), "name": f"dp-{len(list(tmp_path.iterdir()))}"}
        return run_inline(given, tmp_path / given["name"])

    return start


def last_model(folder, method="sfl", rounds=2):
    (newest,) = sorted((folder.path / "checkpoints").glob(f"**/{method}/**/*{rounds}*.safetensors"))[-1:]
    return {name: a for name, a in load_file(newest).items() if name.startswith("shared.")}


def summary(folder):
    return json.loads((folder.path / "summary.json").read_text())["methods"]


def distance(left, right):
    return sqrt(sum(float(((left[name] - right[name]) ** 2).sum()) for name in left))


@pytest.mark.parametrize("dp", ["local", "central-server"])
def test_statistics_that_training_changes_are_refused_before_the_run_and_frozen_ones_are_not(dp):
    run = parse(SMALL | {"dp": dp}).run
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    net.eval()
    with pytest.raises(ValueError, match=r"method sfl: the model shares 1.running_mean and 1 more.*nn.GroupNorm"):
        check_statistics(run, "sfl", net, net.state_dict())
    assert not net.training
    check_statistics(run, "sfl", net, ["0.weight"])  # the statistics stay on the nodes
    check_statistics(parse(SMALL).run, "sfl", net, net.state_dict())
    net[1].train = lambda mode=True: net[1]
    check_statistics(run, "sfl", net, net.state_dict())


def test_a_run_with_a_batch_normalisation_and_privacy_leaves_no_folder(run, tmp_path, monkeypatch):
    monkeypatch.setattr("fedapps.tasks.lqr.task.LqrTask.build_model", lambda self: nn.BatchNorm1d(2))
    with pytest.raises(ValueError, match=r"dp = 'local': method sfl: .*running_mean"):
        run(dp="local")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dp", ["local", "central-server", "central-client"])
def test_without_noise_and_with_a_clip_that_nothing_reaches_the_run_is_that_without_privacy(run, dp):
    plain, guarded = run(), run(dp=dp, dp_clip=1e6, dp_noise=0.0)
    assert distance(last_model(plain), last_model(guarded)) < 1e-6
    assert "epsilon" not in summary(guarded)["sfl"]["final"]


@pytest.mark.parametrize("dp", ["local", "central-server", "central-client"])
def test_in_each_round_the_model_moves_by_the_clip_at_most(run, dp):
    held = run(dp=dp, dp_clip=1e-3, dp_noise=0.0)
    begin = run(dp="central-server", dp_clip=1e-12, dp_noise=0.0)
    assert 1e-4 < distance(last_model(begin), last_model(held)) <= 2e-3 * (1 + 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("dp", ["local", "central-server"])
def test_seeded_noise_repeats_and_is_as_large_as_it_says(run, dp):
    first, again = (run(dp=dp, dp_clip=1e-9, dp_noise=1e9, dp_seeded=True) for _ in range(2))
    unseeded = run(dp=dp, dp_clip=1e-9, dp_noise=1e9)
    still = last_model(run(dp="central-server", dp_clip=1e-9, dp_noise=0.0))
    assert distance(last_model(first), last_model(again)) == 0
    assert distance(last_model(first), last_model(unseeded)) > 0
    size = sum(array.size for array in still.values())
    # two rounds; the mean of three nodes' own noise, or a third of the clip's
    expected = sqrt(2 * size) * (1 / sqrt(3) if dp == "local" else 1 / 3)
    assert distance(still, last_model(first)) == pytest.approx(expected, rel=4 / sqrt(size))


@pytest.mark.parametrize("key", ["server-round", "virtual-draw"])
def test_a_message_whose_counts_are_no_integers_is_refused_by_their_key(key):
    config = parse(SMALL | {"dp": "local", "weighting": "uniform"})
    with flower_identity():
        message = Message(RecordDict({"arrays": ArrayRecord(), "config": ConfigRecord({key: 0.0})}), 1, "train")
    with pytest.raises(ValueError, match=rf"config {key} = 0\.0: must be of type int"):
        protected(config.run, message, Context(1, 1, {}, RecordDict(), {}), lambda *_: pytest.fail("it trains"))


def test_the_summary_tells_epsilon(run):
    methods = summary(run(dp="central-server", methods="sfl,local"))
    assert methods["sfl"]["final"]["epsilon_zero_out"] == epsilon(1.0, 2, 1e-5)
    assert not any(name.startswith("epsilon") for name in methods["local"]["final"])
    assert methods["sfl"]["privacy"] == (
        "dp = central-server: epsilon = 6.57 at delta = 1e-05 after 2 rounds; "
        "neighbouring runs differ in whether one node contributes its updates"
    )
    assert methods["local"]["privacy"] == ""


def test_under_local_privacy_neighbours_differ_in_the_updates_of_a_node(run):
    sfl = summary(run(dp="local"))["sfl"]
    assert sfl["final"]["epsilon_replace"] == epsilon(1.0, 2, 1e-5, sensitivity=2.0)
    assert sfl["privacy"].endswith("; neighbouring runs differ in the updates that one node sends")


def test_a_round_that_is_repeated_after_a_crash_counts_as_often_as_nodes_sent_their_updates(tmp_path, world):
    given = SMALL | {"dp": "local", "rounds": 4, "cache-dir": str(world)}
    for resume in (False, True, True, True):
        with killed_in("runs.checkpoints.DiskCheckpoints.save", when=lambda _, of, best: of.round == 3):
            run_inline(given | {"resume": resume}, tmp_path)
    folder = run_inline(given | {"resume": True}, tmp_path)
    sfl = summary(folder)["sfl"]
    assert folder.releases("sfl").by_round() == {1: 1, 2: 1, 3: 5, 4: 1}
    assert sfl["final"]["epsilon_replace"] == epsilon(1.0, 8, 1e-5, sensitivity=2.0) == pytest.approx(39.4, abs=0.05)
    assert "epsilon = 39.4 at delta = 1e-05 after 4 rounds, some of them repeated: 8 releases" in sfl["privacy"]
    # who removes all checkpoints repeats the whole run
    shutil.rmtree(folder.path / "checkpoints")
    (folder.path / "summary.json").unlink()
    run_inline(given | {"resume": True}, tmp_path)
    assert summary(folder)["sfl"]["final"]["epsilon_replace"] == epsilon(1.0, 12, 1e-5, sensitivity=2.0)
    (folder.path / "releases.jsonl").unlink()
    with pytest.raises(ValueError, match=r"releases\.jsonl has 0 releases of sfl, which trained 4 rounds: restore"):
        run_inline(given | {"resume": True}, tmp_path)


def test_a_draw_that_is_repeated_hides_nothing_more():
    def spent_by(releases, **keys):
        config = parse(
            SMALL | {"rounds": 3, "dp": "central-server", "sampling": "poisson", "fraction-train": 0.1} | keys
        )
        (value,) = spent(config, "sfl", releases).values()
        return value

    repeated = {1: 1, 2: 4, 3: 1}
    drawn_again = spent_by(repeated)
    assert drawn_again == epsilon(1.0, 6, 1e-5, sampling_probability=0.1)
    same_draw = spent_by(repeated, **{"dp-seeded": True})
    assert same_draw == epsilon(1.0, [1, 4, 1], 1e-5, sampling_probability=0.1) > drawn_again


def test_only_poisson_sampling_makes_central_privacy_stronger():
    def spent_by(**keys):
        config = parse(SMALL | {"num-nodes": 10, "rounds": 20, "fraction-train": 0.1} | keys)
        return spent(config, "sfl", dict.fromkeys(range(1, 21), 1))

    fixed = {"epsilon_zero_out": epsilon(1.0, 20, 1e-5)}
    sampled = {"epsilon_zero_out": epsilon(1.0, 20, 1e-5, sampling_probability=0.1)}
    assert spent_by(dp="central-server") == spent_by(dp="central-client") == fixed
    assert spent_by(dp="central-server", sampling="poisson") == sampled
    assert sampled["epsilon_zero_out"] < 0.2 * fixed["epsilon_zero_out"]
    assert spent_by(dp="local", sampling="poisson") == {"epsilon_replace": epsilon(1.0, 20, 1e-5, sensitivity=2.0)}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, 10),
        ({"fraction-train": 0.25}, 3),
        ({"fraction-train": 0.25, "sampling": "poisson"}, 2.5),
        ({"drop-nodes": True}, 9),
        ({"methods": "fedvc(draws=without-replacement)", "fraction-train": 0.25}, 3),
    ],
)
def test_the_sum_is_divided_by_the_number_of_nodes_that_the_config_expects(keys, expected):
    config = parse(SMALL | {"num-nodes": 10, "dp": "central-server"} | keys)
    strategy = build_strategy(config, next(iter(config.methods)), ["w"])
    assert strategy.privacy.expected_weight == expected


@pytest.mark.parametrize(
    ("keys", "seed"),
    [
        ({}, 7),
        ({"dp": "local"}, 7),
        ({"dp": "central-server"}, None),
        ({"dp": "central-client"}, None),
        ({"dp": "central-server", "dp-seeded": True}, 7),
    ],
)
def test_who_is_drawn_is_secret_where_the_guarantee_needs_it(keys, seed):
    config = parse(SMALL | {"seed": 7, "sampling": "poisson", "fraction-train": 0.5} | keys)
    assert build_strategy(config, "sfl", ["w"]).sampler == PoissonSampling(0.5, seed=seed)


def test_a_run_with_poisson_sampling_survives_rounds_without_nodes_and_repeats(run):
    keys = {"sampling": "poisson", "fraction_train": 0.2, "rounds": 6, "evaluate_every": 6, "dp_seeded": True}
    first, again = (run(dp="central-server", dp_noise=0.1, **keys) for _ in range(2))
    replies = [row["replies"] for row in first.lines("metrics.jsonl")]
    assert 0 in replies
    assert sum(replies) > 0
    assert replies == [row["replies"] for row in again.lines("metrics.jsonl")]
    assert distance(last_model(first, rounds=6), last_model(again, rounds=6)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("dp", ["local", "central-client"])
def test_methods_that_the_table_allows_run_to_their_end(run, dp):
    names = [
        "local",
        "spfl",
        "fedadam",
        *(["apfl", "clustered"] if dp == "local" else ["fedvc(draws=without-replacement)"]),
    ]
    folder = run(dp=dp, methods=",".join(names), dp_noise=0.01)
    assert all(folder.finished(name) for name in names)
    assert all(entry["refused"] == 0 for entry in summary(folder).values())


@pytest.mark.parametrize("dp", ["local", "central-server"])
def test_methods_that_send_more_than_the_mechanism_covers_are_refused_with_the_reason(dp):
    reasons = {name: method_class(name)().privacy_conflict(dp) for name in method_names()}
    refused = {name: reason for name, reason in reasons.items() if reason}
    assert {"fedcurv", "scaffold", "untrained"} <= refused.keys()
    assert not {"fedavg", "fedprox", "local"} & refused.keys()
    for name, reason in refused.items():
        if not method_class(name).needs_stages and method_class(name).task in ("", SMALL["task"]):
            with pytest.raises(ConfigError, match=f"dp = '{dp}': leave out of methods {name}.*{re.escape(reason)}"):
                parse(SMALL | {"methods": f"sfl,{name}", "dp": dp})


def test_a_run_without_a_mechanism_warns_of_the_keys_of_one(run, caplog):
    run(**{"rounds": 1, "evaluate-every": 1, "dp-noise": 2.0})
    assert "dp = 'none': no update is protected, and dp-noise has no effect" in caplog.text
    caplog.clear()
    run(**{"rounds": 1, "evaluate-every": 1})
    assert "no update is protected" not in caplog.text


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            {"dp": "central-client", "weighting": "num-examples"},
            "weighting = .*: must be 'uniform' with dp = 'central-cli",
        ),
        ({"dp-clip": 0.0}, "dp-clip"),
        ({"dp-noise": -1.0}, "dp-noise"),
        ({"dp": "central"}, "dp ="),
    ],
)
def test_values_that_cannot_be_used_are_named(keys, said):
    with pytest.raises(ConfigError, match=said):
        parse(SMALL | keys)
