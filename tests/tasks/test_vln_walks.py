"""Batched walks against walks of one agent at a time, in plain Python."""

from math import cos, sin

import numpy as np
import pytest
import torch
from drawn_houses import NAMES, PATHS, house_graph
from fedapps.tasks.vln.connectivity import STEP
from fedapps.tasks.vln.houses import assemble
from fedapps.tasks.vln.instructions import InstructedPath, Vocabulary
from fedapps.tasks.vln.nodes import encode
from fedapps.tasks.vln.walks import Walks
from hypothesis import given, settings
from hypothesis import strategies as st

WIDTH = 5


class PlainWalk:
    """An agent, its reference path, and how much of that it has passed (None once it has left it)."""

    def __init__(self, houses, path, facing):
        self.houses, self.path, self.here, self.facing, self.passed = houses, path, path[0], facing, 0

    def columns(self):
        """The candidates by the row that each leads to."""
        return {int(row): column for column, row in enumerate(self.houses.neighbour[self.here]) if row >= 0}

    def distance(self, row):
        return float(self.houses.distances(torch.tensor(row), torch.tensor(self.path[-1])))

    def teacher(self):
        if self.passed is None:
            return int(self.houses.towards(torch.tensor(self.here), torch.tensor(self.path[-1])))
        if self.passed == len(self.path) - 1:
            return 0
        return self.columns()[self.path[self.passed + 1]]

    def candidates(self):
        """Features and angles, with zeros for STOP."""
        rows = [[0.0] * (WIDTH + 4)]
        for column in self.columns().values():
            view = int(self.houses.view[self.here, column])
            heading = float(self.houses.heading[self.here, column]) - self.facing * STEP
            elevation = float(self.houses.elevation[self.here, column])
            angles = sin(heading), cos(heading), sin(elevation), cos(elevation)
            rows.append([*self.houses.features[self.here, view].tolist(), *angles])
        return torch.tensor(rows)

    def step(self, action):
        if action == 0:
            return 2.0 if self.distance(self.here) < 3 else -2.0
        there = int(self.houses.neighbour[self.here, action])
        reward = 1.0 if self.distance(there) < self.distance(self.here) else -1.0
        self.facing = int(self.houses.view[self.here, action]) % 12
        on_path = self.passed is not None and self.path[self.passed + 1 :][:1] == [there]
        self.here, self.passed = there, self.passed + 1 if on_path else None
        return reward


@pytest.fixture(scope="module")
def houses():
    features = np.random.default_rng(0).standard_normal((2 * len(NAMES), 36, WIDTH)).astype(np.float32)
    return assemble([house_graph("houseA"), house_graph("houseB")], features)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.3, 1.0))
def test_a_batch_of_walks_is_each_walk_alone(houses, seed, obedience):
    """Agents that take the teacher's candidate with some probability, and any candidate otherwise."""
    rng = np.random.default_rng(seed)
    told = [
        InstructedPath(scan, str(number), tuple(NAMES[stop] for stop in stops), float(rng.uniform(0, 6.28)), ("go",))
        for scan in ("houseA", "houseB")
        for number, stops in enumerate(PATHS)
    ]
    episodes = encode(told, houses.rows, Vocabulary(("go",)), 80)
    walks = Walks(houses, episodes)
    plain = [
        PlainWalk(houses, path[path >= 0].tolist(), int(facing))
        for path, facing in zip(episodes["path"], episodes["facing"], strict=True)
    ]
    trails = [[agent.here] for agent in plain]
    for _ in range(9):
        active = walks.active.tolist()
        seen, teacher = walks.observe(), walks.teacher()
        assert teacher.tolist() == [plain[number].teacher() for number in active]
        for row, number in enumerate(active):
            expected = plain[number].candidates()
            shown = torch.cat([seen.candidates[row], seen.candidate_angles[row]], dim=1)
            torch.testing.assert_close(shown[: len(expected)], expected)
            assert seen.exists[row].tolist() == [column < len(expected) for column in range(len(shown))]
            assert shown[len(expected) :].eq(0).all()
        action = [
            choice if rng.random() < obedience else int(rng.integers(0, 1 + len(plain[number].columns())))
            for choice, number in zip(teacher.tolist(), active, strict=True)
        ]
        rewards = walks.step(torch.tensor(action, dtype=torch.int64)).tolist()
        assert rewards == [plain[number].step(choice) for number, choice in zip(active, action, strict=True)]
        for number, choice in zip(active, action, strict=True):
            trails[number] += [plain[number].here] if choice else []
        assert walks.active.tolist() == [n for n, choice in zip(active, action, strict=True) if choice]
        if not len(walks.active):
            break
    trail, length = walks.trails()
    assert [row[:used].tolist() for row, used in zip(trail, length, strict=True)] == trails
