"""Graphs and networks, held against the scenes written out node by node and PyTorch Geometric's convolutions."""

import numpy as np
import pytest
import torch
from fedapps.clients.fisher import diagonal_fisher
from fedapps.tasks.social.graphs import PARTY, RELATIONS, UNIT, compact_graphs, relational_graphs
from fedapps.tasks.social.networks import GraphConvolutions, Options, RelationalConvolutions, graphs
from fedapps.tasks.social.scenes import RatedScene
from fedapps.tasks.social.task import SocialTask
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import elu

BOTH = ("compact", "relational")


@st.composite
def scenes(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    humans, objects = draw(st.integers(0, 4)), draw(st.integers(0, 3))
    poses = [tuple(row) for row in (rng.uniform(-4, 4, (humans + objects, 3)) * (1, 1, 0.25)).tolist()]
    pairs = [(i, j) for i in range(1, humans + 1) for j in range(i + 1, humans + objects + 1)]
    links = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    corners = [tuple(corner) for corner in rng.uniform(-9, 9, (draw(st.integers(3, 6)), 2)).tolist()]
    return RatedScene("1", 60.0, tuple(poses[:humans]), tuple(poses[humans:]), tuple(links), tuple(corners))


batches = st.lists(scenes(), min_size=1, max_size=4)


def model_of(kind, hidden=5, layers=2):
    """A small network, whose biases are not 0."""
    torch.manual_seed(0)
    model = graphs(Options(graph=kind, hidden=hidden, layers=layers)).network()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.uniform_(-0.5, 0.5)
    return model


def compact_oracle(model, scene):
    """The score of one scene, node by node, and PyG's convolutions."""
    from torch_geometric.nn import GCNConv

    bodies = [*scene.humans, *scene.objects]
    rows = [(1, 0, 0, 0, 0, 0, 0)]
    rows += [(0, i < len(scene.humans), i >= len(scene.humans), 0, *pose) for i, pose in enumerate(bodies)]
    edges = [(i, 0) for i in range(1, len(rows))]
    for i, j in scene.links:
        one, other = bodies[i - 1], bodies[j - 1]
        edges += [(i, len(rows)), (j, len(rows)), (len(rows), 0)]
        rows.append((0, 0, 0, 1, (one[0] + other[0]) / 2, (one[1] + other[1]) / 2, 0))
    hidden = torch.tensor(rows, dtype=torch.float32)
    index = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T
    for number, layer in enumerate(model.layers):
        convolution = GCNConv(layer.in_features, layer.out_features)
        convolution.lin.weight, convolution.bias = layer.weight, layer.bias
        hidden = convolution(elu(hidden) if number else hidden, index)
    return torch.tanh(hidden[0, 0])


def away(x, y):
    distance = np.hypot(x, y) / UNIT
    return distance, distance**2, np.arctan2(x, y)


def relational_oracle(model, scene):
    from torch_geometric.nn import RGCNConv

    kinds, rows = ["robot"], [np.eye(5)[0].tolist() + [0.0] * 15]
    for x, y, turn in scene.humans:
        kinds.append("human")
        rows.append([0, 1, 0, 0, 0, *away(x, y), turn, *[0.0] * 11])
    for x, y, turn in scene.objects:
        kinds.append("object")
        rows.append([0, 0, 1, 0, 0, *[0.0] * 4, *away(x, y), turn, *[0.0] * 7])
    room = len(rows)
    kinds.append("room")
    nearest = min((away(x, y)[0] for x, y, _ in scene.humans), default=-1)
    crowd = len(scene.humans) / PARTY
    rows.append([0, 0, 0, 1, 0, *[0.0] * 8, nearest, nearest**2, crowd, crowd**2, *[0.0] * 3])
    pairs = [(0, i) for i in range(1, room + 1)] + list(scene.links)
    for corner, following in zip(scene.room, (*scene.room[1:], scene.room[0]), strict=True):
        start, side = np.array(corner), np.subtract(following, corner)
        pieces = int(np.hypot(*side) / 4) + 1
        for piece in range(pieces):
            pairs.append((room, len(rows)))
            kinds.append("wall")
            rows.append([0, 0, 0, 0, 1, *[0.0] * 12, *away(*(start + (piece + 0.5) / pieces * side))])
    edges = pairs + [(j, i) for i, j in pairs]
    relation = torch.tensor([RELATIONS.index((kinds[i], kinds[j])) for i, j in edges])
    hidden, index = torch.tensor(rows, dtype=torch.float32), torch.tensor(edges).T
    for number, layer in enumerate(model.layers):
        convolution = RGCNConv(layer.root.in_features, layer.root.out_features, len(RELATIONS), aggr="mean")
        with torch.no_grad():
            convolution.weight.copy_(layer.weight.permute(1, 2, 0))
            convolution.root.copy_(layer.root.weight.T)
            convolution.bias.copy_(layer.root.bias)
        hidden = convolution(elu(hidden) if number else hidden, index, relation)
    return torch.tanh(hidden[0, 0])


ORACLES = {"compact": compact_oracle, "relational": relational_oracle}


@pytest.mark.slow
@pytest.mark.parametrize("kind", BOTH)
@given(batch=batches)
@settings(max_examples=40, deadline=None)
def test_scores_are_those_of_pytorch_geometric(kind, batch):
    model = model_of(kind)
    scores = model(**graphs(Options(graph=kind)).build(batch))
    assert scores.shape == (len(batch),)
    torch.testing.assert_close(scores, torch.stack([ORACLES[kind](model, scene) for scene in batch]))


@pytest.mark.parametrize("kind", BOTH)
@given(batch=batches)
@settings(max_examples=40, deadline=None)
def test_padding_changes_no_score(kind, batch):
    seen = graphs(Options(graph=kind))
    crowd = RatedScene(
        "2", 0.0, ((1.0, 1.0, 0.0),) * 6, ((2.0, 1.0, 0.0),) * 4, ((1, 2),), ((-9.0, -9.0), (9, -9), (0, 99))
    )
    model, padded = model_of(kind), seen.build([*batch, crowd])
    alone = {name: tensor[:-1] for name, tensor in padded.items()}
    trimmed = seen.trimmed(alone)
    exact = seen.build(batch)
    assert trimmed.keys() == exact.keys()
    assert all(torch.equal(trimmed[name], exact[name]) for name in exact)
    torch.testing.assert_close(model(**trimmed), model(**alone))
    torch.testing.assert_close(seen.sizes(alone), seen.sizes(exact))


@given(batch=batches)
@settings(max_examples=40, deadline=None)
def test_a_mirrored_scene_has_x_and_orientation_negated(batch):
    plain, mirrored = compact_graphs(batch, "cartesian"), compact_graphs([s.mirrored() for s in batch], "cartesian")
    signs = torch.tensor([1.0, 1, 1, 1, -1, 1, -1])
    torch.testing.assert_close(mirrored["nodes"], signs * plain["nodes"])
    assert torch.equal(mirrored["adjacency"], plain["adjacency"])
    plain, mirrored = relational_graphs(batch), relational_graphs([s.mirrored() for s in batch])
    signs = torch.ones(20)
    signs[[7, 8, 11, 12, 19]] = -1  # angles and orientations
    for name in ("human", "object", "room", "wall"):
        torch.testing.assert_close(mirrored[name], signs * plain[name])


def test_polar_geometry():
    scene = RatedScene("1", 50.0, ((3.0, 4.0, 0.5), (-3.0, 4.0, -0.5)), (), ((1, 2),), ())
    nodes = compact_graphs([scene], "polar")["nodes"][0]
    angle = np.arctan2(3, 4)
    torch.testing.assert_close(
        nodes[:, 4:], torch.tensor([[0, 0, 0], [5, angle, 0.5], [5, -angle, -0.5], [4, 0, 0]], dtype=torch.float32)
    )


@pytest.mark.parametrize("kind", BOTH)
def test_gradients_of_single_examples_are_taken_at_once(kind):
    """The model runs under vmap with one example, as Fisher information needs."""
    rng = np.random.default_rng(0)
    people = [tuple(map(tuple, rng.uniform(-2, 2, (n, 3)))) for n in (3, 0, 2)]
    chosen = [
        RatedScene("1", 50.0, p, p[:1], ((1, 2), (1, 4))[: len(p) - 1] if p else (), ((-5.0, -5), (5, -5), (0, 5)))
        for p in people
    ]
    task = SocialTask(Options(graph=kind, hidden=4, layers=2))
    batch = task.graphs.build(chosen) | {"score": torch.tensor([0.1, 0.5, 0.9])}
    model = model_of(kind, 4)
    at_once = diagonal_fisher(model, [batch], task.loss)
    singly = diagonal_fisher(model, [batch], task.loss, vectorised=False)
    assert any(float(values.sum()) > 0 for values in singly.values())
    for name, values in singly.items():
        torch.testing.assert_close(at_once[name], values, atol=1e-9, rtol=1e-4)


@pytest.mark.parametrize("kind", BOTH)
def test_a_new_network_can_learn(kind):
    """Scores are not saturated at first: tanh has a slope where they are."""
    rng = np.random.default_rng(1)
    chosen = [
        RatedScene(
            "1", 50.0, tuple(map(tuple, rng.uniform(-5, 5, (n, 3)) / (1, 1, 5))), (), (), ((-5.0, -5), (5, -5), (0, 5))
        )
        for n in range(20)
    ]
    inputs = graphs(Options(graph=kind)).build(chosen)
    for seed in range(5):
        torch.manual_seed(seed)
        scores = graphs(Options(graph=kind)).network()(**inputs)
        assert (1 - scores.square()).mean() > 0.3


def test_networks_have_the_sizes_they_say():
    """7,681 is the paper's; an R-GCN layer has twelve matrices of weights."""
    model = SocialTask().build_model()
    assert isinstance(model, GraphConvolutions)
    assert sum(parameter.numel() for parameter in model.parameters()) == 7681
    assert [name for name, _ in model.named_parameters()][:2] == ["layers.0.weight", "layers.0.bias"]
    relational = SocialTask(Options(graph="relational")).build_model()
    assert isinstance(relational, RelationalConvolutions)
    expected = 12 * (20 * 32 + 2 * 32 * 32 + 32) + 3 * 32 + 1
    assert sum(parameter.numel() for parameter in relational.parameters()) == expected == 32737
    assert len(SocialTask(Options(graph="relational", layers=5)).build_model().layers) == 6
