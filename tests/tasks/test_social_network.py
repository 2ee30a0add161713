"""The network of the compact graph."""

from tasks.social import SocialTask


def test_the_network_has_the_size_of_the_papers():
    model = SocialTask().build_model()
    assert sum(parameter.numel() for parameter in model.parameters()) == 7681
    assert [name for name, _ in model.named_parameters()][:2] == ["layers.0.weight", "layers.0.bias"]
