"""The orders that nodes get in each round of a method."""

import pytest

from clients.round_settings import RoundSettings
from fedapps.app.round_config import evaluate_orders, stage_of, train_orders
from fedapps.catalogue import METHODS
from fedapps.config.run_config import RunConfig

RUN = RunConfig(
    rounds=8, collect_after=4, epochs=2, learning_rate=0.1, batch_size=16, optimizer="sgd", fedprox_mu=0.5,
    clip_norm=3.0, linear_decay=True, weight_decay=0.01, plateau_patience=4, personal_epochs=7,
    personal_learning_rate=0.01,
)  # fmt: skip


def test_train_orders_hold_all_that_training_needs():
    assert dict(train_orders(RUN, "sfl", "run-x", 1)) == {
        "run": "run-x", "method": "sfl", "stage": 0, "epochs": 2, "steps": 0, "learning-rate": 0.1, "batch-size": 16,
        "optimizer": "sgd", "weight-decay": 0.01, "plateau-patience": 4, "plateau-factor": 0.5,
        "min-learning-rate": 1e-5, "clip-norm": 3.0, "linear-decay": True, "adapt-epochs": 0, "proximal": 0.0,
        "pooled": False,
    }  # fmt: skip


def test_evaluate_orders_hold_all_that_personalisation_needs():
    assert dict(evaluate_orders(RUN, "spfl", "run-x", 1)) == {
        "run": "run-x", "method": "spfl", "stage": 0, "batch-size": 16, "optimizer": "sgd", "personalise": True,
        "personal-epochs": 7, "personal-learning-rate": 0.01, "final": False, "collect": False,
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(METHODS))
def test_who_adapts_and_who_reconstructs(name):
    run = RunConfig(adapt_epochs=2, reconstruct_epochs=3, support_share=0.4, learning_rate=0.1)
    orders, evaluation = train_orders(run, name, "x", 1), evaluate_orders(run, name, "x", 1)
    assert orders["adapt-epochs"] == (2 if name in ("fedvocab", "fedvocab-own-start") else 0)
    for found in (orders, evaluation):
        assert (found.get("reconstruct-epochs"), found.get("support-share")) == (
            (3, 0.4) if name == "fedrecon" else (None, None)
        )
        RoundSettings().updated(found)
    assert evaluation.get("learning-rate") == (0.1 if name == "fedrecon" else None)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_who_trains_on_what_and_who_personalises(name):
    assert train_orders(RUN, name, "x", 1)["pooled"] is (name == "cloud")
    orders = evaluate_orders(RUN, name, "x", 1)
    assert orders["personalise"] is (name in ("spfl", "spfl-low", "apfl", "apfl-sqrt"))
    assert orders["personal-learning-rate"] == pytest.approx(0.002 if name == "spfl-low" else 0.01)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_steps_in_place_of_epochs_and_nothing_where_nobody_trains(name):
    orders = train_orders(RunConfig(epochs=3, steps=7), name, "x", 1)
    assert (orders["epochs"], orders["steps"]) == ((0, 0) if name == "untrained" else (3, 7))


def test_the_second_stage_begins_after_the_collection():
    assert [stage_of(RUN, r) for r in range(1, 9)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [train_orders(RUN, "sfl", "x", r)["stage"] for r in (4, 5)] == [0, 1]
    orders = {r: evaluate_orders(RUN, "sfl", "x", r) for r in range(1, 9)}
    assert [r for r in orders if orders[r]["collect"]] == [4]
    assert [r for r in orders if orders[r]["final"]] == [8]
    assert [r for r in orders if orders[r]["stage"]] == [5, 6, 7, 8]


def test_without_a_collection_there_is_one_stage():
    run = RunConfig(collect_after=0, rounds=3)
    assert [stage_of(run, r) for r in (1, 2, 3)] == [0, 0, 0]
    assert not any(evaluate_orders(run, "sfl", "x", r)["collect"] for r in (1, 2, 3))


def test_stages_of_the_data_share_the_rounds():
    assert [stage_of(RUN, r, 4) for r in range(1, 9)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert train_orders(RUN, "fedavg", "x", 8, 2)["stage"] == evaluate_orders(RUN, "fedavg", "x", 8, 2)["stage"] == 1


RUN_OF_MEMORY = RunConfig(
    ewc_lambda=0.1, ewc_anchors="online", fisher_estimator="per-batch", l2t_lambda=0.2, apd_l1=0.3, apd_drift=0.4,
    fedweit_l1_mask=0.5, fedweit_l1_adaptive=0.6, fedweit_drift=0.7, fedweit_mask_share=0.8, fedprox_mu=0.9,
)  # fmt: skip
EWC = {"ewc": 0.1, "ewc-anchors": "online", "fisher-estimator": "per-batch"}
APD = {"decomposition": "apd", "l1-adaptive": 0.3, "drift": 0.4}


@pytest.mark.parametrize(
    ("name", "memory"),
    [
        ("fedavg", {}),
        ("stl", {"fresh-stages": True}),
        ("local-ewc", EWC),
        ("fedavg-ewc", EWC),
        ("fedprox-ewc", EWC),
        ("fedavg-l2t", {"l2-transfer": 0.2}),
        ("fedprox-apd", APD),
        (
            "fedweit",
            {"decomposition": "fedweit", "l1-adaptive": 0.6, "l1-mask": 0.5, "drift": 0.7, "mask-share": 0.8,
             "sparsity": 0.6},
        ),
    ],
)  # fmt: skip
def test_what_nodes_do_with_earlier_stages(name, memory):
    known = {"fresh-stages", "l2-transfer", "decomposition", "l1-mask", "mask-share", "sparsity", *EWC, *APD}
    for orders in (train_orders(RUN_OF_MEMORY, name, "x", 1), evaluate_orders(RUN_OF_MEMORY, name, "x", 1)):
        assert {key: value for key, value in orders.items() if key in known} == memory
        RoundSettings().updated(orders)  # the node reads every one of them
    assert train_orders(RUN_OF_MEMORY, name, "x", 1)["proximal"] == (0.9 if name.startswith("fedprox") else 0)
