import logging

import pytest
from fedapps.strategies.rounds import transport as patience
from fedapps.strategies.rounds.transport import retry


class Failing:
    """Raises the errors, one at a call, then answers."""

    def __init__(self, *errors):
        self.errors, self.calls = list(errors), 0

    def __call__(self):
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


@pytest.fixture
def naps(monkeypatch):
    slept = []
    monkeypatch.setattr(patience.time, "sleep", slept.append)
    return slept


def test_it_asks_again_with_longer_and_longer_pauses(naps, caplog):
    class PushError(Exception):
        pass

    with caplog.at_level(logging.WARNING):
        assert retry(Failing(PushError("locked\nby others"), OSError("gone"))) == "answer"
    assert naps == [1, 2]
    assert "a call to the SuperLink failed (PushError: locked); retrying in 1 s" in caplog.text


def test_after_the_last_time_the_failure_is_raised(naps):
    ask = Failing(*[OSError(str(number)) for number in range(9)])
    with pytest.raises(OSError, match="5"):
        retry(ask)
    assert (ask.calls, sum(naps)) == (6, 31)


@pytest.mark.parametrize("error", [ValueError, TypeError, KeyError, RuntimeError])
def test_what_would_not_mend_is_raised_at_once(naps, error):
    with pytest.raises(error):
        retry(Failing(error("x")))
    assert naps == []


def test_an_interrupt_is_not_put_off(naps):
    with pytest.raises(KeyboardInterrupt):
        retry(Failing(KeyboardInterrupt()))
    assert naps == []
