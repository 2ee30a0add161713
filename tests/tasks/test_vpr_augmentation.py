"""Colours and crops: single pixels by hand, Python's colour circle, torch's interpolation."""

import colorsys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import interpolate

from tasks.vpr.augmentation import (
    ColourJitter,
    RandomResizedCrop,
    Sometimes,
    change_brightness,
    change_contrast,
    change_saturation,
    crop_and_resize,
    particular_jitter,
    shift_hue,
)


def pixel(*colour):
    return torch.tensor(colour).view(1, 3, 1, 1)


def images(count=3, height=8, width=12, seed=0):
    return torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(seed))


def as_bytes(shown):
    return (shown * 255).round().to(torch.uint8)


def test_brightness_by_hand():
    found = change_brightness(pixel(0.2, 0.4, 0.6), torch.tensor([2.0]))
    torch.testing.assert_close(found, pixel(0.4, 0.8, 1.0))
    assert change_brightness(pixel(100, 50, 200).to(torch.uint8), torch.tensor([1.5])).flatten().tolist() == [
        150,
        75,
        255,
    ]


def test_saturation_by_hand():
    grey = 0.299 * 0.2 + 0.587 * 0.4 + 0.114 * 0.6
    shown = pixel(0.2, 0.4, 0.6)
    torch.testing.assert_close(change_saturation(shown, torch.tensor([0.0])), torch.full((1, 3, 1, 1), grey))
    half = pixel(*((colour + grey) / 2 for colour in (0.2, 0.4, 0.6)))
    torch.testing.assert_close(change_saturation(shown, torch.tensor([0.5])), half)


def test_contrast_by_hand():
    """Two grey pixels, 0.2 and 0.6, about their mean 0.4; each image by a factor of its own."""
    shown = torch.tensor([0.2, 0.6]).expand(2, 3, 1, 2)
    found = change_contrast(shown, torch.tensor([0.5, 2.0]))
    torch.testing.assert_close(found[0], torch.tensor([0.3, 0.5]).expand(3, 1, 2))
    torch.testing.assert_close(found[1], torch.tensor([0.0, 0.8]).expand(3, 1, 2))


@settings(deadline=None, max_examples=100)
@given(st.tuples(*[st.integers(0, 255)] * 3), st.floats(-0.5, 0.5))
def test_hue_is_that_of_python(colour, shift):
    r, g, b = (part / 255 for part in colour)
    hue, saturation, value = colorsys.rgb_to_hsv(r, g, b)
    expected = pixel(*colorsys.hsv_to_rgb((hue + shift) % 1, saturation, value))
    torch.testing.assert_close(shift_hue(pixel(r, g, b), torch.tensor([shift])), expected, atol=1e-5, rtol=0)


def test_colours_a_third_round_the_circle():
    shown = pixel(255, 0, 0).to(torch.uint8)
    assert shift_hue(shown, torch.tensor([1 / 3])).flatten().tolist() == [0, 255, 0]
    assert shift_hue(shown, torch.tensor([-1 / 3])).flatten().tolist() == [0, 0, 255]


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 999), st.booleans())
def test_crops_are_those_of_torch(height, width, seed, whole):
    torch.manual_seed(seed)
    shown = images(2, height, width, seed)
    crop = RandomResizedCrop(area=(1.0, 1.0) if whole else (0.2, 1.0))
    boxes = crop.boxes(2, height, width)
    if whole:
        boxes = torch.tensor([[0, 0, height, width]] * 2)
    found = crop_and_resize(shown, boxes)
    for image, changed, (top, left, high, wide) in zip(shown, found, boxes.tolist(), strict=True):
        assert high >= 1
        assert wide >= 1
        assert 0 <= top <= height - high
        assert 0 <= left <= width - wide
        part = image[None, :, top : top + high, left : left + wide]
        expected = interpolate(part, (height, width), mode="bilinear", align_corners=False)[0]
        torch.testing.assert_close(changed, expected, atol=1e-5, rtol=1e-5)
    if whole:
        torch.testing.assert_close(found, shown, atol=1e-5, rtol=1e-5)


