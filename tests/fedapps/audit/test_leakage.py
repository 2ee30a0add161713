import pytest
import torch
from fedapps.tasks.base import Secret
from torch import nn

from fedapps.audit.counts import input_errors, label_counts, linear_inputs, mean_answers, right_share
from fedapps.audit.matching import Search, decibels, errors, matched


def gradients(layer, inputs, labels):
    loss = nn.functional.cross_entropy(layer(inputs), labels)
    return torch.autograd.grad(loss, [layer.weight, layer.bias], create_graph=True)


def test_one_example_of_a_linear_layer_is_read_exactly():
    torch.manual_seed(0)
    layer, inputs = nn.Linear(4, 3).double(), torch.rand(1, 4, dtype=torch.float64)
    weight, bias = (one.detach() for one in gradients(layer, inputs, torch.tensor([1])))
    read = linear_inputs(weight, bias)
    torch.testing.assert_close(read, inputs.expand(3, 4))
    assert input_errors(inputs, read) < 1e-12
    assert input_errors(torch.rand(1, 4), read) > 0.1  # another node's


def test_label_counts_of_a_worked_case():
    """Two examples of class 0 and one of class 2, all with p = (1/2, 1/4, 1/4): p - (2, 0, 1) / 3."""
    answers = torch.tensor([[0.5, 0.25, 0.25]]).expand(3, 3)
    gradient = torch.tensor([0.5 - 2 / 3, 0.25, 0.25 - 1 / 3])
    assert label_counts(gradient, answers, 3).tolist() == [2, 0, 1]
    assert label_counts(gradient * 0.1, answers, 3, scaled=True).tolist() == [2, 0, 1]


def test_label_counts_sum_to_the_examples_whatever_the_gradient():
    answers = mean_answers(torch.zeros(2, 3), torch.tensor([0, 0]))
    assert answers.tolist() == [[pytest.approx(1 / 3)] * 3] * 3
    assert int(label_counts(torch.zeros(3), answers, 4, scaled=True).sum()) == 4
    assert right_share(torch.tensor([2, 0, 1]), torch.tensor([1, 1, 1])) == pytest.approx(2 / 3)


def test_matching_finds_an_image_and_not_that_of_another_node():
    torch.manual_seed(0)
    layer, label = nn.Linear(16, 3).double(), torch.tensor([1])
    image, other = torch.rand(2, 1, 4, 4, dtype=torch.float64)

    def simulate(batches):
        return torch.cat([one.flatten() for one in gradients(layer, batches[0]["image"].flatten(1), label)])

    target = simulate([{"image": image[None]}]).detach()
    secret = Secret("image", "images", 0.1)
    generator = torch.Generator().manual_seed(0)
    (read,), distance = matched(simulate, target, [{"image": image[None]}], [secret], Search(100, 50), generator)
    assert distance < 1e-8
    assert decibels(float(errors(image[None], read["image"]))) > 60
    assert float(errors(other[None], read["image"])) > secret.near


def test_errors_assign_what_was_read_to_the_examples():
    pixels = torch.tensor([[0, 255]], dtype=torch.uint8).T[:, :, None, None]
    read = torch.tensor([1.0, 0.5, 0.25])[:, None, None, None]
    assert errors(pixels, read).tolist() == [0.25, 0.0]
    assert decibels(0.1) == pytest.approx(20)
    assert decibels(0.0) == pytest.approx(200)
