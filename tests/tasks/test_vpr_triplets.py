"""The triplet loss: numbers by hand, masks, torch's own loss, gradients."""

import torch
from fedapps.tasks.vpr.training_set import triplet_loss, triplet_terms
from hypothesis import given, settings
from hypothesis import strategies as st


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


def test_gradients_of_the_loss():
    q, p = torch.randn(2, 3, 4, dtype=torch.double).requires_grad_()
    n = torch.randn(3, 5, 4, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda *of: triplet_loss(triplet_terms(*of, margin=0.7)), (q.detach().requires_grad_(), p.detach(), n)
    )
