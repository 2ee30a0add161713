"""Signals that end the program raise KeyboardInterrupt, at once or when they are no longer deferred."""

import signal

import pytest
from fedapps.sim.processes import Interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts_at_once_or_when_no_longer_deferred(number: signal.Signals):
    done = []

    def uninterrupted(interrupts):
        with interrupts.deferred():
            with interrupts.deferred():
                signal.raise_signal(number)
            done.append("after it came")
        done.append("never")

    before = signal.signal(number, signal.SIG_DFL)
    try:
        with Interrupts() as interrupts:
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
            with pytest.raises(KeyboardInterrupt):
                uninterrupted(interrupts)
            with interrupts.deferred():
                done.append("once only")
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert done == ["after it came", "once only"]


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
