"""Walls, lines of sight, moves, views and descriptions on a house drawn by hand, and of any house."""

import itertools

import numpy as np
import pytest
from fedapps.tasks.vln.features import FOCAL
from fedapps.tasks.vln.world.furnishing import Item, Spot, connect
from fedapps.tasks.vln.world.house import House, SampledPath, draw_house, look_around, sample_paths
from fedapps.tasks.vln.world.plan import (
    EDGES,
    Door,
    Plan,
    Rect,
    Room,
    Wall,
    boxes_in_views,
    diagonals,
    is_clear,
    shared_wall,
    stairs_of,
    view_axes,
    walls_of,
)
from fedapps.tasks.vln.world.wording import Climbing, Crossing, Passing, Stopping, Turning, describe, turn_name
from fedapps.tasks.vln.world.world import annotations
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

KITCHEN, HALLWAY = Rect(0, 0, 4, 4), Rect(4, 0, 8, 4)
PLAN = Plan(
    rooms=(Room("kitchen", 0, KITCHEN), Room("hallway", 0, HALLWAY)),
    doors=(Door((0, 1), 4.0, 2.0, False, 1.0),),
    outline=Rect(0, 0, 8, 4),
    storey=2.8,
)
SINK = Item("sink", "sink", 0, Rect(1.7, 3.5, 2.3, 4.0), 0.0, 0.9)
PLANT = Item("plant", "potted#plant", 1, Rect(4.8, 0.6, 5.2, 1.0), 0.0, 1.0)
PICTURE = Item("picture", "picture", 1, Rect(5.65, 3.96, 6.35, 4.0), 1.4, 1.95)
SPOTS = (Spot(2, 2, 0, (0,)), Spot(4, 2, 0, (0, 1)), Spot(6, 2, 0, (1,)), Spot(6, 3.5, 0, (1,)), Spot(7.5, 2, 0, (1,)))
INSIDE, DOOR, MIDDLE, NORTH, EAST = range(5)


@pytest.fixture(scope="module")
def house():
    items = (SINK, PLANT, PICTURE)
    moves = connect(PLAN, items, SPOTS)
    visible, in_sight = look_around(PLAN, list(items), list(SPOTS))
    heights = np.full(len(SPOTS), 1.5)
    ids = tuple(f"{number:032x}" for number in range(len(SPOTS)))
    return House("drawn", PLAN, items, SPOTS, ids, visible | moves, moves, in_sight, heights, np.zeros(5), 0.0)


def test_rooms_share_the_wall_where_they_touch():
    assert shared_wall(KITCHEN, HALLWAY) == Wall(False, 4, 0, 4)
    assert shared_wall(HALLWAY, KITCHEN) == Wall(False, 4, 0, 4)
    assert shared_wall(Rect(0, 0, 2, 2), Rect(1, 2, 5, 3)) == Wall(True, 2, 1, 2)
    assert shared_wall(Rect(0, 0, 2, 2), Rect(2, 2, 3, 3)) is None
    assert shared_wall(Rect(0, 0, 2, 2), Rect(3, 0, 4, 2)) is None


def test_a_wall_has_a_gap_where_the_door_is():
    walls = {tuple(wall) for wall in walls_of(PLAN, 0).tolist()}
    assert {(4, 0, 4, 1.5), (4, 2.5, 4, 4), (0, 0, 4, 0), (8, 0, 8, 4)} <= walls
    assert (4, 0, 4, 4) not in walls
    assert len(walls) == 3 + 3 + 2  # the other sides of the two rooms, and the parts beside the door


def test_a_line_is_clear_unless_a_wall_touches_it():
    wall = np.array([[1.0, -1.0, 1.0, 1.0]])
    start = np.zeros(2)
    ends = np.array([[2, 0], [2, 3], [0.9, 0], [1, 0], [2, 2]], float)
    assert is_clear(start, ends, wall).tolist() == [False, True, True, False, False]
    assert is_clear(start, ends, np.empty((0, 4))).all()


