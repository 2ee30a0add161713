"""Damage to small valid files, as by a copy that broke off or by malice, and bounds on the cost of reading them."""

import gzip
import io
import json
import lzma
import os
import re
import resource
import signal
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

Files = Mapping[str, bytes]
#: What takes the place of a number or a text in a file.
TOKENS = [
    b"", b"0", b"-1", b"1.5", b"nan", b"NaN", b"inf", b"-Infinity", b"1e400", b"1e-400", b"1e39", b"9" * 30,
    b"9" * 5000, b"0x10", b"null", b"true", b'""', b'"x"', b"[]", b"{}", b"[[[]]]", b"\xff", b"\0", b"\xc2\x85",
    b"../../x", b"a" * 300, b"\xef\xbb\xbf", b"1;2", b"'",
]  # fmt: skip
#: What takes the place of a value in JSON.
VALUES: list[Any] = [
    None, True, False, 0, -1, 2, 1.5, 2**53, 2**63, 10**400, 1e308, float("nan"), float("inf"), "", "x", "1", "a" * 300,
    [], [[]], [None], [0] * 40, {}, {"a": {}}, {"id": 1}, ["x"], [[0, 0]],
]  # fmt: skip
#: Whole files that take the place of another.
WHOLES = [
    b"", b"\n\n", b"\xef\xbb\xbf", b"\xff\xfe", b"\xff\xfe\0\xd8", b"\0" * 9, b"{}", b"[]", b"null", b"[[1,2],[3]]",
    b"[" * 20_000, b'{"a":' * 20_000, b"a = " + b"[" * 20_000, b"a" + b".a" * 2_000 + b" = 1", b"a" * 200_000,
    b'"' + b"a" * 200_000, b"\x1f\x8b", b"PK", b"PK\5\6" + b"\0" * 18,
]  # fmt: skip
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_TEXT = re.compile(rb"[A-Za-z][\w-]*")
_MOST = 512 << 20  # bytes that reading a file of a few kB may take
_LONGEST = 20.0  # seconds of processor time


def damaged(files: Files, draw: Any) -> dict[str, bytes]:
    """Files of which some are damaged once or several times; ``draw`` draws from a strategy."""
    changed = dict(files)
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(sorted(changed)))
        changed[name] = _packed(name, changed[name], draw)
    if len(changed) > 1 and draw(st.integers(0, 19)) == 0:
        changed.pop(draw(st.sampled_from(sorted(changed))))
    return changed


def _packed(name: str, content: bytes, draw: Any) -> bytes:
    """Damage to a file, or, of a compressed file, to what is in it."""
    packers = {".gz": (gzip.decompress, partial(gzip.compress, mtime=0)), ".xz": (lzma.decompress, lzma.compress)}
    unpack, pack = packers.get(Path(name).suffix, (None, None))
    if unpack is None or pack is None or draw(st.booleans()):
        return _one(content, draw)
    try:
        return pack(_one(unpack(content), draw))
    except (OSError, EOFError, lzma.LZMAError, zlib.error):  # it is damaged already
        return _one(content, draw)


def _one(content: bytes, draw: Any) -> bytes:
    kinds = [_flip, _cut, _repeat, _insert, _line, _whole, _encoded]
    if b"\0" not in content:
        kinds += [_token, _token, _token]
        if content.lstrip()[:1] in (b"{", b"["):
            kinds += [changed_json, changed_json, changed_json, changed_json]
    if content.startswith(b"\x89PNG"):
        kinds += [_png, _png]
    if content.startswith(b"PK\3\4"):
        kinds += [_zip, _zip, _zip]
    return draw(st.sampled_from(kinds))(content, draw)


def _place(content: bytes, draw: Any) -> int:
    return draw(st.integers(0, max(len(content) - 1, 0)))


def _flip(content: bytes, draw: Any) -> bytes:
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        if changed:
            changed[_place(content, draw)] = draw(st.sampled_from((0, 1, 0x7F, 0x80, 0xFF)) | st.integers(0, 255))
    return bytes(changed)


def _cut(content: bytes, draw: Any) -> bytes:
    start = _place(content, draw)
    return content[:start] if draw(st.booleans()) else content[:start] + content[start + draw(st.integers(1, 40)) :]


def _repeat(content: bytes, draw: Any) -> bytes:
    start = _place(content, draw)
    piece = content[start : start + draw(st.integers(1, 200))]
    return content[:start] + piece * draw(st.sampled_from((2, 3, 50))) + content[start + len(piece) :]


def _insert(content: bytes, draw: Any) -> bytes:
    start = _place(content, draw)
    return content[:start] + draw(st.sampled_from(TOKENS) | st.binary(max_size=8)) + content[start:]


