"""Attacks by hand, and who makes them."""

from dataclasses import replace
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from adding_nodes import START, add_partition
from fedapps.strategies import BaseStrategy
from flwr.app import ConfigRecord, MetricRecord, RecordDict
from small_runs import run_inline
from toys import arithmetic_app, record_of

from benchmarks import rogue
from benchmarks.attacks import (
    ATTACKS,
    AttackedGrid,
    Gaussian,
    InnerProduct,
    Knowledge,
    LittleIsEnough,
    SignFlip,
    largest_z,
)
from benchmarks.byzantine import main, run_under_attack
from benchmarks.rogue import JustBelow
from fedapps.config.recipe_files import read_recipe
from fedapps.launch.inputs import resolve


def known(**changes):
    facts = {
        "sent": {"w": np.array([1.0, 2.0], np.float32), "steps": np.array(3)},
        "trained": {"w": np.array([2.0, 2.5], np.float32), "steps": np.array(4)},
        "honest": [{"w": np.array(w, np.float32), "steps": np.array(9)} for w in ([2, 2], [4, 2], [6, 8])],
        "attackers": 2,
        "generator": np.random.default_rng(1),
    }
    return Knowledge(**facts | changes)


def test_the_sign_of_the_nodes_own_update_is_flipped():
    reply = SignFlip(4.0).reply(known())
    assert reply["w"].tolist() == [1 - 4 * 1, 2 - 4 * 0.5]
    assert (reply["w"].dtype, reply["steps"]) == (np.float32, 4)


def test_a_little_is_a_number_of_deviations_below_the_honest_mean():
    reply = LittleIsEnough(0.5).reply(known())["w"]  # means 4 and 4, deviations sqrt(8/3) and sqrt(8)
    np.testing.assert_allclose(reply, [4 - 0.5 * np.sqrt(8 / 3), 4 - 0.5 * np.sqrt(8)], rtol=1e-6)


def test_the_inner_product_with_the_honest_mean_is_negative():
    assert InnerProduct(0.5).reply(known())["w"].tolist() == [1 - 0.5 * 3, 2 - 0.5 * 2]


def test_gaussian_updates_have_the_deviation_and_depend_on_the_generator():
    sent = {"w": np.full(20_000, 5.0)}
    drawn = Gaussian(2.0).reply(known(sent=sent, trained=sent))["w"]
    assert drawn.mean() == pytest.approx(5.0, abs=0.1)
    assert drawn.std() == pytest.approx(2.0, rel=0.05)
    assert (drawn == Gaussian(2.0).reply(known(sent=sent, trained=sent))["w"]).all()


@pytest.mark.parametrize(
    ("nodes", "attackers", "share"),
    [(50, 12, (38 - 14) / 38), (10, 4, (6 - 2) / 6), (10, 2, 0.5), (7, 3, (4 - 1) / 4), (3, 1, 0.5)],
)
def test_the_largest_z_of_the_paper(nodes, attackers, share):
    assert largest_z(nodes, attackers) == pytest.approx(NormalDist().inv_cdf(share))


class Recording(AttackedGrid):
    """Keeps the arrays of all train replies of the first round, by partition."""

    def pull_messages(self, message_ids):
        for reply in super().pull_messages(message_ids):
            if "arrays" in reply.content:
                self.seen = getattr(self, "seen", [])
                self.seen.append(reply.content["arrays"]["encoder.w"].numpy())
            yield reply


def replies(attack, attackers, seed=1):
    """Node k adds k + 1 to (1, 2)."""
    grid = Recording(arithmetic_app(add_partition), [{}] * 4, {}, attack=attack, attackers=attackers, seed=seed)
    BaseStrategy().start(grid, record_of(START), num_rounds=1)
    return [reply.tolist() for reply in grid.seen]


@pytest.mark.usefixtures("flower_identity")
def test_attackers_know_the_honest_replies_and_the_others_stay_as_they_are():
    honest = [[2.0, 3.0], [3.0, 4.0], [4.0, 5.0], [5.0, 6.0]]
    assert replies(InnerProduct(1.0), []) == honest
    # the honest nodes 0 and 2 move by 1 and 3
    assert replies(InnerProduct(1.0), [1, 3]) == [honest[0], [-1.0, 0.0], honest[2], [-1.0, 0.0]]
    assert replies(SignFlip(1.0), [3]) == [*honest[:3], [-3.0, -2.0]]