def test_one_sees_through_the_door_and_not_through_the_wall(house):
    assert house.visible[INSIDE, MIDDLE]
    assert house.visible[INSIDE, EAST]
    assert not house.visible[INSIDE, NORTH]  # the line meets the wall at y = 2.75, a quarter metre beside the door
    assert house.visible[DOOR].sum() == 4
    assert house.in_sight[:, 0].tolist() == [True, True, False, False, False]  # the sink stands behind the wall
    assert house.in_sight[:, 2].tolist() == [False, True, True, True, True]


def test_moves_stay_in_a_room_and_go_over_the_door(house):
    moves = {(a, b) for a, b in np.argwhere(house.unobstructed).tolist() if a < b}
    assert moves == {(INSIDE, DOOR), (DOOR, MIDDLE), (DOOR, NORTH), (MIDDLE, NORTH), (MIDDLE, EAST), (NORTH, EAST)}
    # (DOOR, EAST), 3.5 m, passes over MIDDLE


def test_moves_go_around_furniture_unless_there_is_no_other_way():
    table = Item("dining table", "table", 1, Rect(5.5, 2.5, 6.5, 3.0), 0.0, 0.75)
    moves = connect(PLAN, [table], SPOTS)
    assert not moves[MIDDLE, NORTH]
    assert moves[DOOR, NORTH]
    across = Item("dining table", "table", 1, Rect(4.5, 2.2, 8.0, 3.0), 0.0, 0.75)
    moves = connect(PLAN, [across], SPOTS)
    assert np.argwhere(moves[NORTH]).ravel().tolist() == [MIDDLE]  # the shortest of the lines through the table
    rug = Item("rug", "rug", 1, Rect(4.5, 2.2, 8.0, 3.0), 0.0, 0.02)
    assert (connect(PLAN, [rug], SPOTS) == connect(PLAN, [], SPOTS)).all()


@pytest.mark.parametrize(
    ("degrees", "name"),
    [
        (0, None), (34, None), (-34, None), (36, "slightly right"), (-64, "slightly left"), (66, "right"),
        (-90, "left"), (139, "right"), (141, "around"), (180, "around"), (-179, "around"), (350, None), (270, "left"),
    ],
)  # fmt: skip
def test_turns_have_names(degrees, name):
    assert turn_name(np.radians(degrees)) == name


def test_a_path_is_described_as_a_person_would(house):
    north, east = 0.0, np.pi / 2
    path = SampledPath((INSIDE, DOOR, MIDDLE, NORTH), 0.0, north)
    assert describe(house, path) == [
        Turning("right", "sink"),
        Crossing("kitchen", "hallway"),
        Passing("potted#plant", "right"),
        Turning("left", "potted#plant"),
        Stopping("hallway", None, False, "picture"),
    ]
    back = SampledPath((EAST, MIDDLE, DOOR), 0.0, east)
    assert describe(house, back) == [
        Turning("around", None),
        Passing("potted#plant", "left"),
        Stopping("hallway", "kitchen", False, "potted#plant"),
    ]


def test_views_look_as_in_room_to_room():
    axes = view_axes()
    assert np.allclose(axes @ axes.transpose(0, 2, 1), np.eye(3))
    right, up, forward = axes[12]
    assert np.allclose([right, up, forward], [(1, 0, 0), (0, 0, 1), (0, 1, 0)])
    assert np.allclose(axes[15][2], (1, 0, 0))
    assert np.allclose(axes[3][2], (np.cos(np.pi / 6), 0, -0.5))
    assert axes[24 + 3][2][2] == pytest.approx(0.5)


def test_a_cube_ahead_appears_where_it_should():
    cube = np.array([(x, y, z) for x in (-0.5, 0.5) for y in (1.5, 2.5) for z in (-0.5, 0.5)])
    boxes, inside = boxes_in_views(cube[None])
    half = FOCAL * 0.5 / 1.5  # of its near side: 138.6 pixels
    left, top = np.floor(320 - half), np.floor(240 - half)
    assert boxes[0, 12].tolist() == [left, top, np.ceil(320 + half) - left, np.ceil(240 + half) - top]
    level = [view for view in range(12, 24) if inside[0, view]]
    assert level == [12, 13, 23]  # it spans 18.4 degrees each way, half a picture 37.6
    assert not inside[0, [6, 18, 30]].any()


