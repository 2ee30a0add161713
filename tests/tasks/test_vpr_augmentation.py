"""Augmentation: draws of every image and of every client, ranges."""

from dataclasses import replace

import pytest
import torch
from fedapps.tasks.vpr.options import Options
from fedapps.tasks.vpr.training_set import PerImage, augmentation_of
from hypothesis import given, settings
from hypothesis import strategies as st

OPTIONS = Options(height=8, width=12)
ALL = replace(OPTIONS, augment="jitter-crop")


def images(count=3, height=8, width=12, seed=0):
    return torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(seed))


def as_bytes(shown):
    return (shown * 255).round().to(torch.uint8)


def test_without_steps_and_with_probability_0_nothing_changes():
    for shown in (images(), as_bytes(images())):
        assert torch.equal(PerImage(())(shown), shown)
        assert torch.equal(replace(augmentation_of(ALL, "a"), probability=0.0)(shown), shown)


def test_a_crop_has_no_colour_that_the_image_lacks():
    shown = torch.zeros(50, 3, 8, 12)
    shown[..., 6:] = 1
    torch.manual_seed(0)
    crop = PerImage(augmentation_of(ALL, "a").steps[1:], probability=1.0)
    found = crop(shown)
    assert found.shape == shown.shape
    assert found.min() == 0
    assert found.max() == 1
    share = found.mean(dim=(1, 2, 3))
    assert share.std() > 0.05


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 4), st.integers(0, 999), st.booleans())
def test_images_stay_images(count, seed, whole):
    torch.manual_seed(seed)
    shown = as_bytes(images(count)) if whole else images(count)
    before = shown.clone()
    found = augmentation_of(ALL, "a")(shown)
    assert (found.shape, found.dtype) == (shown.shape, shown.dtype)
    assert torch.equal(shown, before)
    if not whole and count:
        assert found.min() >= 0
        assert found.max() <= 1 + 1e-6


@pytest.mark.parametrize("augment", ["jitter", "client-jitter", "jitter-crop"])
def test_every_image_has_draws_of_its_own_from_torchs_generator(augment):
    same = images(1).expand(8, -1, -1, -1)
    change = replace(augmentation_of(replace(OPTIONS, augment=augment), "a"), probability=1.0)
    torch.manual_seed(0)
    first = change(same)
    torch.manual_seed(0)
    again = change(same)
    assert torch.equal(first, again)
    assert not torch.equal(first, change(same))
    assert not any(torch.equal(first[0], other) for other in first[1:])


def test_half_of_the_images_change():
    torch.manual_seed(0)
    shown = images(1).expand(400, -1, -1, -1)
    changed = (augmentation_of(replace(OPTIONS, augment="jitter"), "a")(shown) != shown).flatten(1).any(dim=1)
    assert 160 < int(changed.sum()) < 240
    assert augmentation_of(OPTIONS, "a") is None


def jitter_of(augment, key, seed=0):
    """The ranges of brightness, contrast, saturation and hue."""
    (jitter,) = augmentation_of(replace(OPTIONS, augment=augment, split_seed=seed), key).steps
    return jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue


def test_each_client_has_its_own_jitter_and_keeps_it():
    assert jitter_of("jitter", "a") == jitter_of("jitter", "b") == ((0.5, 1.5),) * 3 + ((-0.1, 0.1),)
    jitters = [jitter_of("client-jitter", f"client-{i}") for i in range(50)]
    assert jitters == [jitter_of("client-jitter", f"client-{i}") for i in range(50)]
    assert len(set(jitters)) == 50
    assert jitters[0] != jitter_of("client-jitter", "client-0", seed=1)
    for ranges, middle, most in zip(zip(*jitters, strict=True), (1, 1, 1, 0), (0.5, 0.5, 0.5, 0.1), strict=True):
        strengths = [high - middle for _, high in ranges]
        assert 0 <= min(strengths) < 0.1 * most
        assert 0.9 * most < max(strengths) <= most
