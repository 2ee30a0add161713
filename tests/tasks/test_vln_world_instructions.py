"""Instructions of made-up houses tell paths apart."""

import re
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from fedapps.tasks.vln.world.house import SampledPath, draw_house, sample_paths, shortest_paths
from fedapps.tasks.vln.world.wording import Annotator, describe, draw_habits

from fedapps.base.seeding import generator


@pytest.mark.slow
def test_reading_the_instruction_helps_to_find_the_goal():
    """Among a start's paths, that of the most similar text in another wording ends within 3 m of the goal."""
    read, other, blind = [], [], []
    for number in range(8):
        house = draw_house(f"house{number}", 1 + number % 2, seed=5)
        distances, before = shortest_paths(house.cameras, house.unobstructed)
        habits = draw_habits(generator(5, "habits", number))
        previous = None
        for place, path in enumerate(sample_paths(house, 8, generator(5, "paths", number))):
            told = _bigrams(_write(house, path, habits, "everything", 5, number, place))
            goals = _goals(before, distances, path)
            scores = {}
            for goal, spots in goals.items():
                texts = [
                    _write(house, SampledPath(spots, 0.0, path.heading), habits, detail, 6, number, goal)
                    for detail in ("turns", "everything")
                ]
                scores[goal] = [
                    max(_alike(query, _bigrams(text)) for text in texts) for query in (told, previous or told)
                ]
            near = {goal: distances[goal, path.spots[-1]] < 3 for goal in goals}
            read.append(near[max(goals, key=lambda goal: scores[goal][0])])
            blind.append(np.mean(list(near.values())))
            if previous is not None:
                other.append(near[max(goals, key=lambda goal: scores[goal][1])])
            previous = told
    assert np.mean(read) > 0.6
    assert np.mean(blind) < 0.3
    assert np.mean(other) < 0.4  # the instruction of another path is no help


def _write(house, path, habits, detail, *key):
    return Annotator(habits, detail, generator(*key)).write(describe(house, path))


def _goals(before, distances, path):
    found = {}
    for goal in range(len(before)):
        spots = [goal]
        while spots[-1] != path.spots[0]:
            spots.append(int(before[path.spots[0], spots[-1]]))
        if 5 <= len(spots) <= 7 and distances[path.spots[0], goal] >= 5:
            found[goal] = tuple(spots[::-1])
    return found


def _bigrams(text):
    words = re.findall("[a-z-]+", text.lower())
    return Counter(words) + Counter(pairwise(words))


def _alike(first, second):
    return 2 * (first & second).total() / (first.total() + second.total())