@given(middle=st.tuples(*[st.floats(-3, 3)] * 3), size=st.tuples(*[st.floats(0.05, 1.5)] * 3))
def test_rectangles_hold_what_the_camera_sees_of_a_box(middle, size):
    low, high = np.array(middle) - np.array(size) / 2, np.array(middle) + np.array(size) / 2
    corners = np.array([(x, y, z) for x in (low[0], high[0]) for y in (low[1], high[1]) for z in (low[2], high[2])])
    (boxes,), (inside,) = boxes_in_views(corners[None])
    share = np.linspace(0, 1, 9)
    grid = low + np.array(list(itertools.product(share, repeat=3))) * (high - low)
    points = np.einsum("kd,qad->qka", grid, view_axes())
    for view in range(36):
        ahead = points[view][points[view][:, 2] > 0.06]
        x, y = 320 + FOCAL * ahead[:, 0] / ahead[:, 2], 240 - FOCAL * ahead[:, 1] / ahead[:, 2]
        seen = (x > 0) & (x < 640) & (y > 0) & (y < 480)
        assert inside[view] or not seen.any()
        left, top, width, height = boxes[view]
        assert ((x[seen] >= left - 1e-6) & (x[seen] <= left + width + 1e-6)).all()
        assert ((y[seen] >= top - 1e-6) & (y[seen] <= top + height + 1e-6)).all()
        if len(ahead) == len(grid) and seen.all():  # the whole box is in the picture: its corners bound it exactly
            assert (left, top) == (np.floor(x.min()), np.floor(y.min()))
            assert (left + width, top + height) == (np.ceil(x.max()), np.ceil(y.max()))


def test_a_box_has_twelve_edges_along_the_axes():
    corners = np.array(list(itertools.product((0, 1), repeat=3)))
    assert len(EDGES) == 12
    assert (np.abs(corners[EDGES[:, 0]] - corners[EDGES[:, 1]]).sum(axis=1) == 1).all()


@given(st.tuples(*[st.floats(-2, 6)] * 4))
def test_no_way_through_a_rectangle_misses_its_diagonals(line):
    start, end = np.array(line[:2]), np.array(line[2:])
    rect = Rect(1, 1, 3, 2)
    points = start + np.linspace(0, 1, 200)[:, None] * (end - start)
    inside = ((points > (1.001, 1.001)) & (points < (2.999, 1.999))).all(axis=1)
    if inside.any() and not inside[0] and not inside[-1]:
        assert not is_clear(start, end, diagonals([rect]))


houses = st.builds(draw_house, st.integers(0, 10**6).map("house{}".format), st.integers(1, 3), st.just(0))


@settings(max_examples=25, deadline=None)
@given(houses)
def test_graphs_are_symmetric_connected_and_of_short_moves(house):
    moves = house.unobstructed
    assert (moves == moves.T).all()
    assert not moves.diagonal().any()
    assert connected_components(csr_matrix(moves))[0] == 1
    assert (house.visible | ~moves).all()
    lengths = np.linalg.norm(house.cameras[:, None] - house.cameras, axis=-1)
    assert (lengths[moves] < 9).all()
    assert np.median(lengths[moves]) < 3.5
    assert len(set(house.ids)) == len(house.ids) == len(house.spots)
    rooms = {number for spot in house.spots for number in spot.rooms}
    assert rooms == set(range(len(house.plan.rooms)))
    flights = stairs_of(house.plan)
    assert len(flights) == max(room.floor for room in house.plan.rooms)
    climbs = {
        frozenset((house.spots[a], house.spots[b]))
        for a, b in np.argwhere(moves)
        if house.spots[a].z != house.spots[b].z
    }
    ends = {frozenset((flight.landing, end)) for flight in flights for end in (flight.foot, flight.top)}
    assert {frozenset((spot.x, spot.y, spot.z) for spot in climb) for climb in climbs} == ends
    for flight in flights:
        assert flight.top[2] - flight.landing[2] == pytest.approx(flight.landing[2] - flight.foot[2])


