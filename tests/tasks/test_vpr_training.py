"""Training on mined triplets: batches, augmentation, and what a model learns."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from fedapps.tasks.vpr.task import VprTask
from fedapps.tasks.vpr.training_set import triplet_loss, triplet_terms
from hypothesis import given, settings
from hypothesis import strategies as st
from striped_tasks import OPTIONS, SPOTS, evaluated, model_of, task_with, train

from fedapps.base.seeding import torch_seed

pytestmark = pytest.mark.usefixtures("tiny_network")


def batches_of(task, model, data, size=4, seed=0):
    with torch_seed(seed):
        return list(task.training_batches(model, data, size))


def same_arrays(one, other):
    return all(torch.equal(one.state_dict()[name], other.state_dict()[name]) for name in one.state_dict())


def test_triplets_are_the_hardest_by_the_weights_of_the_model(striped):
    """Against brute force: nearest of those within 10 m, and nearest three of those beyond 25 m."""
    task = task_with()
    node, model = task.load_node(striped, 0, 2), model_of(task)
    training = node.extra["training"]
    inputs = training.images.through(model)
    found = training.triplets(inputs, np.arange(2 * SPOTS), task.options, np.random.default_rng(0))
    everything = np.arange(len(training.images.places))
    described, at = inputs.describe(everything), training.images.places.position
    assert found.queries.tolist() == training.queries.tolist()
    for query, positive, negatives in zip(found.queries, found.positives, found.negatives, strict=True):
        database = training.database
        apart = np.linalg.norm(described[database] - described[query], axis=1)
        metres = np.linalg.norm(at[database] - at[query], axis=1)
        near, far = database[metres <= 10], database[metres > 25]
        assert positive == near[apart[metres <= 10].argmin()]
        assert set(negatives) == set(far[np.argsort(apart[metres > 25])[:3]])


def test_an_epoch_has_every_query_once_with_its_triplet(striped):
    task = task_with()
    node, model = task.load_node(striped, 0, 2), model_of(task)
    batches = batches_of(task, model, node, size=5)
    assert [tuple(batch["maps"].shape) for batch in batches] == [(n, 5, 8, 12, 16) for n in (5, 5, 2)]
    assert all(batch["mask"].all() and batch["mask"].shape[1] == 3 for batch in batches)
    training = node.extra["training"]
    maps = training.images.through(model).maps[torch.from_numpy(training.queries)]
    seen = [
        int((maps == query).all(dim=(1, 2, 3)).nonzero()[0, 0]) for batch in batches for query in batch["maps"][:, 0]
    ]
    assert sorted(seen) == list(range(2 * SPOTS))
    assert seen != list(range(2 * SPOTS))


def test_an_epoch_may_be_limited(striped):
    task = task_with(queries_per_epoch=7, refresh=4)
    batches = batches_of(task, model_of(task), task.load_node(striped, 0, 2), size=2)
    assert [len(batch["mask"]) for batch in batches] == [2, 2, 2, 1]


def test_triplets_are_mined_anew_with_the_weights_of_the_moment(striped):
    task = task_with(refresh=6)
    node = task.load_node(striped, 0, 2)

    def epoch(changed):
        model, batches = model_of(task), []
        with torch_seed(0):
            for batch in task.training_batches(model, node, 6):
                batches.append(batch["maps"])
                if changed:
                    model.trained.load_state_dict(model_of(task, 1).trained.state_dict())
        return batches

    (first, second), (same, other) = epoch(False), epoch(True)
    assert torch.equal(first, same)
    assert torch.equal(second[:, 0], other[:, 0])
    assert not torch.equal(second[:, 1:], other[:, 1:])


def test_a_virtual_client_trains_on_the_rows_it_drew(striped):
    task = task_with()
    node = task.load_node(striped, 0, 2)
    drawn = torch.tensor([3, 3, 3, 0, 3])
    virtual = replace(node, splits={"train": {"query": drawn}})
    batches = batches_of(task, model_of(task), virtual, size=2)
    assert [len(batch["maps"]) for batch in batches] == [2, 2, 1]
    queries = torch.cat([batch["maps"][:, 0] for batch in batches])
    assert sorted((queries == queries[i]).all(dim=(1, 2, 3)).sum().item() for i in range(5)) == [1, 4, 4, 4, 4]


def test_batches_need_the_model(striped):
    task = task_with()
    node = task.load_node(striped, 0, 2)
    for read in (task.batches, task.examples):
        with pytest.raises(NotImplementedError, match="mines its"):
            read(node, "train", 2)
    assert not task.roles.examples


@pytest.mark.parametrize(
    ("changes", "images", "maps"),
    [
        ({"augment": "jitter"}, 1, 4),
        ({"augment": "jitter", "augmented": "all"}, 5, 0),
        ({"augment": "jitter-crop", "maps_megabytes": 0}, 5, 0),
        ({"maps_megabytes": 0}, 5, 0),
        ({}, 0, 5),
    ],
)
def test_only_what_is_augmented_goes_through_the_frozen_layers_again(striped, changes, images, maps):
    task = task_with(**changes)
    model = model_of(task)
    (batch, *_) = batches_of(task, model, task.load_node(striped, 0, 2))
    assert (batch["images"].shape[1] if "images" in batch else 0) == images
    assert (batch["maps"].shape[1] if "maps" in batch else 0) == maps
    assert torch.isfinite(task.loss(model, batch))


def test_of_augmented_queries_the_other_pictures_stay_as_they_are(striped):
    """With nothing kept all images come as images, of which only half of the queries are others."""
    node = task_with(maps_megabytes=0).load_node(striped, 0, 2)
    plain, changed = (
        batches_of(task, model_of(task), node, size=12)[0]["images"]
        for task in (task_with(maps_megabytes=0), task_with(maps_megabytes=0, augment="jitter"))
    )
    assert torch.equal(plain[:, 1:], changed[:, 1:])
    others = (plain[:, 0] != changed[:, 0]).flatten(1).any(dim=1).sum()
    assert 0 < others < 12


def test_training_finds_places_that_an_untrained_model_does_not(striped):
    task = task_with()
    node, model = task.load_node(striped, 0, 2), model_of(task)
    before, frozen = evaluated(task, model, node), {n: t.clone() for n, t in model.frozen.state_dict().items()}
    first = train(task, model, node, 1)
    last = train(task, model, node, 11)
    after = evaluated(task, model, node)
    assert (first.steps, last.steps) == (3, 33)
    assert last.loss < first.loss
    assert after["train.loss"] < before["train.loss"]
    assert after["train.recall_at_1"] > before["train.recall_at_1"] + 0.2
    assert after["train.zero_loss"] > before["train.zero_loss"]
    assert all(torch.equal(frozen[name], tensor) for name, tensor in model.frozen.state_dict().items())


def test_the_same_seed_gives_the_same_bits_whatever_was_kept(striped):
    task = task_with()
    one, other = model_of(task), model_of(task)
    train(task, one, task.load_node(striped, 0, 2), 2)
    fresh = VprTask(replace(OPTIONS, maps_megabytes=1023))  # of other options: read and kept for itself
    train(fresh, other, fresh.load_node(striped, 0, 2), 2)
    assert same_arrays(one, other)
    train(task, one, task.load_node(striped, 0, 2), 1, seed=1)
    train(task, other, task.load_node(striped, 0, 2), 1, seed=2)
    assert not same_arrays(one, other)


def test_training_on_kept_maps_is_training_on_images_but_for_rounding(striped):
    losses, models = [], []
    for task in (task_with(), task_with(maps_megabytes=0)):
        models.append(model_of(task))
        losses.append(train(task, models[-1], task.load_node(striped, 0, 2), 2).loss)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    for name, tensor in models[0].state_dict().items():
        torch.testing.assert_close(tensor, models[1].state_dict()[name], rtol=1e-3, atol=1e-5)


def test_the_loss_by_hand():
    """|q - p| = 3; |q - n| = 5, 3.05 and 1: terms 0, 0.05 and 2.1."""
    queries, positives = torch.zeros(1, 2), torch.tensor([[0.0, 3.0]])
    negatives = torch.tensor([[[3.0, 4.0], [3.05, 0.0], [-1.0, 0.0]]])
    terms = triplet_terms(queries, positives, negatives, margin=0.1)
    torch.testing.assert_close(terms, torch.tensor([[0.0, 0.05, 2.1]]))
    torch.testing.assert_close(triplet_loss(terms), torch.tensor(2.15 / 3))
    torch.testing.assert_close(triplet_loss(terms, torch.tensor([[True, False, True]])), torch.tensor(1.05))


def test_masked_negatives_and_queries_without_any():
    terms = torch.tensor([[1.0, 3.0], [5.0, torch.inf], [7.0, 9.0]], requires_grad=True)
    mask = torch.tensor([[True, True], [True, False], [False, False]])
    loss = triplet_loss(terms, mask)
    torch.testing.assert_close(loss, torch.tensor((2.0 + 5.0) / 2))
    loss.backward()
    torch.testing.assert_close(terms.grad, torch.tensor([[0.25, 0.25], [0.5, 0.0], [0.0, 0.0]]))
    assert triplet_loss(terms, torch.zeros(3, 2, dtype=torch.bool)) == 0
    assert triplet_loss(terms[:0]) == 0


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 4), st.integers(1, 5), st.integers(1, 6), st.floats(0.01, 1), st.integers(0, 99))
def test_the_loss_is_that_of_torch(count, negatives, width, margin, seed):
    """``TripletMarginLoss``, one negative at a time; it adds 1e-6 to every difference."""
    drawn = torch.Generator().manual_seed(seed)
    q, p = torch.randn(2, count, width, generator=drawn)
    n = torch.randn(count, negatives, width, generator=drawn)
    terms = triplet_terms(q, p, n, margin=margin)
    assert terms.shape == (count, negatives)
    for k in range(negatives):
        expected = torch.nn.functional.triplet_margin_loss(q, p, n[:, k], margin=margin, reduction="none")
        torch.testing.assert_close(terms[:, k], expected, atol=1e-4, rtol=1e-4)
    if count:
        torch.testing.assert_close(triplet_loss(terms), terms.mean())


def test_a_gradient_at_no_distance():
    same = torch.ones(2, 3, requires_grad=True)
    triplet_loss(triplet_terms(same, same.clone(), same[:, None].expand(-1, 4, -1))).backward()
    assert torch.equal(same.grad, torch.zeros(2, 3))
