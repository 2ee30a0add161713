"""The import of a robot's logs as images of the task images."""

from functools import partial
from pathlib import Path

import numpy as np
from fedapps.tasks.images.logs import ImagesImport
from PIL import Image
from robot_logs import Messages, Recorded, import_one, write_bag, write_lerobot

MAPPING = """[settings]
gap = 2.0
every = 1.0
[signals.image]
topic = "/camera"
image = { column = "." }
[signals.label]
topic = "/label"
label = { column = "data" }
"""


imported = partial(import_one, ImagesImport, MAPPING)


def shades(output: Path) -> dict[str, list[int]]:
    """The grey values of the images of each class, in the order of their names."""
    files = sorted((output / "train").glob("*/*"))
    names = {file.parent.name for file in files}
    return {
        name: [int(np.asarray(Image.open(f).convert("RGB"))[0, 0, 0]) for f in files if f.parent.name == name]
        for name in names
    }


def test_an_image_has_the_last_label_before_it_for_a_limited_time(tmp_path: Path) -> None:
    ros = Messages()
    messages: list[Recorded] = [("/label", 1.0, ros.word("cup")), ("/label", 2.75, ros.word("bin/red"))]
    for tick in range(12):
        pixels = np.full((4, 4, 3), 10 * tick, np.uint8)
        messages.append(("/camera", tick * 0.5 + 0.25, ros.image(0.0, pixels)))
    log = write_bag(tmp_path / "a.mcap", sorted(messages, key=lambda m: m[1]))
    assert "4 of 12 images, classes bin/red, cup; 4 without a label" in imported(tmp_path, log)
    # 1.25, 2.25 | 3.25, 4.25; none before 1 s, and none 2 s after the last label
    assert shades(tmp_path / "out") == {"cup": [20, 40], "bin%2Fred": [60, 80]}


def test_frames_of_a_lerobot_data_set(tmp_path: Path) -> None:
    grey = np.array([0, 50, 100, 150, 200, 250], np.uint8)
    images = np.broadcast_to(grey[:, None, None, None], (6, 32, 32, 3)).astype(np.uint8)
    episodes = [
        {"state": np.zeros((3, 1)), "action": np.full((3, 1), number), "images": images[3 * number : 3 * number + 3]}
        for number in range(2)
    ]
    log = write_lerobot(tmp_path / "data", episodes, fps=1)
    mapping = MAPPING.replace('"."', '"observation.image"').replace('"data"', '"action[0]"')
    mapping = mapping.replace("/camera", "frames").replace("/label", "frames").replace("every = 1.0", "every = 2.0")
    assert "4 of 6 images, classes 0.0, 1.0" in imported(tmp_path, log, mapping)
    assert shades(tmp_path / "out") == {"0.0": [0, 100], "1.0": [150, 250]}


def test_an_empty_label_is_none(tmp_path: Path) -> None:
    ros = Messages()
    messages: list[Recorded] = [("/label", 1.0, ros.word("cup")), ("/label", 2.0, ros.word(" "))]
    for tick in range(4):
        messages.append(("/camera", tick + 0.5, ros.image(0.0, np.full((4, 4, 3), tick, np.uint8))))
    log = write_bag(tmp_path / "a.mcap", sorted(messages, key=lambda m: m[1]))
    assert "1 of 4 images, classes cup; 3 without a label" in imported(tmp_path, log)
