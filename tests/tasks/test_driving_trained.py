"""A trained forecaster: sampled motions of the human, and a controller that drives as the closed loop does."""

import lzma
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fedapps.tasks.base import DataError, evaluated
from fedapps.tasks.driving.closed_loop import session_metrics
from fedapps.tasks.driving.data import read_folder
from fedapps.tasks.driving.options import SETTINGS, Options, to_motion
from fedapps.tasks.driving.planner import TAU, elbo_parts
from fedapps.tasks.driving.task import DrivingTask
from fedapps.tasks.driving.trained import DrivingTrained
from fedapps.tasks.driving.world.sessions import Sessions, simulate
from fedapps.tasks.driving.world.traffic import DT
from fedapps.tasks.trained import Origin

from fedapps.base.seeding import derive_seed, torch_seed

SMALL = Options(sessions_train=2, sessions_test=4, hidden=8, latent=2, samples=2)
THREE = replace(SMALL, scenario="three-cars", sessions_test=2)
STRAIGHT = np.array([[0.0, 5.0, 0.0, 20.0], [3.5, 0.0, 0.0, 20.0]])


def trained_on(options, seed=0, spread=1.0):
    """An untrained forecaster whose weights are ``spread`` times as large, so that it expects something."""
    task = DrivingTask(options)
    with torch_seed(seed):
        module = task.build_model()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter *= spread
    return DrivingTrained(task, module, task.facts(None), Origin(seed=3))


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """One driver of each simulated scenario."""
    folders = {}
    for options in (SMALL, THREE):
        folders[options.scenario] = tmp_path_factory.mktemp(options.scenario)
        DrivingTask(options).make_world(folders[options.scenario], 1, seed=4)
    return folders


def straight(steps=6, motions=STRAIGHT):
    """Cars that drive straight on without a control, friction aside."""
    moved = np.repeat(motions[None], steps, axis=0)
    moved[:, :, 1] += DT * np.arange(1 - steps, 1)[:, None] * motions[:, 3]
    return moved, np.zeros((steps, len(motions), 2))


# -- forecasts -------------------------------------------------------------------------------------------------


def test_a_forecast_by_hand():
    """A network of zeros expects no control: of 20 m/s, friction takes 0.006 m/s in each step."""
    trained = trained_on(SMALL, spread=0.0)
    human = trained.forecast(*straight())
    assert human.shape == (2, 20, 4)
    assert human.dtype == np.float64
    np.testing.assert_allclose(human[:, 9], [[3.5, 20 - 0.03, 0.0, 20 - 0.06]] * 2, atol=1e-5)


def test_a_forecast_far_along_the_road_is_not_rounded():
    """A northing of 5,400 km, where numbers of float32 are 0.5 m apart."""
    trained = trained_on(SMALL, spread=3.0)
    motions, controls = straight()
    north = np.array([0.0, 5.4e6, 0.0, 0.0])
    human = trained.forecast(motions, controls)
    np.testing.assert_allclose(trained.forecast(motions + north, controls) - north, human, atol=1e-5)


def test_forecasts_have_the_error_of_the_evaluation(worlds):
    """Windows of the test sessions, with the noise that the evaluation draws."""
    trained = trained_on(SMALL, spread=3.0)
    data = trained.data(worlds["lane-swap"])
    expected = evaluated(trained.task, trained.module, data, run_seed=3, final=False).metrics
    windows = data.splits["test"]
    count, horizon = len(windows["history"]), SMALL.horizon
    with torch_seed(derive_seed(3, "evaluate", data.key), "driving", "test"), torch.no_grad():
        for _ in range(SMALL.samples):
            elbo_parts(trained.module, SETTINGS[SMALL.scenario], SMALL, windows)
        noise = torch.randn(count, SMALL.samples, SMALL.latent)
    sessions = [session for session in read_folder(worlds["lane-swap"]).blocks[0] if session.split == "test"]
    found, truth = [], []
    for session in sessions:
        for now in SMALL.moments(len(session.states)):
            seen = slice(0, now + 1)
            ahead = slice(now + 1, now + 1 + horizon)
            human = trained.forecast(
                session.states[seen], session.controls[seen], session.controls[ahead, 0], noise=noise[len(found)][None]
            )
            found.append(human[..., 1].mean(axis=0))
            truth.append(session.states[ahead, 1, 1])
    errors = ((np.array(found) - np.array(truth)) ** 2).mean(axis=0)
    for seconds in (0.5, 1.0, 1.5):
        assert errors[round(10 * seconds) - 1] == pytest.approx(expected[f"test.error_{seconds}s"], rel=1e-4)


