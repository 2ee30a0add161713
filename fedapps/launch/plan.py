"""The plans of comparisons and tunings, and the names and folders of all jobs: runs, comparisons, tunings, audits."""

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedapps.app.node import choose_device
from fedapps.base.atomic import write_whole
from fedapps.base.options import split_names
from fedapps.config.keys import all_keys
from fedapps.config.parsing import Config
from fedapps.config.recipe_files import Value, recipe_comparison
from fedapps.config.run_config import check_name
from fedapps.runs.owner import owned

#: Keys that a job sets for each run.
_OWN_KEYS = ("methods", "seed", "name", "output-dir", "resume")
_FILE = "plan.json"


@dataclass(frozen=True)
class JobPlan:
    """What a job runs: methods with seeds. The plan is saved in the folder of the job, so that it can be resumed.

    Parameters
    ----------
    recipe : str
        Name of the recipe, without folder and suffix: ``NAME`` or ``NAME:STAGE``.
    config : mapping
        The flat run config of the recipe with all overrides; its paths are absolute.
    methods : tuple of str
        Labels of the methods.
    seeds : tuple of int
    engine : "inline" or "ray"
    seed_keys : tuple of str
        Keys that take the value of the seed in each run, such as the seed of a partition. Without them, all seeds share
        what these keys draw, and results hold for this one draw only.
    """

    #: The command of the job, and what it is.
    command: ClassVar[str]
    kind: ClassVar[str]
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    recipe: str
    config: Mapping[str, Value]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    engine: str
    seed_keys: tuple[str, ...] = field(default=(), kw_only=True)

    def at_seed(self, seed: int) -> dict[str, int]:
        """The keys that differ between seeds."""
        return dict.fromkeys(("seed", *self.seed_keys), seed)

    def parallel(self, jobs: int) -> int:
        """The number of runs at a time: ``jobs``, but one under Ray, which runs the nodes of one run in parallel.

        Where runs train on GPUs, 0 becomes the number of these: further processes on a GPU take its memory.
        """
        if self.engine == "ray":
            return 1
        on_gpus = not jobs and choose_device(str(self.config.get("device", "auto"))).type == "cuda"
        return torch.cuda.device_count() if on_gpus else jobs

    def check_seed_keys(self, config: Config) -> None:
        """Raise ``ValueError`` if the runs do not read one of ``seed_keys``, or it cannot be a seed."""
        for key in self.seed_keys:
            declared = all_keys([key]).get(key)
            if declared is not None and type(declared.default) is not int:
                raise ValueError(f"--seed-keys {key}: must be a key of whole numbers, such as the seed of a partition")
            check_key("--seed-keys", key, config)

    @contextmanager
    def new_folder(self, name: str) -> Iterator[tuple[Self, Path]]:
        """Create and own the folder of a new job with the saved plan, which knows its name; see :func:`new_folder`.

        Parameters
        ----------
        name : str
            What the user calls the job; that of the plan's config if empty.
        """
        advice = f"resume it with fedapps {self.command} --resume {{folder}}, or choose another name"
        parent, otherwise = str(self.config["output-dir"]), str(self.config["name"])
        with new_folder(parent, name, otherwise, advice) as folder, owned(folder):
            plan = replace(self, config={**self.config, "name": folder.name})
            plan.save(folder)
            yield plan, folder

    def save(self, folder: Path) -> None:
        """Write ``plan.json``."""
        write_whole(folder / _FILE, (json.dumps(asdict(self), indent=2) + "\n").encode())

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the plan in the folder of a job. Raises ``ValueError`` if there is no valid plan of this kind."""
        path = folder / _FILE
        if not path.is_file():
            raise ValueError(f"--resume {folder}: not the folder of a {cls.kind} (it has no {_FILE})")
        try:
            return TypeAdapter(cls).validate_json(path.read_bytes())
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            where = ".".join(map(str, problem["loc"])) or "the content"
            raise ValueError(
                f"--resume {folder}: {_FILE} is damaged or not the plan of a {cls.kind} ({where}: {problem['msg']}); "
                f"start a new {cls.kind}"
            ) from error


def following(recipe: Path, given: Sequence[str], overrides: Collection[str]) -> tuple[str, ...]:
    """The keys that take the value of the seed: ``given``, otherwise those of the recipe that no override sets.

    Raises
    ------
    ValueError
        An override sets the seed, which is different in each run, or one of ``given``.
    """
    if both := [key for key in ("seed", *given) if key in overrides]:
        advice = "use --seeds and --first-seed" if both[0] == "seed" else "leave it out, or out of --seed-keys"
        raise ValueError(f"--set {both[0]}: each run gets its own value; {advice}")
    return tuple(given) or tuple(
        key for key in split_names(recipe_comparison(recipe, "seed-keys")) if key not in overrides
    )


def check_key(option: str, key: str, config: Config) -> None:
    """Raise ``ValueError`` if ``key`` is not read by the run, or set for each run."""
    if key in _OWN_KEYS:
        raise ValueError(f"{option} {key}: this command sets the key; use --methods and --seeds")
    if key not in config.flat():
        readers = [config.run.task, *dict.fromkeys(type(method).name for method in config.methods.values())]
        raise ValueError(f"{option} {key}: no run uses the key; name one of the run or of {', '.join(readers)}")


@contextmanager
def new_folder(
    parent: str | Path, name: str, otherwise: str = "", advice: str = "choose another name"
) -> Iterator[Path]:
    """Create the folder of a job in one step. Two jobs never get the same folder, even in the same second.

    Parameters
    ----------
    parent : str or Path
        Its folder, which is created if it is missing.
    name : str
        What the user calls it; may be empty.
    otherwise : str
        Its name if ``name`` is empty. If that is taken, a number is added: ``-2``, ``-3`` and so on.
    advice : str
        What to do if the folder ``name`` exists; ``{folder}`` stands for its path.

    Yields
    ------
    Path
        The folder. It is removed if what happens in this context fails and leaves it empty.

    Raises
    ------
    ValueError
        The folder ``name`` exists or cannot have this name, or a folder cannot be created.
    """
    check_name(name)
    taken = 0
    while True:
        folder = Path(parent) / (name or (f"{otherwise}-{taken + 1}" if taken else otherwise))
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            if name or not folder.exists():  # what exists otherwise is a file on the way to it
                raise ValueError(f"{folder} exists: {advice.format(folder=folder)}") from None
            taken += 1
        except OSError as error:
            raise ValueError(f"output-dir: {folder} cannot be written ({error}): choose another folder") from error
    try:
        yield folder
    except BaseException:
        with suppress(OSError):
            for path in missing:
                path.rmdir()
        raise


def timed_name(kind: str) -> str:
    """The name of a job that was given none: what it is, and the time in seconds."""
    return f"{kind.replace(':', '-')}-{time.strftime('%Y%m%d-%H%M%S')}"
