"""Augmentation: changes of one colour by hand, draws of every image, ranges."""

import colorsys
from dataclasses import astuple, replace

import pytest
import torch
from fedapps.tasks.vpr.options import Options
from fedapps.tasks.vpr.training_set import ColourJitter, PerImage, augmentation_of, particular_jitter
from hypothesis import given, settings
from hypothesis import strategies as st

OPTIONS = Options(height=8, width=12)
ALL = replace(OPTIONS, augment="jitter-crop")


def images(count=3, height=8, width=12, seed=0):
    return torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(seed))


def as_bytes(shown):
    return (shown * 255).round().to(torch.uint8)


def always(jitter):
    return PerImage(jitter.transforms(), probability=1.0)


def many(*colour):
    """Two hundred images of one pixel."""
    return torch.tensor(colour).view(1, 3, 1, 1).expand(200, -1, -1, -1)


def test_brightness_by_hand():
    """Factors from 0.5 to 1.5, cut off at white."""
    torch.manual_seed(0)
    found = always(ColourJitter(0.5, 0, 0, 0))(many(0.2, 0.4, 0.8))[:, :, 0, 0]
    factors = found[:, 0] / 0.2
    assert 0.5 <= factors.min() < 0.55
    assert 1.45 < factors.max() <= 1.5
    torch.testing.assert_close(found[:, 1], 0.4 * factors)
    torch.testing.assert_close(found[:, 2], (0.8 * factors).clamp(max=1))


def test_contrast_by_hand():
    """Two grey pixels, 0.2 and 0.6, about their mean 0.4."""
    torch.manual_seed(0)
    found = always(ColourJitter(0, 0.5, 0, 0))(torch.tensor([0.2, 0.6]).expand(200, 3, 1, 2))
    torch.testing.assert_close(found.mean(dim=-1), torch.full((200, 3, 1), 0.4), atol=1e-3, rtol=0)
    factors = (found[:, 0, 0, 1] - found[:, 0, 0, 0]) / 0.4
    assert 0.5 <= factors.min() < 0.55
    assert 1.45 < factors.max() <= 1.51


def test_saturation_by_hand():
    """Colours on the line between the grey of the pixel (ITU-R 601) and the pixel."""
    torch.manual_seed(0)
    grey = 0.299 * 0.2 + 0.587 * 0.4 + 0.114 * 0.6
    found = always(ColourJitter(0, 0, 0.5, 0))(many(0.2, 0.4, 0.6))[:, :, 0, 0]
    factors = (found[:, 2] - grey) / (0.6 - grey)
    for channel, colour in enumerate((0.2, 0.4, 0.6)):
        torch.testing.assert_close(found[:, channel], grey + factors * (colour - grey), atol=1e-3, rtol=0)
    assert factors.std() > 0.2


def test_hue_is_that_of_python():
    torch.manual_seed(0)
    found = always(ColourJitter(0, 0, 0, 0.2))(many(0.9, 0.3, 0.5))[:, :, 0, 0].tolist()
    before = colorsys.rgb_to_hsv(0.9, 0.3, 0.5)
    shifts = []
    for pixel in found:
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
        assert (saturation, value) == pytest.approx(before[1:], abs=1e-3)
        shifts.append((hue - before[0] + 0.5) % 1 - 0.5)
    assert -0.201 < min(shifts) < -0.18
    assert 0.18 < max(shifts) < 0.201


def test_no_strength_changes_nothing():
    for shown in (images(), as_bytes(images())):
        assert torch.equal(always(ColourJitter(0, 0, 0, 0))(shown), shown)
        assert torch.equal(PerImage(ColourJitter().transforms(), probability=0)(shown), shown)
        assert torch.equal(PerImage(())(shown), shown)


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


def test_each_client_has_its_own_jitter_and_keeps_it():
    strongest = ColourJitter(0.8, 0.6, 0.4, 0.2)
    jitters = [particular_jitter(strongest, 0, f"client-{i}") for i in range(50)]
    assert jitters == [particular_jitter(strongest, 0, f"client-{i}") for i in range(50)]
    assert len(set(jitters)) == 50
    assert jitters[0] != particular_jitter(strongest, 1, "client-0")
    for strengths, top in zip(zip(*map(astuple, jitters), strict=True), astuple(strongest), strict=True):
        assert 0 <= min(strengths) < 0.1 * top
        assert 0.9 * top < max(strengths) <= top