def test_several_encounters_at_once_and_plans():
    trained = trained_on(SMALL, spread=3.0)
    motions, controls = straight()
    both = np.stack([motions, motions]), np.stack([controls, controls])
    plan = np.full((20, 2), (1.5, 0.0))
    plans = np.stack([np.zeros((20, 2)), plan])
    found = trained.forecast(*both, plans, samples=5, seed=1)
    assert found.shape == (2, 5, 20, 4)
    again = trained.forecast(*both, plans, samples=5, seed=1)
    np.testing.assert_array_equal(found, again)
    assert not np.array_equal(found, trained.forecast(*both, plans, samples=5, seed=2))
    noise = torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(0))
    together = trained.forecast(*both, plans, noise=noise)
    alone = trained.forecast(motions, controls, plan, noise=noise[1:])
    np.testing.assert_allclose(together[1], alone, atol=1e-5)
    assert np.abs(together[0] - together[1]).max() > 1e-3  # the human answers the robot's plan
    assert trained.forecast(both[0][:0], both[1][:0], samples=3).shape == (0, 3, 20, 4)


def test_bad_histories_are_refused():
    trained = trained_on(SMALL)
    motions, controls = straight()
    with pytest.raises(DataError, match=r"motions of shape \[6, 3, 4\]; expected \[t, cars, 4\] or \[S, t, cars, 4\]"):
        trained.forecast(np.zeros((6, 3, 4)), controls)
    with pytest.raises(DataError, match=r"motions of shape \[2, 4\]; expected \[t, cars, 4\] or \[S, t, cars, 4\]"):
        trained.forecast(STRAIGHT, controls)
    with pytest.raises(DataError, match=r"a history of 4 steps; expected at least 5 \(driving.min-history\)"):
        trained.forecast(*straight(4))
    with pytest.raises(DataError, match=r"motions of \[1, 6\] steps and controls of \[1, 5\]"):
        trained.forecast(motions, controls[1:])
    with pytest.raises(DataError, match=r"motions\[[0-9, ]+\] = nan: must be a finite number"):
        trained.forecast(motions * np.nan, controls)
    with pytest.raises(DataError, match=r"plan of shape \[3, 2\]"):
        trained.forecast(motions, controls, np.zeros((3, 2)))
    for plan in (np.zeros((2, 20, 2)), np.zeros((1, 1, 20, 2))):
        with pytest.raises(DataError, match=r"plan of shape \[.*\]; expected \[20, 2\] or \[1, 20, 2\]"):
            trained.forecast(motions, controls, plan)
    for samples in (0, 2.5):
        with pytest.raises(DataError, match=f"samples = {samples}: must be a whole number of at least 1"):
            trained.forecast(motions, controls, samples=samples)
    with pytest.raises(DataError, match=r"noise of shape \[2, 2\]; expected \[1, K, 2\]"):
        trained.forecast(motions, controls, noise=np.zeros((2, 2)))
    with pytest.raises(DataError, match=r"noise of shape \[1, 0, 2\]; expected \[1, K, 2\]"):
        trained.forecast(motions, controls, noise=np.zeros((1, 0, 2)))


# -- the controller --------------------------------------------------------------------------------------------


def driven(trained, who, seed):
    """The closed loop of the held-out starts, with a controller that is asked in every step."""
    controller, said = trained.controller(seed), []

    def policy(observation):
        control = controller.step(to_motion(observation.states[:, -1]), observation.controls[:, -1])
        said.append(torch.from_numpy(control))
        return said[-1][:, None]

    scenario = trained.task.setting.scenario
    return simulate(scenario, who.driver, who.test, policy, who.seed, tau=1), torch.stack(said, dim=1)


