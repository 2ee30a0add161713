"""What a GPU gives, and whether everything that runs on a CPU runs on it: a script of minutes, without a network.

Every task trains a round on both devices, from the same start and with the same draws; tasks whose networks draw on
the device itself must only end with finite numbers. Where there is no GPU, the script says so and ends with status 0.

    python -m benchmarks.gpu --json rows.json
"""

import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from importlib.util import find_spec
from io import StringIO
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import fedapps
from fedapps.runs.run_folder import RunFolder

from .commands import append, new_parser
from .rogue import random_encoder

Row = dict[str, Any]
#: The largest difference of a parameter between the devices after a round. The first steps of Adam are as long as its
#: learning rate, whatever the size of a gradient: where this is nearly 0, rounding decides on the direction.
TOLERANCE = 5e-3
#: The same after twenty rounds.
LATER_TOLERANCE = 5e-2
_SOCIAL = {"rounds": 4, "evaluate-every": 1, "plateau-patience": 0, "social.source": "simulated"}
_DRIVING = {"epochs": 1, "collect-after": 0, "driving.sessions-train": 4, "driving.sessions-test": 2}
_STREETS = {"num-nodes": 4, "fraction-train": 0.5, "vpr.height": 32, "vpr.width": 64, "vpr.test-queries": 20}
_HOUSES = {"task": "vln", "collect-after": 0, "num-nodes": 3, "epochs": 1, "vln.source": "simulated"}
#: A recipe and keys for each task, and whether its network draws on the device.
TASKS: Mapping[str, tuple[str, Mapping[str, Any], bool]] = {
    "lqr": ("lqr", {}, False),
    "images": ("images-digits", {}, False),
    "text": ("quickstart", {"text.dropout": 0.0}, False),
    "social": ("social-methods", _SOCIAL, False),
    "driving": ("lane-swap", _DRIVING, True),
    "vpr": ("fedvpr-streets", _STREETS, False),
    "vln": ("", _HOUSES, True),
}
_CIFAR = {"num-nodes": 2, "epochs": 2}
_TEXTS = {"num-nodes": 2, "fraction-train": 1.0, "text.source": "simulated", "text.train-examples": 64}
#: The sizes of all-MiniLM-L6-v2.
_MINILM = {
    "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536,
    "vocab_size": 30522,
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all checks and print a line for each; returns the number of those that failed."""
    parser = new_parser("gpu", __doc__)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu tries the checks without a GPU")
    parser.add_argument("--minutes", type=float, default=4.0, help="after which no check begins (default 4)")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("SKIPPED: torch finds no GPU on this machine; --device cpu runs the checks without one")
        return 0
    until, failed = time.monotonic() + 60 * options.minutes, 0
    for name, check in _checks(options.device):
        begun = time.monotonic()
        if begun > until:
            row: Row = {"check": name, "outcome": "not begun: the time is over"}
        else:
            try:
                with TemporaryDirectory(prefix="fedapps-gpu-") as folder:
                    row = {"check": name, "outcome": "ok"} | check(Path(folder))
            except Exception as error:  # the other checks go on, and the exit status counts this one
                traceback.print_exc()
                row = {"check": name, "outcome": f"failed: {error}"}
        failed += row["outcome"].startswith("failed")
        row |= {"device": _name(options.device), "seconds": round(time.monotonic() - begun, 2)}
        print(json.dumps(row), flush=True)
        append([row], options.json)
    return failed


def _name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "CPU"


def _checks(device: str) -> Iterator[tuple[str, Callable[[Path], Row]]]:
    for task in TASKS:
        yield f"{task} as on the CPU", partial(_agrees, device, *TASKS[task])
    yield "images of 32x32 as on the CPU", partial(_small_images, device)
    for name, adapter in (("MiniLM", ""), ("LoRA in MiniLM", "lora")):
        yield f"{name} as on the CPU", partial(_encoder, device, adapter)
    yield "continued on the CPU, with private models", partial(_gone_on_with, device)
    yield "resumed on the CPU", partial(_resumed, device)
    yield "load and export", partial(_used, device)
    yield "nodes share the device in Ray", partial(_in_ray, device)
    yield "compare on the device", partial(_compared, device)


def _run(folder: Path, name: str, device: str, recipe: str, keys: Mapping[str, Any], engine: str = "inline") -> Path:
    settings = {"methods": "fedavg", "rounds": 1, **keys, "name": name, "device": device}
    with redirect_stdout(StringIO()):
        fedapps.run(recipe or None, settings, engine=engine, output_dir=folder)
    return folder / name


def _arrays(run: Path, method: str = "fedavg") -> Mapping[str, np.ndarray]:
    checkpoint = RunFolder(run, "").checkpoints(method).latest()
    assert checkpoint is not None
    return checkpoint.arrays


def _difference(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> float:
    return max(float(np.abs(a[name].astype(np.float64) - b[name]).max()) for name in a if a[name].size)


def _small_images(device: str, folder: Path) -> Row:
    """The network and the batches of ``images-cifar10``, on 4,000 images of noise."""
    draws = np.random.default_rng(0)
    images, labels = draws.integers(0, 256, (4000, 32, 32, 3), dtype=np.uint8), draws.integers(0, 10, 4000)
    np.savez(folder / "noise.npz", x_train=images, y_train=labels, x_test=images[:100], y_test=labels[:100])
    return _agrees(device, "images-cifar10", {**_CIFAR, "data-dir": str(folder)}, False, folder)


def _encoder(device: str, adapter: str, folder: Path) -> Row:
    """A transformer of the size of MiniLM with random weights, in bfloat16 where the device has it, on short texts."""
    model = random_encoder(folder / "encoder", _MINILM)
    keys = {**_TEXTS, "text.model": model, "text.adapter": adapter}
    return _agrees(device, "fedvocab-minilm-agnews", keys, True, folder)


def _agrees(device: str, recipe: str, keys: Mapping[str, Any], draws: bool, folder: Path) -> Row:
    """A round on the device beside one on the CPU: the parameters, the seconds and the peak of the GPU's memory."""
    runs: dict[str, Path] = {}
    seconds: dict[str, float] = {}
    for name, where in (("warm", device), ("device", device), ("cpu", "cpu")):
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        begun = time.perf_counter()
        runs[name] = _run(folder, name, where, recipe, keys)
        seconds[name] = round(time.perf_counter() - begun, 3)
        if name == "device" and device == "cuda":
            megabytes = torch.cuda.max_memory_allocated() / 1e6
    gap = _difference(_arrays(runs["device"]), _arrays(runs["cpu"]))
    if not isfinite(gap) or (not draws and gap > TOLERANCE):
        raise ValueError(f"a parameter differs by {gap:.3g}; at most {TOLERANCE} is accepted")
    row: Row = {"difference": gap, "run_seconds": seconds["device"], "cpu_run_seconds": seconds["cpu"]}
    return row | ({"megabytes": round(megabytes, 1)} if device == "cuda" else {})


def _gone_on_with(device: str, folder: Path) -> Row:
    """Private models of nodes pass between devices: a run on the CPU goes on from one on the device, or on the CPU."""
    keys = {"methods": "apfl-deng"}
    ends: list[Any] = []
    for where in (device, "cpu"):
        first = _run(folder, f"first-{where}-{len(ends)}", where, "images-digits", keys)
        ends.append(_run(folder, f"second-{len(ends)}", "cpu", "images-digits", {**keys, "start": str(first)}))
    gap = _difference(_arrays(ends[0], "apfl-deng"), _arrays(ends[1], "apfl-deng"))
    if not gap <= TOLERANCE:
        raise ValueError(f"a parameter differs by {gap:.3g} from that of two rounds on the CPU")
    return {"difference": gap}


def _resumed(device: str, folder: Path) -> Row:
    """A run that is stopped in its first rounds on the device is resumed on the CPU, beside one on the CPU."""
    keys = {"methods": "apfl-deng", "rounds": 20, "evaluate-every": 1}
    settings = {**keys, "name": "stopped", "device": device}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "fedapps", "run", "images-digits", *words, "--engine", "inline"]
    metrics = folder / "stopped" / "metrics.jsonl"
    with subprocess.Popen(
        [*command, "--output-dir", str(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    ) as run:
        while run.poll() is None and not (metrics.exists() and metrics.read_bytes().count(b"\n")):
            time.sleep(0.005)
        run.terminate()
    done = len(RunFolder(folder / "stopped", "").lines("metrics.jsonl"))
    stopped = _run(folder, "stopped", "cpu", "images-digits", {**keys, "resume": True})
    gap = _difference(
        _arrays(stopped, "apfl-deng"), _arrays(_run(folder, "whole", "cpu", "images-digits", keys), "apfl-deng")
    )
    if not gap <= LATER_TOLERANCE or done == 20:
        raise ValueError(
            f"a parameter differs by {gap:.3g} after {done} rounds on the device and the others on the CPU"
        )
    return {"difference": gap, "rounds": done}


def _used(device: str, folder: Path) -> Row:
    """A model that was trained on the device answers on both, and is exported."""
    run = _run(folder, "used", device, "images-digits", {})
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8), dtype=np.uint8)
    models: list[Any] = [fedapps.load(run, device=where) for where in (device, "cpu")]
    answers = [model.predict(images) for model in models]
    gap = float(np.abs(answers[0].probabilities - answers[1].probabilities).max())
    if not gap <= TOLERANCE:
        raise ValueError(f"a probability differs by {gap:.3g}")
    fedapps.export(fedapps.load(run, device=device), "safetensors", folder / "export")
    return {"difference": gap}


def _in_ray(device: str, folder: Path) -> Row:
    if find_spec("ray") is None:
        return {"outcome": "skipped: Ray is not installed"}
    _run(folder, "ray", device, "images-digits", {"num-nodes": 4}, engine="ray")
    return {}


def _compared(device: str, folder: Path) -> Row:
    """Two methods with one seed, as many processes as ``jobs = 0`` takes."""
    with redirect_stdout(StringIO()):
        fedapps.compare("images-digits", {"device": device, "rounds": 1}, methods="local,fedavg", seeds=1,
                        output_dir=folder)  # fmt: skip
    return {"processes": torch.cuda.device_count() if device == "cuda" else "one per core"}


if __name__ == "__main__":
    sys.exit(main())