@settings(max_examples=25, deadline=None)
@given(houses)
def test_rooms_fill_the_outline_and_objects_do_not_overlap(house):
    plan = house.plan
    floors = {room.floor for room in plan.rooms}
    assert sum(room.rect.area for room in plan.rooms) == pytest.approx(len(floors) * plan.outline.area)
    for number, room in enumerate(plan.rooms):
        assert room.kind
        mine = [item for item in house.items if item.room == number and item.kind not in ("doorway", "step", "rug")]
        for item in mine:
            assert room.rect.x0 <= item.rect.x0 < item.rect.x1 <= room.rect.x1
            assert room.rect.y0 <= item.rect.y0 < item.rect.y1 <= room.rect.y1
        for first, second in itertools.combinations(mine, 2):
            a, b = first.corners, second.corners
            assert (a.min(axis=0) >= b.max(axis=0)).any() or (b.min(axis=0) >= a.max(axis=0)).any()


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(houses)
def test_objects_are_in_views_where_a_line_to_them_is_clear(house):
    annotated = annotations(house)
    away = np.linalg.norm(house.cameras[:, None] - house.centres, axis=-1)
    for spot, identifier in enumerate(house.ids):
        objects = annotated[identifier]
        assert set(objects) == {str(item) for item in np.flatnonzero(away[spot] <= 3)}
        for item, (name, views, boxes) in objects.items():
            assert name == house.items[int(item)].name
            assert len(views) == len(boxes)
            east, north, up = house.centres[int(item)] - house.cameras[spot]
            steep = (
                abs(np.degrees(np.arctan2(up, np.hypot(east, north)))) > 55
            )  # no view shows what is above 60 degrees
            assert bool(views) == house.in_sight[spot, int(item)] or (steep and not views)
            assert views == sorted(set(views))
            assert all(0 <= view < 36 for view in views)
            assert all(x >= 0 and y >= 0 and w > 0 and h > 0 and x + w <= 640 and y + h <= 480 for x, y, w, h in boxes)


@settings(max_examples=15, deadline=None)
@given(houses)
def test_descriptions_are_true(house):
    for path in sample_paths(house, 20, np.random.default_rng(0)):
        clauses = describe(house, path)
        steps = list(itertools.pairwise(path.spots))
        assert all(house.unobstructed[a, b] for a, b in steps)
        rooms = [(set(house.spots[a].rooms) & set(house.spots[b].rooms)).pop() for a, b in steps]
        kinds = [house.plan.rooms[room].kind for room in rooms]
        entered = [
            (kinds[i], kinds[i + 1])
            for i in range(len(rooms) - 1)
            if rooms[i] != rooms[i + 1] and {kinds[i], kinds[i + 1]} != {"stairs"}
        ]
        assert [(clause.out_of, clause.into) for clause in clauses if isinstance(clause, Crossing)] == entered
        rises = [house.spots[b].z - house.spots[a].z for a, b in steps]
        climbs = [up for up, _ in itertools.groupby(rise > 0 for rise in rises if rise)]
        assert [clause.up for clause in clauses if isinstance(clause, Climbing)] == climbs
        assert isinstance(clauses[-1], Stopping)
        assert sum(isinstance(clause, Stopping) for clause in clauses) == 1
        goal = house.spots[path.spots[-1]]
        assert clauses[-1].room in {house.plan.rooms[room].kind for room in goal.rooms}
        for clause in clauses:
            if isinstance(clause, Passing):
                assert any(_passes(house, a, b, clause) for a, b in steps)
        if clauses[-1].at is not None:
            near = [item for item in np.flatnonzero(house.in_sight[path.spots[-1]]) if _apart(house, path, item) <= 2]
            assert clauses[-1].at in {house.items[item].name for item in near}


def _apart(house, path, item):
    return np.linalg.norm((house.centres[item] - house.cameras[path.spots[-1]])[:2])


def _passes(house, here, there, clause):
    """An object of the clause's name is at most 2 m to the side it names of the line between two viewpoints."""
    ahead = (house.cameras[there] - house.cameras[here])[:2]
    right = np.array([ahead[1], -ahead[0]]) / np.linalg.norm(ahead)
    sides = (house.centres - house.cameras[here])[:, :2] @ right
    on_side = sides > 0 if clause.side == "right" else sides < 0
    named = np.array([item.name == clause.name for item in house.items])
    return bool((named & on_side & (np.abs(sides) <= 2)).any())
