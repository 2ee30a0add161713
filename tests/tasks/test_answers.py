"""What is no input of a model is named with its place, and what is no answer is not passed on, in every task."""

import numpy as np
import pytest
import torch
from fedapps.tasks.answers import finite_answer, finite_numbers, several
from fedapps.tasks.driving.closed_loop import Controller
from fedapps.tasks.social.scenes import RatedScene
from fedapps.tasks.vln.houses import Start
from model_folders import MODELS

from fedapps.base.errors import DataError

NAN = float("nan")
ROOM = ((-2.0, -2.0), (2.0, -2.0), (0.0, 4.0))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1.0, None], r"state\[1\] = None: must be a finite number"),
        ([[1.0, 2.0], [NAN, 0.0]], r"state\[1, 0\] = nan: must be a finite number"),
        ([1.0, float("inf")], r"state\[1\] = inf"),
        (None, "state = None: must be a finite number"),
        (b"12", "state = b'12': must be a finite number"),
        (["1", "2"], r"state\[0\] = '1': must be a finite number"),
        ([True, False], r"state\[0\] = True"),
        ({"y": 1}, "state = {'y': 1}"),
        ([[1.0], [1.0, 2.0]], "state: rows of different lengths"),
        (np.array([1j, 2]), r"state\[0\] = "),
        (torch.tensor([1.0, NAN]), r"state\[1\] = nan"),
    ],
)
def test_what_is_no_finite_number_has_a_place(given, message):
    with pytest.raises(DataError, match=message):
        finite_numbers(given, "state")


def test_finite_numbers_stay_as_they_are():
    assert finite_numbers([1, 2], "state").dtype == np.int64
    assert finite_numbers(torch.ones(2, requires_grad=True), "state").dtype == np.float32
    assert np.isnan(finite_numbers([NAN, 1.0], "state", missing=True)[0])


@pytest.mark.parametrize(
    "given", ["a text", b"bytes", None, {"a": 1}, 3, iter([]), {"a"}, np.array("a"), np.array([["a", "b"]])]
)
def test_a_single_example_a_set_and_a_table_are_no_sequence(given):
    with pytest.raises(DataError, match=r"texts = .*: must be a list; give a single example as a list with it alone"):
        several(given, "texts", str)


def test_an_answer_that_is_not_finite_has_a_place():
    with pytest.raises(DataError, match=r"control\[1\] = inf: the model has no finite answer"):
        finite_answer(np.array([0.0, np.inf]), "control")


@pytest.mark.parametrize("limit", [4.0, float("nan")])
def test_an_answer_beyond_its_limit_is_refused(limit):
    answer = np.array([1.0, -5.0]) if limit == 4.0 else np.array([5.0, -5.0])
    place = "1" if limit == 4.0 else "0"
    with pytest.raises(DataError, match=rf"control\[{place}\] = -?5: beyond the limit of "):
        finite_answer(answer, "control", limit)
    assert finite_answer(answer, "control", 5.0) is answer


def test_a_control_a_score_and_a_forecast_have_the_limit_of_their_caller():
    robot = model("lqr")
    control = abs(float(robot.control([1.0, 0.5])[0]))
    assert abs(float(robot.control([1.0, 0.5], limit=control)[0])) == control
    with pytest.raises(DataError, match="beyond the limit of 0"):
        robot.control([1.0, 0.5], limit=0.0)
    judge, scene = model("social"), RatedScene("a", 0.0, (), (), (), ROOM)
    score = abs(float(judge.score(scene)[0]))
    assert abs(float(judge.score(scene, limit=score)[0])) == score
    with pytest.raises(DataError, match=r"score\[0\] = .*: beyond the limit of"):
        judge.score(scene, limit=0.9 * score)
    motions = np.tile([[0.0, 5.0, 0.0, 20.0], [3.5, 0.0, 0.0, 20.0]], (20, 1, 1))
    car = model("driving")
    whole = car.forecast(motions, np.zeros((20, 2, 2)))
    furthest = float(np.abs(whole[..., :2] - motions[-1, 1, :2].astype(np.float32)).max())
    np.testing.assert_array_equal(car.forecast(motions, np.zeros((20, 2, 2)), limit=furthest), whole)
    with pytest.raises(DataError, match=r"movement\[.*\] = .*: beyond the limit of"):
        car.forecast(motions, np.zeros((20, 2, 2)), limit=0.9 * furthest)


def model(name):
    return MODELS[name]()


