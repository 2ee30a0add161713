"""The networks of the task "images" have the sizes that the literature gives, and names for their parts."""

import pytest
import torch
from fedapps.tasks.base import DataError
from fedapps.tasks.images.networks import ImageClassifier, cnn, lenet, mlp, resnet8, resnet18
from fedapps.tasks.images.options import Options
from fedapps.tasks.images.task import ImagesTask


def size(network):
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(
    ("build", "parameters"),
    [
        (lambda: cnn(28, 28, 1, 10), 1_663_370),  # McMahan et al., 2017, Section 3
        (lambda: mlp(28 * 28, 10), 199_210),  # the same
        (lambda: lenet(32, 32, 3, 10), 62_006),  # the reference code of NIID-Bench
        (lambda: resnet18(3, 10, "batch"), 11_173_962),  # kuangliu/pytorch-cifar
        (lambda: resnet18(3, 10, "group"), 11_173_962),
        (lambda: resnet8(3, 10, "batch"), 78_042),
    ],
)
def test_networks_have_the_sizes_of_the_literature(build, parameters):
    with torch.device("meta"):
        assert size(build()) == parameters


@pytest.mark.parametrize("model", ["cnn", "mlp", "resnet8", "squeezenet1_1", "mobilenet_v3_small"])
@pytest.mark.parametrize("dataset", ["mnist", "cifar10"])
def test_the_size_of_the_input_and_the_classes_come_from_the_data_set(model, dataset):
    task = ImagesTask(Options(dataset=dataset, model=model, labels="a,b,c", height=32))
    task.check_nodes(2)
    network = task.build_model().eval()
    channels = task.layout.size[2]
    with torch.no_grad():
        assert network(torch.zeros(2, channels, 32, 32, dtype=torch.uint8)).shape == (2, 3)
    assert all(tensor.is_floating_point() for tensor in network.state_dict().values())  # no counters of batches


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": "resnet19"}, r"images\.model = 'resnet19': must be one of cnn, .*close names: resnet18"),
        ({"model": "lenet"}, r"images\.model = 'lenet' does not take images of 8x8 \(images\.height"),
        (
            {"model": "alexnet"},
            r"images\.model = 'alexnet' does not take images of 8x8 \(images\.height, images\.width",
        ),
    ],
)
def test_networks_that_cannot_be(options, said):
    with pytest.raises(DataError, match=said):
        ImagesTask(Options(**options)).check_nodes(2)


def test_pixels_are_normalised_by_constants_or_by_image():
    # 51 and 102 of 255 are 0.2 and 0.4
    images = torch.tensor([51, 102], dtype=torch.uint8).view(1, 1, 1, 2)

    def linear():
        return torch.nn.Sequential(torch.nn.Linear(2, 2))

    fixed = ImageClassifier(linear(), 1, ((0.2,), (0.4,))).normalised(images)
    torch.testing.assert_close(fixed.reshape(-1), torch.tensor([0.0, 0.5]))
    own = ImageClassifier(linear(), 1, None).normalised(images)
    torch.testing.assert_close(own.reshape(-1), torch.tensor([-1.0, 1.0]) / 2**0.5)
    assert ImageClassifier(linear(), 3, ((0.2,), (0.4,))).normalised(images).shape == (1, 3, 1, 2)