@pytest.mark.parametrize("options", [SMALL, THREE])
def test_a_closed_loop_with_the_controller_is_that_of_the_evaluation(worlds, options):
    trained = trained_on(options, spread=3.0)
    data = trained.data(worlds[options.scenario])
    who = data.extra["encounters"][0]
    sessions, said = driven(trained, who, derive_seed(3, "evaluate", data.key))
    expected = trained.evaluate(data)
    found = session_metrics("closed_loop", [sessions])
    assert found == {name: expected[name] for name in found}
    assert len(found["closed_loop.cost"]) == options.sessions_test
    assert_the_robot_did(sessions, said)


def assert_the_robot_did(sessions: Sessions, said):
    """Before and after the gap opens, each of the controller's controls is the one of the simulation."""
    did = sessions.controls[:, 1:, 0]
    steps = torch.arange(did.shape[1])
    going = steps < (sessions.length - 1)[:, None]
    assert torch.equal(said[:, : did.shape[1]][going], did[going])


def test_a_robot_opens_the_gap_that_it_has_and_then_swaps_lanes():
    """Ahead of a human that is expected to keep its speed, it accelerates; 12 m ahead it steers to the other lane."""
    controller = trained_on(SMALL, spread=0.0).controller()
    for _ in range(TAU):
        control = controller.step(STRAIGHT, np.zeros((2, 2)))
        assert control.dtype == np.float32
        np.testing.assert_allclose(control, [1.5, 0.0])
    apart = STRAIGHT + np.array([[0, 8.0, 0, 0], [0, 0, 0, 0]])
    throttle, steer = controller.step(apart, np.zeros((2, 2)))
    assert (throttle, steer) == (0.0, pytest.approx(0.04))


def test_a_controller_keeps_what_it_saw():
    """What the caller does with its array afterwards changes nothing."""
    trained = trained_on(SMALL, spread=3.0)
    one, other = trained.controller(1), trained.controller(1)
    shared = STRAIGHT.astype(np.float32)
    for step in range(3 * TAU):
        moved = STRAIGHT + np.array([0, 2.0 * step, 0, 0])
        shared[:] = moved
        np.testing.assert_array_equal(one.step(moved, np.zeros((2, 2))), other.step(shared, np.zeros((2, 2))))
        shared[:] = 0


def test_a_controller_goes_on_with_a_newer_model():
    """With the same weights it drives on as before; the new model plans from the next plan on."""
    trained, other = trained_on(SMALL, spread=3.0), trained_on(SMALL, spread=3.0)
    one, two = trained.controller(1), trained.controller(1)
    for step in range(4 * TAU):
        moved = STRAIGHT + np.array([0, 2.0 * step, 0, 0])
        np.testing.assert_array_equal(one.step(moved, np.zeros((2, 2))), two.step(moved, np.zeros((2, 2))))
        two.use(other.predictor())
    with pytest.raises(DataError, match=r"other options of driving\.\*: make a new controller"):
        two.use(trained_on(replace(SMALL, history=7)).predictor())


def test_bad_observations_are_refused():
    controller = trained_on(SMALL).controller()
    with pytest.raises(DataError, match=r"motion of shape \[3, 4\]; expected \[2, 4\], or \[S, 2, 4\]"):
        controller.step(np.zeros((3, 4)), np.zeros((2, 2)))
    with pytest.raises(DataError, match=r"control\[[0-9, ]+\] = (nan|inf): must be a finite number"):
        controller.step(STRAIGHT, np.full((2, 2), np.nan))
    with pytest.raises(DataError, match="motion of 1 encounters and control of 2"):
        controller.step(STRAIGHT, np.zeros((2, 2, 2)))
    controller.step(STRAIGHT, np.zeros((2, 2)))
    with pytest.raises(DataError, match="motion of 2 encounters after 1: make a new controller"):
        controller.step(np.stack([STRAIGHT] * 2), np.zeros((2, 2, 2)))
    with pytest.raises(DataError, match="scenario = 'trials' is recorded: it has no planner"):
        trained_on(replace(SMALL, scenario="trials")).controller()