@pytest.mark.usefixtures("flower_identity")
def test_the_draws_are_those_of_the_seed_and_the_node():
    first, again, other = (replies(Gaussian(), [1, 3], seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert first[1] != first[3]


@pytest.mark.usefixtures("flower_identity")
@pytest.mark.parametrize("attack", ATTACKS)
def test_where_all_nodes_attack_there_is_still_a_reply(attack):
    assert np.isfinite(replies(ATTACKS[attack](), range(4))).all()


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("num-nodes=5", "aggregation = 'krum': needs at least 7 replies"),
        ("methods=apfl", "leave out of methods apfl"),
        ("methods=fedsomething", "fedsomething"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_anything_runs(key, message, capsys):
    assert main(["--recipe", "lqr", "--set", "num-nodes=9", "--set", key]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_without_attackers_a_run_is_an_ordinary_one_and_an_attack_changes_it(tmp_path):
    keys = {"task": "lqr", "num-nodes": 5, "rounds": 3, "evaluate-every": 3, "epochs": 1, "collect-after": 0,
            "batch-size": 32, "learning-rate": 0.01,
            "methods": "fedavg", "name": "byzantine", "cache-dir": str(tmp_path / "worlds")}  # fmt: skip
    plain = run_inline(keys, tmp_path).summary()["methods"]["fedavg"]["final"]["test.excess"]

    def run(aggregation, attack, share):
        config = keys | {"aggregation": aggregation}
        return run_under_attack(attack=attack, attackers=share, seed=0, metric="test.excess", config=config)

    assert run("mean", "none", 0.0) == plain
    assert run("mean", "sign-flip", 0.19) == plain  # 0.19 of 5 nodes is none
    assert run("mean", "sign-flip", 0.2) > 2 * plain
    assert run("median", "sign-flip", 0.2) < 2 * plain


def test_the_strongest_attack_within_the_bound_has_nine_tenths_of_what_is_accepted():
    sent = {"w": np.zeros(2, np.float32)}
    message = RecordDict({"arrays": record_of(sent), "config": ConfigRecord({"server-round": 1})})
    replies = [{"w": np.array(w, np.float32)} for w in ([3, 4], [0, 1], [6, 8])]
    contents = [
        RecordDict({"arrays": record_of(reply), "metrics": MetricRecord({"q-ffl.loss": 1.0})}) for reply in replies
    ]
    facts = known(sent=sent, trained=replies[0], honest=replies, message=message)
    facts = replace(facts, exchanges=[(message, content) for content in contents])
    JustBelow(bound=2.0).spoil(contents[0], facts)
    update = contents[0]["arrays"]["w"].numpy()
    np.testing.assert_allclose(update, -0.9 * 2 * 5 * np.array([9, 13]) / np.hypot(9, 13), rtol=1e-6)  # median norm 5
    assert contents[0]["metrics"]["q-ffl.loss"] == 100


def test_the_products_of_adapters_are_within_the_bound_too():
    sent = {"lora_A": np.array([[1.0, 0.0]]), "lora_B": np.zeros((2, 1))}
    config = ConfigRecord({"server-round": 1, "untrained": ["weight"]})
    message = RecordDict({"arrays": record_of(sent), "config": config})
    honest = {"lora_A": np.array([[4.0, 0.0]]), "lora_B": np.array([[4.0], [0.0]])}  # update 5, product 16
    contents = [RecordDict({"arrays": record_of(honest), "metrics": MetricRecord({})}) for _ in range(3)]
    facts = known(sent=sent, trained=honest, honest=[honest] * 3, message=message)
    facts = replace(facts, exchanges=[(message, content) for content in contents])
    JustBelow(bound=2.0).spoil(contents[0], facts)
    a, b = (contents[0]["arrays"][name].numpy() for name in ("lora_A", "lora_B"))
    # An update of 9 has the product 7.2 · 4.4, above .9 · 2 · 16; one of 8.1 has 6.48 · 3.86
    assert (a.tolist(), b.tolist()) == ([[pytest.approx(-3.86), 0.0]], [[pytest.approx(-6.48)], [0.0]])


@pytest.mark.slow
def test_methods_with_adapters_are_attacked_with_an_encoder_that_is_made(tmp_path, capsys):
    keys = {"num-nodes": 5, "rounds": 1, "text.adapter": "lora", "text.world-examples": 8, "cache-dir": tmp_path}
    pairs = [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]
    recipe = ["--recipe", "quickstart", "--methods", "flora", "--attacks", "huge", "--seeds", "1", "--tiny-encoder"]
    assert rogue.main([*recipe, *pairs]) == 0
    (bounded,) = [line for line in capsys.readouterr().out.splitlines() if "flora with bounds at huge 0.2" in line]
    assert float(bounded.split()[-1]) == 0, "the run has reached its end"


def test_a_bound_keeps_a_run_from_ending():
    keys = {"num-nodes": 4, "rounds": 1, "evaluate-every": 1, "epochs": 1, "images.model": "mlp", "name": "rogue"}
    keys |= {"images.alpha": 1.0, "in-flight": 0, "methods": "fedavg"}
    recipe = read_recipe(Path("images-digits"))
    condition = {"method": "fedavg", "defence": "bounds", "attack": "huge", "share": 0.25, "seed": 0}
    values = [
        rogue.accuracy(**condition, config=resolve({**recipe, **keys, "size-bound": bound}, "."))
        for bound in (0.0, 100.0)
    ]
    assert values[0] is None or values[0] < 0.3
    assert values[1] is not None
