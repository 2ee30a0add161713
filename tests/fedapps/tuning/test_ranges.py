"""The search space of each method."""

import pytest

from fedapps.base.options import Choices, Range
from fedapps.config.parsing import parse
from fedapps.tuning.plan import GivenRange, current_settings, search_spaces, tuned_label

LQR = {"task": "lqr", "num-nodes": 3, "collect-after": 0, "learning-rate": 0.02}
RATE = Range(0.002, 0.2, log=True)


def spaces(methods, *given, **keys):
    config = parse(LQR | {"methods": methods} | keys)
    return search_spaces(config, [GivenRange.read(text) for text in given])


def test_a_method_tunes_its_learning_rate_and_its_own_options():
    assert spaces("fedavg,fedprox,untrained") == {
        "fedavg": {"run.learning-rate": RATE},
        "fedprox": {"run.learning-rate": RATE, "mu": Choices((0.0, 0.001, 0.01, 0.1, 1.0))},
        "untrained": {},
    }


def test_arguments_are_fixed_and_keys_are_where_the_search_begins():
    assert spaces("fedprox(mu=0.1)") == {"fedprox(mu=0.1)": {"run.learning-rate": RATE}}
    assert spaces("fedavg(run.learning-rate=0.5)") == {"fedavg(run.learning-rate=0.5)": {}}
    of_spfl = spaces("spfl", **{"spfl.learning-rate": 0.3})["spfl"]
    assert of_spfl["learning-rate"] == Range(0.03, 3.0, log=True)
    config = parse(LQR | {"methods": "fedprox,sfl", "fedprox.mu": 0.7})
    of_methods = search_spaces(config)
    assert current_settings(config, "fedprox", of_methods["fedprox"]) == {"run.learning-rate": 0.02, "mu": 0.7}
    assert current_settings(config, "sfl", of_methods["sfl"]) == {"run.learning-rate": 0.02}


def test_given_ranges_replace_declared_ones_or_are_added():
    found = spaces("fedprox,sfl,untrained", "fedprox.mu=0,0.5", "epochs=1..5", "learning-rate=1e-3..1")
    assert found == {
        "fedprox": {"run.learning-rate": Range(0.001, 1.0), "mu": Choices((0.0, 0.5)), "run.epochs": Range(1, 5)},
        "sfl": {"run.learning-rate": Range(0.001, 1.0), "run.epochs": Range(1, 5)},
        "untrained": {},
    }
    assert isinstance(found["sfl"]["run.epochs"].low, int)
    assert spaces("apfl", "apfl.granularity=tensor")["apfl"]["granularity"] == Choices(("tensor",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs", r"--range 'epochs': write KEY=LOW..HIGH, KEY=LOW..HIGH,log or KEY=VALUE,VALUE,..."),
        (
            "rounds=1..5",
            "rounds is neither an option of a method, such as fedprox.mu, nor a key that a method can set for itself: ",
        ),
        ("magic.mu=1,2", "'magic' is no method; known methods: apd"),
        ("fedprox.nu=1..2", "fedprox.nu: unknown key"),
        ("fedprox.mu=-1..2", "fedprox.mu = -1.0: must be a number at least 0"),
        ("fedprox.mu=2..1", "the lower bound must be below the upper bound"),
        ("fedprox.mu=0..1,log", "must be above 0"),
        ("apfl.granularity=parameter..tensor", "apfl.granularity is not a number; list its values"),
        ("apfl.granularity=layer", "apfl.granularity = 'layer': must be one of 'tensor', 'parameter'"),
    ],
)
def test_ranges_that_cannot_be_used(text, message):
    with pytest.raises(ValueError, match="--range") as error:
        spaces("fedprox,apfl", text)
    assert message in str(error.value)


def test_a_range_that_no_method_tunes_is_refused():
    for methods in ("fedavg,apfl", "fedprox(mu=1)"):
        with pytest.raises(ValueError, match=r"--range fedprox\.mu: no method of this recipe tunes it \("):
            spaces(methods, "fedprox.mu=0..1")


def test_settings_become_arguments():
    settings = {"run.learning-rate": 0.001234, "mu": 2.0, "flag": True, "kind": "a", "number": 3}
    assert tuned_label("fedprox", settings) == "fedprox(run.learning-rate=0.001234,mu=2,flag=true,kind=a,number=3)"
    assert tuned_label("spfl(rate-scale=0.2)", {"learning-rate": 0.5}) == "spfl(rate-scale=0.2,learning-rate=0.5)"