# -- files and the network -------------------------------------------------------------------------------------


def test_a_prediction_is_the_forecast_after_the_last_row_of_a_session(worlds):
    trained = trained_on(SMALL, spread=3.0)
    file = next(worlds["lane-swap"].glob("*.csv.xz"))
    rows = list(trained.rows([file]))
    sessions = read_folder(worlds["lane-swap"]).blocks[0]
    assert [(row["file"], row["block"], row["session"]) for row in rows] == [
        (str(file), 0, session.number) for session in sessions
    ]
    human = trained.forecast(sessions[0].states, sessions[0].controls)
    np.testing.assert_allclose(rows[0]["samples"], human[..., :2], atol=1e-4)
    np.testing.assert_allclose(rows[0]["along"], human[..., 1].mean(axis=0), atol=1e-4)
    assert rows[0]["seconds"] == [round(0.1 * step, 1) for step in range(1, 21)]
    smaller = list(trained.rows([worlds["lane-swap"]], batch_size=2))
    for row, same in zip(rows, smaller, strict=True):
        np.testing.assert_allclose(same["samples"], row["samples"], atol=1e-4)
    with pytest.raises(DataError, match="holds 3 cars with bicycle dynamics; scenario 'lane-swap' expects 2"):
        list(trained.rows([worlds["three-cars"]]))
    with pytest.raises(DataError, match=r"none\.csv: no such file"):
        list(trained.rows([Path("none.csv")]))


def test_a_session_that_is_too_short_is_named(worlds, tmp_path):
    file = next(worlds["lane-swap"].glob("*.csv.xz"))
    (tmp_path / "a.csv").write_bytes(b"".join(lzma.decompress(file.read_bytes()).splitlines(keepends=True)[:5]))
    with pytest.raises(DataError, match=r"a\.csv: session 0 of block 0 has 4 steps; expected at least 5"):
        list(trained_on(SMALL).rows([tmp_path / "a.csv"]))


def test_the_network_to_export_gives_the_forecast_controls():
    trained = trained_on(SMALL, spread=3.0)
    network = trained.network()
    history, plan, noise = network.inputs
    controls = network.module(*network.inputs)
    assert controls.shape == (2, SMALL.samples, SMALL.horizon, 2)
    expected = trained.module.forecast(history, plan[:, None], noise)[:, 0]
    torch.testing.assert_close(controls, expected)


@pytest.mark.skipif("FEDAPPS_DATA" not in os.environ, reason="FEDAPPS_DATA names no folder of published datasets")
def test_recorded_trials_are_forecast_from_their_file():
    file = Path(os.environ["FEDAPPS_DATA"]) / "driving" / "hitl_traffic_weaving.csv.xz"
    trained = trained_on(replace(SMALL, scenario="trials"))
    row = next(trained.rows([file]))
    assert np.shape(row["samples"]) == (2, 20, 2)
    assert np.isfinite(row["samples"]).all()


# -- people ----------------------------------------------------------------------------------------------------

PEOPLE = Options(scenario="pedestrians", history=3, min_history=3, horizon=2, hidden=4, latent=2, samples=3)


def tracks(angle=0.0, shift=(0.0, 0.0)):
    """Two people who walk side by side and a third who is seen too late, turned by ``angle`` and moved."""
    steps = np.arange(4.0)
    way = np.stack([0.5 * steps, 0.1 * steps**2], axis=1)
    late = np.where(steps[:, None] > 2, way + 5, np.nan)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return np.stack([way, way[:, ::-1], late], axis=1) @ turn.T + shift


