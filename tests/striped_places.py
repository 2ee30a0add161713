"""Places to tell apart: stripes that differ in direction and width from spot to spot, and in colour every time."""

import csv

import numpy as np
from fedapps.tasks.vpr import backbones
from PIL import Image
from torch import nn

SPACING = 50.0  # metres from a spot to the next
SIZE = (24, 32)


class Tiny(nn.Module):
    """A classifier of two layers, of which ``body`` gives 16 channels."""

    def __init__(self, weights=None):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 5, stride=2, padding=2), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(8, 16, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1))

    def forward(self, x):
        return self.body(self.stem(x)).mean(dim=(-2, -1))


def use_tiny_network(monkeypatch):
    """Add the classifier "tiny" to those of torchvision."""
    known = backbones.classifiers()
    monkeypatch.setattr(backbones, "classifiers", lambda: {**known, "tiny": Tiny})


def stripes(rng, spot, spots):
    """A picture of a spot."""
    y, x = np.mgrid[: SIZE[0], : SIZE[1]] / SIZE[0]
    angle = np.pi * spot / spots
    phase = 2 * np.pi * (3 + 2 * (spot % 3)) * (x * np.cos(angle) + y * np.sin(angle)) + rng.uniform(0, 6)
    light = (np.sin(phase) > 0)[..., None]
    return Image.fromarray((255 * np.where(light, *rng.uniform(0, 1, (2, 3)))).astype(np.uint8))


def write_places(folder, cities=3, spots=6, seed=0):
    """A street with so many spots in each city, driven twice for queries and twice for the database."""
    rng, rows = np.random.default_rng(seed), []
    for city in range(cities):
        for role in ("query", "database"):
            for drive in range(2):
                for spot in range(spots):
                    name = f"{city}-{role}-{drive}-{spot}.png"
                    stripes(rng, spot, spots).save(folder / name)
                    at = SPACING * spot + drive
                    rows.append((name, f"{role}-{drive}", role, at, 0.0, f"city-{city}", f"land-{city % 2}", spot))
    with (folder / "places.csv").open("w", newline="") as file:
        names = ("path", "sequence", "role", "x", "y", "city", "continent", "frame")
        csv.writer(file).writerows([names, *rows])