def _line(content: bytes, draw: Any) -> bytes:
    lines = content.split(b"\n")
    one, other = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
    kind = draw(st.sampled_from(("drop", "repeat", "swap", "blank", "join")))
    if kind == "swap":
        lines[one], lines[other] = lines[other], lines[one]
    else:
        with_line = {"drop": [], "repeat": [lines[one]] * 2, "blank": [b""], "join": [lines[one] + lines[other]]}
        lines[one : one + 1] = with_line[kind]
    return b"\n".join(lines)


def _token(content: bytes, draw: Any) -> bytes:
    found = list(draw(st.sampled_from((_NUMBER, _TEXT))).finditer(content))
    if not found:
        return _insert(content, draw)
    token = draw(st.sampled_from(found))
    return content[: token.start()] + draw(st.sampled_from(TOKENS)) + content[token.end() :]


def _whole(content: bytes, draw: Any) -> bytes:
    return draw(st.sampled_from(WHOLES))


def _encoded(content: bytes, draw: Any) -> bytes:
    text = content.decode("utf-8", errors="replace")
    return text.encode(
        draw(st.sampled_from(("utf-8-sig", "utf-16", "utf-16-le", "utf-32", "cp1252"))), errors="replace"
    )


def changed_json(content: bytes, draw: Any) -> bytes:
    """Another value, name or number of members somewhere in JSON, or in a line of it."""
    lines = content.split(b"\n")
    number = draw(st.integers(0, len(lines) - 1))
    try:
        value = json.loads(content)
    except ValueError:
        try:
            lines[number] = json.dumps(_changed(json.loads(lines[number]), draw)).encode()
        except (ValueError, RecursionError):
            return _token(content, draw)
        return b"\n".join(lines)
    except RecursionError:
        return _token(content, draw)
    return json.dumps(_changed(value, draw)).encode()


def _changed(value: Any, draw: Any) -> Any:
    if isinstance(value, (dict, list)) and value and draw(st.integers(0, 5)):
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = draw(st.sampled_from(keys))
        kind = draw(st.sampled_from(("change", "change", "change", "change", "drop", "more")))
        copied: Any = dict(value) if isinstance(value, dict) else list(value)
        if kind == "drop":
            del copied[key]
        elif kind == "more" and isinstance(copied, list):
            copied += [copied[key]] * draw(st.sampled_from((1, 2, 40)))
        elif kind == "more":
            copied[draw(st.sampled_from(("", "a", "id", "b" * 300)))] = copied[key]
        else:
            copied[key] = _changed(copied[key], draw)
        return copied
    return draw(st.sampled_from(VALUES))


def _png(content: bytes, draw: Any) -> bytes:
    """Another number in a chunk, with the right checksum."""
    stream, chunks = io.BytesIO(content[8:]), []
    while len(head := stream.read(8)) == 8:
        length, name = struct.unpack(">I4s", head)
        chunks.append((name, stream.read(min(length, len(content)))))
        stream.read(4)
    place = draw(st.integers(0, len(chunks) - 1)) if chunks else 0
    parts = [content[:8]]
    for number, (name, data) in enumerate(chunks):
        changed = _flip(data, draw) if number == place else data
        parts += [struct.pack(">I4s", len(changed), name), changed, struct.pack(">I", zlib.crc32(name + changed))]
    return b"".join(parts)


def _zip(content: bytes, draw: Any) -> bytes:
    """Damage to a member of a zip archive, with the right checksum."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError):
        return _flip(content, draw)  # it is damaged already
    if not members:
        return content
    name = draw(st.sampled_from(sorted(members)))
    members[name] = _one(members[name], draw)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, member in members.items():
            archive.writestr(zipfile.ZipInfo(name), member)
    return file.getvalue()


_written = [1]


def write(folder: Path, files: Files) -> Path:
    """Write files into a folder whose path is the same for all, each with another time stamp: readers cache by it."""
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        _written[0] += 1
        os.utime(path, ns=(0, _written[0] * 1000))
    return folder


class _TooLongError(BaseException):
    """No ``Exception``, so that no reader catches it."""


@contextmanager
def bounded() -> Iterator[None]:
    """Fail if the block takes more than 512 MiB of address space or 20 s of processor time.

    Memory that is not to be had raises MemoryError, which readers may turn into an error of theirs.
    """

    def stop(number: int, frame: object) -> None:
        raise _TooLongError(f"more than {_LONGEST} s of processor time")

    before = resource.getrlimit(resource.RLIMIT_AS)
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + _MOST
        resource.setrlimit(resource.RLIMIT_AS, (limit if before[1] < 0 else min(limit, before[1]), before[1]))
    handler = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, _LONGEST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)