def test_people_who_expect_no_control_repeat_their_last_step():
    trained = trained_on(PEOPLE, spread=0.0)
    seen = tracks()
    paths = trained.forecast_people(seen)
    assert (paths.shape, paths.dtype) == ((3, 3, 2, 2), np.float64)
    step = seen[-1, :2] - seen[-2, :2]
    for ahead in (1, 2):
        expected = np.repeat((seen[-1, :2] + ahead * step)[:, None], 3, axis=1)
        np.testing.assert_allclose(paths[:2, :, ahead - 1], expected, atol=1e-5)
    assert np.isnan(paths[2]).all()  # was not seen in all of the last three steps


def test_people_are_forecast_alike_wherever_they_walk():
    trained = trained_on(PEOPLE, spread=3.0)
    here, there = trained.forecast_people(tracks()), trained.forecast_people(tracks(2.0, (7.0, -3.0)))
    turn = np.array([[np.cos(2.0), -np.sin(2.0)], [np.sin(2.0), np.cos(2.0)]])
    np.testing.assert_allclose(there[:2], here[:2] @ turn.T + [7.0, -3.0], atol=1e-4)
    assert np.abs(here[:2] - trained_on(PEOPLE, spread=0.0).forecast_people(tracks())[:2]).max() > 0.01
    on_the_map = np.array([5e5, 5.4e6])  # where numbers of float32 are up to 0.5 m apart
    np.testing.assert_allclose(trained.forecast_people(tracks() + on_the_map) - on_the_map, here, atol=1e-5)


def test_predictions_of_a_file_of_people(tmp_path):
    path = tmp_path / "hall.txt"
    seen = tracks()
    rows = [
        f"{780 + 10 * step} {person + 4} {x} {y}\n"
        for step, places in enumerate(seen)
        for person, (x, y) in enumerate(places)
        if np.isfinite(x)
    ]
    trained = trained_on(PEOPLE)
    (tmp_path / "README.md").write_text("no recording")
    with pytest.raises(DataError, match=r"no recordings of pedestrians; expected files NAME\.txt"):
        list(trained.rows([tmp_path]))
    path.write_text("".join(rows))
    (tmp_path / "all").mkdir()
    expected = trained.forecast_people(seen)
    first, second = trained.rows([tmp_path])
    assert (first["person"], second["person"], first["seconds"]) == (4, 5, [0.4, 0.8])
    np.testing.assert_allclose(first["samples"], expected[0], atol=1e-5)
    np.testing.assert_allclose(second["y"], expected[1].mean(axis=0)[:, 1], atol=1e-5)
    path.write_text("".join(rows[:2]))
    with pytest.raises(DataError, match=r"hall\.txt: nobody is seen in all of the last 3 steps"):
        list(trained.rows([path]))


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        (np.zeros((2, 1, 2)), r"shape \[2, 1, 2\]; expected \[T, P, 2\] with T of at least 3 \(driving\.history\)"),
        (np.zeros((3, 2)), r"shape \[3, 2\]; expected \[T, P, 2\]"),
        (np.full((3, 1, 2), np.inf), r"positions\[0, 0, 0\] = inf: must be a finite number"),
        ("abc", "positions = 'abc': must be a finite number"),
        ([[[0.0, None]]] * 3, r"positions\[0, 0, 1\] = None: must be a finite number"),
        ([[1.0], [1.0, 2.0]], "positions: rows of different lengths"),
    ],
)
def test_people_who_are_nowhere_are_refused(positions, message):
    with pytest.raises(DataError, match=message):
        trained_on(PEOPLE).forecast_people(positions)


@pytest.mark.parametrize("samples", [0, -1, 2.5, "two"])
def test_people_have_a_whole_number_of_samples(samples):
    """Also when nobody is seen."""
    for seen in (tracks(), tracks() * np.nan):
        with pytest.raises(DataError, match=f"samples = {samples}: must be a whole number of at least 1"):
            trained_on(PEOPLE).forecast_people(seen, samples=samples)


def test_only_a_model_of_pedestrians_forecasts_people():
    with pytest.raises(DataError, match=r"forecasts drivers \(driving\.scenario = 'lane-swap'\); call forecast"):
        trained_on(SMALL).forecast_people(tracks())
    with pytest.raises(DataError, match=r"'pedestrians' is recorded: it has no planner"):
        trained_on(PEOPLE).controller()
