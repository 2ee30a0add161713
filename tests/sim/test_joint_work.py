"""Calls that run side by side and do a part of their work together."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from fedapps.sim.joint_work import jointly, side_by_side

from fedapps.base.seeding import TorchState, torch_seed


def drawn(jobs, states):
    """A draw from each job's generator, and how many jobs were done together."""
    found = []
    for _, state in zip(jobs, states, strict=True):
        with state:
            found.append((len(jobs), float(torch.rand(()))))
    return found


def run(calls):
    with ThreadPoolExecutor(len(calls)) as threads:
        return side_by_side(calls, threads)


def calls(work, count):
    return [lambda number=number: work(number) for number in range(count)]


def test_all_calls_meet_and_get_the_results_of_their_own_jobs():
    def squares(jobs, states):
        assert jobs == [0, 1, 2]
        return [job**2 for job in jobs]

    assert run(calls(lambda number: jointly(squares, number), 3)) == [0, 1, 4]


def test_only_one_call_runs_at_a_time_in_order():
    told = []

    def work(number):
        told.append(("begins", number))
        jointly(lambda_, number)
        told.append(("ends", number))

    def lambda_(jobs, states):
        told.append(("together", *jobs))
        return jobs

    run(calls(work, 2))
    assert told == [("begins", 0), ("begins", 1), ("together", 0, 1), ("ends", 0), ("ends", 1)]


def test_a_call_that_meets_no_more_is_not_waited_for():
    """Call k meets k times: the first time three calls are left, the second time two, then one."""

    def count(jobs, states):
        return [len(jobs)] * len(jobs)

    found = run(calls(lambda number: [jointly(count, number) for _ in range(number)], 4))
    assert found == [[], [3], [3, 2], [3, 2, 1]]


def test_each_call_draws_as_if_it_ran_alone():
    def work(number):
        with torch_seed(number, "test"):
            before, (_, within), after = float(torch.rand(())), jointly(drawn, number), float(torch.rand(()))
        return before, within, after

    alone = [work(number) for number in range(3)]
    state = torch.get_rng_state()
    assert run(calls(work, 3)) == alone
    assert len(run([lambda: torch.rand(2)])) == 1
    assert torch.equal(torch.get_rng_state(), state)
    assert len({draw for draws in alone for draw in draws}) == 9


def test_alone_a_job_draws_from_the_generator_of_its_caller():
    torch.manual_seed(3)
    expected = [float(torch.rand(())) for _ in range(2)]
    torch.manual_seed(3)
    assert [jointly(drawn, 0)[1], float(torch.rand(()))] == expected


def test_an_exception_for_one_job_ends_its_call_only():
    ended = []

    def divide(jobs, states):
        return [ZeroDivisionError(f"job {job}") if job == 1 else 6 / job for job in jobs]

    def work(number):
        try:
            return jointly(divide, number)
        except ZeroDivisionError as error:
            return str(error)
        finally:
            ended.append(number)

    assert run([lambda number=number: work(number) for number in (1, 2, 3)]) == ["job 1", 3, 2]
    assert ended == [1, 2, 3]


def test_an_exception_of_the_function_reaches_every_call_that_asked():
    def fail(jobs, states):
        raise RuntimeError("no")

    def work(number):
        with pytest.raises(RuntimeError, match="no"):
            jointly(fail, number)
        return number

    assert run(calls(work, 2)) == [0, 1]


def test_the_first_exception_of_a_call_is_raised_after_all_have_ended():
    ended = []

    def work(number):
        if number == 1:
            raise KeyError(number)
        jointly(drawn, number)
        ended.append(number)

    with pytest.raises(KeyError, match="1"):
        run(calls(work, 3))
    assert ended == [0, 2]


def test_calls_that_ask_for_different_things_all_get_the_error():
    def work(number):
        with pytest.raises(ValueError, match="different functions"):
            jointly(lambda jobs, states: jobs, number)
        return number

    assert run(calls(work, 3)) == [0, 1, 2]


def test_no_thread_is_left_when_a_group_is_given_up(monkeypatch):
    """An interrupt reaches the caller while the first call waits for the others."""
    before = threading.active_count()

    def interrupted(jobs, states):
        raise AssertionError("the work must not begin")

    def work(number):
        return jointly(interrupted, number)

    from fedapps.sim import joint_work

    go_on = joint_work._Call.go_on
    turns = []

    def interrupt(self, group=()):
        turns.append(self)
        if len(turns) == 2:
            raise KeyboardInterrupt
        go_on(self, group)

    monkeypatch.setattr(joint_work._Call, "go_on", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(calls(work, 3))
    assert threading.active_count() == before


def test_a_state_moves_on_only_within_its_block():
    torch.manual_seed(0)
    state = TorchState()
    copy = state.copy()
    outside = torch.get_rng_state()
    with state:
        first = torch.rand(2)
        with state.away():
            assert torch.equal(torch.get_rng_state(), outside)
        second = torch.rand(2)
    assert torch.equal(torch.get_rng_state(), outside)
    with copy:
        assert torch.equal(torch.rand(4)[:2], first)
    with state:
        assert not torch.equal(torch.rand(2), second)
