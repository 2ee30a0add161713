"""Reads the Nordland traverse: a railway line in summer and in winter, in small grey images.

N. Sünderhauf, P. Neubert, P. Protzel. Are We There Yet? Challenging SeqSLAM on a 3000 km Journey Across All Four
Seasons. ICRA Workshop on Long-Term Autonomy, 2013. Footage by NRK, aligned frame by frame.
"""

from pathlib import Path

import numpy as np

from fedapps.base.errors import DataError
from fedapps.base.text_files import arrays_in

from .images import ImageArray, ImageStore
from .places import Places, Track, build_places

FILE = "nordland_64x32.npz"
LINE_LENGTH = 729_000.0  # metres from Trondheim to Bodø

#: 203.9 m, for 3,576 frames taken 10 s apart at the train's mean speed of 73 km/h.
METRES_PER_FRAME = LINE_LENGTH / 3575


def read_nordland(
    path: Path,
    *,
    stretches: int = 30,
    regions: int = 5,
    sequence_length: int = 10,
    metres_per_frame: float = METRES_PER_FRAME,
) -> Places:
    """Read summer as the database and winter as the queries.

    The file has ``summer`` and ``winter``, uint8 or uint16 ``[n, H, W]``, in which frame i shows the same place, and
    ``usable``, bool ``[n]``. Frames that are not usable (dark, or the train stands) are left out. Frame i lies ``i *
    metres_per_frame`` east of the start. With the default a query has exactly one image within 25 m, its own frame in
    summer; at 8 m per frame its neighbours, 10 s before and after, are positives too.

    Parameters
    ----------
    path : Path
        The ``.npz`` file, or the folder of ``nordland_64x32.npz``.
    stretches : int
        The number of stretches of equal length. They are the groups.
    regions : int
        The number of regions of equally many stretches. They take the place of cities.
    sequence_length : int
        The number of successive frames of a sequence, including those left out.
    metres_per_frame : float
        The distance between frames.

    Raises
    ------
    DataError
        The file is missing, lacks an array or has arrays of wrong shapes, or the numbers do not divide it.
    """
    file = path / FILE if path.is_dir() else path
    summer, winter, usable = _arrays(file)
    if not 1 <= regions <= stretches <= len(usable) or sequence_length < 1:
        raise DataError(
            f"{file}: {stretches} stretches in {regions} regions, in sequences of {sequence_length}; expected "
            f"1 <= regions <= stretches <= {len(usable)} frames and sequences of at least 1 frame"
        )
    frames = np.flatnonzero(usable)
    of_stretch = frames * stretches // len(usable)
    first = -(-of_stretch * len(usable) // stretches)  # the first frame of the stretch
    block = (frames - first) // sequence_length
    tracks = [
        _track(stretch, number, stretch * regions // stretches, query)
        for query in (False, True)
        for stretch, number in zip(of_stretch.tolist(), block.tolist(), strict=True)
    ]
    line = np.stack([frames * metres_per_frame, np.zeros(len(frames))], axis=1)
    return build_places(
        ImageStore(ImageArray(np.concatenate([summer[frames], winter[frames]]))),
        tracks,
        np.concatenate([line, line]),
        np.concatenate([frames, frames]),
    )


def _track(stretch: int, number: int, region: int, query: bool) -> Track:
    return Track(f"region-{region}", f"{stretch:03d}-{number:03d}", query, "europe", f"stretch-{stretch:03d}")


def _grey(pixels: np.ndarray) -> bool:
    return pixels.dtype in (np.uint8, np.uint16)


def _arrays(file: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    names = ("summer", "winter", "usable")
    arrays = dict(arrays_in(file, names))
    if missing := [name for name in names if name not in arrays]:
        raise DataError(f"{file}: no array {', '.join(missing)}; found {', '.join(arrays) or 'none'}")
    summer, winter, usable = (arrays[name] for name in names)
    if summer.ndim != 3 or winter.shape != summer.shape or usable.shape != summer.shape[:1]:
        raise DataError(
            f"{file}: summer {summer.shape}, winter {winter.shape}, usable {usable.shape}; expected (n, H, W) twice "
            "and (n,)"
        )
    if not (_grey(summer) and _grey(winter)):
        raise DataError(f"{file}: summer {summer.dtype}, winter {winter.dtype}; expected grey values, uint8 or uint16")
    if not np.isin(usable, (0, 1)).all():
        raise DataError(f"{file}: usable has other values than true and false, or 1 and 0")
    return summer, winter, usable.astype(bool)