def test_rectangles_have_the_areas_and_shapes_asked_for():
    torch.manual_seed(0)
    _, _, high, wide = RandomResizedCrop(area=(0.3, 0.6)).boxes(500, 200, 300).double().unbind(dim=1)
    part, shape = high * wide / 60_000, wide / high
    assert 0.29 < part.min() < 0.35
    assert 0.55 < part.max() < 0.61
    assert 0.74 < shape.min() < 0.8
    assert 1.25 < shape.max() < 1.35


def test_a_rectangle_that_never_fits_is_the_whole_image():
    torch.manual_seed(0)
    assert RandomResizedCrop(area=(1.0, 1.0), aspect=(5.0, 5.0)).boxes(2, 4, 4).tolist() == [[0, 0, 4, 4]] * 2


def test_no_strength_changes_nothing():
    none = ColourJitter(0, 0, 0, 0)
    for shown in (images(), as_bytes(images())):
        assert torch.equal(none(shown), shown)
        assert torch.equal(Sometimes([ColourJitter()], probability=0)(shown), shown)
        assert torch.equal(Sometimes()(shown), shown)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 4), st.integers(0, 999), st.booleans())
def test_images_stay_images(count, seed, whole):
    torch.manual_seed(seed)
    shown = as_bytes(images(count)) if whole else images(count)
    before = shown.clone()
    found = Sometimes([ColourJitter(1, 1, 1, 0.5), RandomResizedCrop()])(shown)
    assert (found.shape, found.dtype) == (shown.shape, shown.dtype)
    assert torch.equal(shown, before)
    if not whole and count:
        assert found.min() >= 0
        assert found.max() <= 1 + 1e-6


def test_every_image_has_draws_of_its_own_from_torchs_generator():
    same = images(1).expand(4, -1, -1, -1)
    for augment in (ColourJitter(), RandomResizedCrop()):
        torch.manual_seed(0)
        first = augment(same)
        torch.manual_seed(0)
        again = augment(same)
        assert torch.equal(first, again)
        assert not torch.equal(first, augment(same))
        assert not any(torch.equal(first[0], other) for other in first[1:])


def test_half_of_the_images_change():
    torch.manual_seed(0)
    shown = images(1).expand(400, -1, -1, -1)
    changed = (Sometimes([ColourJitter()])(shown) != shown).flatten(1).any(dim=1)
    assert 160 < int(changed.sum()) < 240


def test_each_client_has_its_own_jitter_and_keeps_it():
    strongest = ColourJitter(0.8, 0.6, 0.4, 0.2)
    jitters = [particular_jitter(strongest, 0, f"client-{i}") for i in range(50)]
    assert jitters == [particular_jitter(strongest, 0, f"client-{i}") for i in range(50)]
    assert len(set(jitters)) == 50
    assert jitters[0] != particular_jitter(strongest, 1, "client-0")
    for name in ("brightness", "contrast", "saturation", "hue"):
        strengths = [getattr(jitter, name) for jitter in jitters]
        top = getattr(strongest, name)
        assert 0 <= min(strengths) < 0.2 * top
        assert 0.8 * top < max(strengths) <= top


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ColourJitter(brightness=-0.1), "brightness = -0.1: must be at least 0"),
        (lambda: ColourJitter(hue=0.6), "hue = 0.6: must be from 0 to 0.5"),
        (lambda: RandomResizedCrop(area=(0.0, 1.0)), r"area = \(0.0, 1.0\): must be 0 < low <= high <= 1"),
        (lambda: RandomResizedCrop(aspect=(2.0, 1.0)), r"aspect = \(2.0, 1.0\): must be 0 < low <= high"),
    ],
)
def test_strengths_out_of_range(make, message):
    with pytest.raises(ValueError, match=message):
        make()