#: A task, what is given to its verb, and what is said.
REFUSED = {
    "one text": ("text", lambda m: m.predict("goal match"), r"texts = 'goal match': must be a list"),
    "no text": ("text", lambda m: m.predict(["a", None]), r"texts\[1\] = None: must be of type str"),
    "a number": ("text", lambda m: m.predict([NAN]), r"texts\[0\] = nan: must be of type str"),
    "bytes": ("text", lambda m: m.predict([b"a"]), r"texts\[0\] = b'a': must be of type str"),
    "no texts": ("text", lambda m: m.predict(None), "texts = None: must be a list"),
    "one path": ("images", lambda m: m.predict("a.png"), r"images = 'a\.png': must be a list"),
    "one image": ("images", lambda m: m.predict(np.zeros((6, 5, 3), np.uint8)), r"images of shape \[6, 5, 3\]"),
    "no image": ("images", lambda m: m.predict([None]), "image 0 is a NoneType"),
    "no images": ("vpr", lambda m: m.describe(None), "images = None: must be a list"),
    "positions": ("vpr", lambda m: m.index(np.zeros((1, 9, 9, 3), np.uint8), [["a", "b"]]), r"positions\[0, 0\] = 'a'"),
    "NaN": ("lqr", lambda m: m.control([NAN, 0.0]), r"state\[0\] = nan: must be a finite number"),
    "no state": ("lqr", lambda m: m.step([None, 0.0]), r"state\[0\] = None: must be a finite number"),
    "another shape": ("lqr", lambda m: m.control([1.0, 2.0, 3.0]), r"state: must have the shape \[2\] or \[n, 2\]"),
    "motions": ("driving", lambda m: m.forecast([[None]], [[0]]), r"motions\[0, 0\] = None: must be a finite number"),
    "noise": (
        "driving",
        lambda m: m.forecast(np.ones((30, 2, 4)), np.zeros((30, 2, 2)), noise=[[[NAN, 1.0]]]),
        r"noise\[0, 0, 0\] = nan",
    ),
    "a motion": ("driving", lambda m: m.controller().step(np.full((2, 4), NAN), np.zeros((2, 2))), r"motion\[0, 0\]"),
    "no scene": ("social", lambda m: m.score([None]), r"scenes\[0\] = None: must be of type RatedScene or Mapping"),
    "a wall": (
        "social",
        lambda m: m.score(RatedScene("a", 0.0, (), (), (), ((NAN, 0.0), *ROOM[1:]))),
        r"scene 0, room\[0, 0\] = nan: must be a finite number",
    ),
    "no scenes": ("social", lambda m: m.score(None), "scenes = None: must be a list"),
    "no start": ("vln", lambda m: m.follow_all(["go"]), r"starts\[0\] = 'go': must be of type Start"),
    "one start": ("vln", lambda m: m.follow_all(Start("go", "a", "b")), "starts = Start.*: must be a list"),
    "no path": ("vln speaker", lambda m: m.describe_all([None]), r"paths\[0\] = None: must be of type HousePath"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_inputs_are_refused_by_name_and_position(case):
    name, ask, message = REFUSED[case]
    with pytest.raises(DataError, match=message):
        ask(model(name))


@pytest.mark.parametrize(
    ("name", "ask", "message"),
    [
        ("lqr", lambda m: m.control([1.0, 0.0]), r"control\[0\] = nan"),
        ("lqr", lambda m: m.step([1.0, 0.0]), r"(control|state)\[0\] = nan"),
        ("text", lambda m: m.predict(["win"]), r"probabilities\[0, 0\] = nan"),
        ("images", lambda m: m.predict(np.zeros((1, 6, 5, 3), np.uint8)), r"probabilities\[0, 0\] = nan"),
        ("vpr", lambda m: m.describe(np.zeros((1, 24, 32, 3), np.uint8)), r"descriptors\[0, 0\] = nan"),
        ("driving", lambda m: m.forecast(np.ones((30, 2, 4)), np.zeros((30, 2, 2))), r"forecast\[0, 0, 0, 0\] = nan"),
    ],
)
def test_an_answer_of_nan_moves_no_motor(name, ask, message):
    broken = model(name)
    with torch.no_grad():
        for parameter in broken.module.parameters():
            parameter.fill_(NAN)
    with pytest.raises(DataError, match=message):
        ask(broken)


def test_a_plan_is_not_chosen_by_a_forecast_of_nan():
    """NaN is the least of all costs."""
    driving = model("driving")
    controller = Controller(driving.predictor())
    controller.forecast = lambda motions, controls, plans: torch.full((1, 1, 1, 1, 4), NAN)
    with pytest.raises(DataError, match=r"forecast\[0, 0, 0, 0, 0\] = nan"):
        controller.step([[0.0, 5.0, 0.0, 20.0], [3.5, 0.0, 0.0, 20.0]], np.zeros((2, 2)))
