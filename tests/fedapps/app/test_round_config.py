"""The config of the messages of each round of a method."""

import pytest

from fedapps.app.round_config import RoundConfigs
from fedapps.config.parsing import ConfigError, parse
from fedapps.runs.tracking import stage_of

GIVEN = {
    "rounds": 8, "collect-after": 4, "epochs": 2, "learning-rate": 0.1, "batch-size": 16, "optimizer": "sgd",
    "clip-norm": 3.0, "linear-decay": False, "weight-decay": 0.01, "plateau-patience": 4,
}  # fmt: skip
SOCIAL = GIVEN | {"task": "social", "collect-after": 0}
TEXT = GIVEN | {"task": "text", "collect-after": 0}


def configs(label, server_round=1, given=GIVEN, **keys):
    """The config of TRAIN and EVALUATE messages."""
    config = parse(given | {"methods": label} | keys)
    (label,) = config.methods
    made = RoundConfigs(config, label, "run-x")
    return [dict(made.train(server_round)), dict(made.evaluate(server_round))]


def test_a_train_message_has_all_that_training_needs():
    train, _ = configs("fedavg")
    assert train == {
        "run": "run-x", "method": "fedavg", "stage": 0, "epochs": 2, "steps": 0, "learning-rate": 0.1,
        "batch-size": 16, "optimizer": "sgd", "weight-decay": 0.01, "plateau-patience": 4, "plateau-factor": 0.5,
        "min-learning-rate": 1e-5, "clip-norm": 3.0, "linear-decay": False, "momentum": 0.0,
    }  # fmt: skip
    decaying, _ = configs("fedavg", 1, GIVEN | {"plateau-patience": 0, "linear-decay": True})
    assert decaying == train | {"plateau-patience": 0, "linear-decay": True}


def test_a_plateau_excludes_another_schedule():
    with pytest.raises(ConfigError, match="learning-rate-schedule = 'cosine': must be 'constant' with plateau"):
        configs("fedavg", 1, GIVEN | {"learning-rate-schedule": "cosine"})


def test_an_evaluate_message_has_what_a_node_does_not_know():
    _, evaluate = configs("fedavg")
    assert evaluate == {
        "run": "run-x", "method": "fedavg", "stage": 0, "learning-rate": 0.1, "final": False, "collect": False,
    }  # fmt: skip


def test_a_cosine_schedule_by_hand():
    """Half the rate in the middle of the rounds: ½ · 0.1 · (1 + cos(π 4 / 8))."""
    given = GIVEN | {"plateau-patience": 0, "learning-rate-schedule": "cosine"}
    train, evaluate = zip(*(configs("fedavg", number, given) for number in range(1, 9)), strict=True)
    rates = [message["learning-rate"] for message in train]
    assert [message["learning-rate"] for message in evaluate] == rates
    assert rates[0] == 0.1
    assert rates[4] == pytest.approx(0.05)
    assert rates[7] == pytest.approx(0.05 * (1 - 0.9238795325))
    assert rates == sorted(rates, reverse=True)


#: What a message of a method has other than one of FedAvg: the node knows the options.
CHANGED = {
    "fedprox(mu=0.5)": {},
    "fedavg(run.steps=7)": {"steps": 7},
    "apfl(epochs=7,learning-rate=0.01)": {},
    "centralized": {},
    "centralized(steps=7)": {"steps": 7},
    "local(epochs=3)": {"epochs": 3},
    "fedsgd": {"epochs": 1, "steps": 1, "batch-size": 2**31 - 1},
}
STAGED = ["stl", "fedprox-ewc(lambda=0.1)", "fedavg-l2t", "fedprox-apd(l1=0.3)", "fedweit(mask-share=0.8)"]


@pytest.mark.parametrize(
    ("label", "given"), [*((label, GIVEN) for label in CHANGED), *((label, SOCIAL) for label in STAGED)]
)
def test_a_message_has_no_option_of_its_method(label, given):
    (train, evaluate), (plain_train, plain_evaluate) = configs(label, given=given), configs("fedavg", given=given)
    assert train == plain_train | CHANGED.get(label, {}) | {"method": label}
    assert evaluate == plain_evaluate | {"method": label}


def test_the_second_stage_begins_after_the_collection():
    run = parse(GIVEN | {"methods": "fedavg"}).run
    assert [stage_of(run, r) for r in range(1, 9)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [configs("fedavg", r)[0]["stage"] for r in (4, 5)] == [0, 1]
    evaluations = {r: configs("fedavg", r)[1] for r in range(1, 9)}
    assert [r for r in evaluations if evaluations[r]["collect"]] == [4]
    assert [r for r in evaluations if evaluations[r]["final"]] == [8]
    assert [r for r in evaluations if evaluations[r]["stage"]] == [5, 6, 7, 8]


def test_without_a_collection_there_is_one_stage():
    given = GIVEN | {"collect-after": 0, "rounds": 4}
    assert [configs("fedavg", r, given)[0]["stage"] for r in (1, 2, 3, 4)] == [0, 0, 0, 0]
    assert not any(configs("fedavg", r, given)[1]["collect"] for r in (1, 2, 3, 4))


def test_stages_of_the_data_share_the_rounds():
    run = parse(GIVEN).run
    assert [stage_of(run, r, 4) for r in range(1, 9)] == [0, 0, 1, 1, 2, 2, 3, 3]
    train, evaluate = configs("fedavg", 8, SOCIAL)
    assert train["stage"] == evaluate["stage"] == 3
