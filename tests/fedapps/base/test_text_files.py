"""Files that people write: encodings, JSON and TOML, and what operating systems put beside them."""

import codecs
import gzip
import json
import lzma
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rogue import header, npy

from fedapps.base.errors import DataError
from fedapps.base.text_files import (
    arrays_in,
    found_in,
    open_text,
    read_json,
    read_text,
    read_toml,
    refuse_copies,
    zipped_texts,
)

MARKS = {
    "utf-8": b"",
    "utf-8-sig": b"",
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-le": codecs.BOM_UTF32_LE,
    "utf-32-be": codecs.BOM_UTF32_BE,
}
PACKERS = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


@given(
    text=st.text(st.characters(codec="utf-8", exclude_characters="\r\0\ufeff"), max_size=9),
    encoding=st.sampled_from(sorted(MARKS)),
    packed=st.sampled_from(sorted(PACKERS)),
)
def test_a_text_is_the_same_in_every_encoding(tmp_path_factory, text, encoding, packed):
    path = tmp_path_factory.getbasetemp() / f"text.toml{packed}"
    path.write_bytes(PACKERS[packed](MARKS[encoding] + text.encode(encoding)))
    assert read_text(path) == text


def test_line_ends_of_every_system(tmp_path):
    (tmp_path / "a.toml").write_bytes(b"a = 1\r\nb = 2\rc = 3\n")
    assert read_text(tmp_path / "a.toml") == "a = 1\nb = 2\nc = 3\n"
    with open_text(tmp_path / "a.toml", newline="\n") as file:
        assert list(file) == ["a = 1\r\n", "b = 2\rc = 3\n"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\nb\xe9", r"a\.txt, line 2, byte 3: 0xe9 is not UTF-8 .*; save the file as UTF-8, for example with"),
        (b"\xef\xbb\xbf\xe9", r"a\.txt, line 1, byte 3: 0xe9 is not UTF-8"),
        (b"\xff\xfea\0\n\0\0\xd8\n\0", r"a\.txt, line 2, byte 6: 0x00 is not UTF-16-LE"),
        (b"\xff\xfea\0b", r"a\.txt, line 1, byte 4: 0x62 is not UTF-16-LE \(truncated data\)"),
        (b"a\0b\0", r"a\.txt, byte 1: 0x00, .* in UTF-16 without a byte-order mark; save it as UTF-8"),
    ],
)
def test_another_encoding_is_named_by_line_and_byte(tmp_path, content, message):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_text(tmp_path / "a.txt")


def test_a_wrong_byte_far_into_a_file(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"\xc3\xa9\n" * 100_000 + b"ab\xe9\n"))
    with pytest.raises(DataError, match=r"line 100001, byte 300002: 0xe9 is not UTF-8"):
        read_text(tmp_path / "a.txt.gz")


def test_a_damaged_archive(tmp_path):
    packed = bytearray(gzip.compress(b"0123456789" * 99))
    packed[12] ^= 255  # what raises zlib.error, which is no OSError
    (tmp_path / "a.gz").write_bytes(packed)
    (tmp_path / "a.zip").write_bytes(b"PK\3\4")
    with pytest.raises(DataError, match=r"a\.gz: cannot be read or is damaged"):
        read_text(tmp_path / "a.gz")
    with pytest.raises(DataError, match=r"a\.zip: cannot be read or is damaged"):
        zipped_texts(tmp_path / "a.zip")


def test_texts_in_a_zip_archive(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in ("a.txt", "__MACOSX/._a.txt", "b/c.vec", "readme.md"):
            archive.writestr(name, "é")
    assert zipped_texts(tmp_path / "a.zip") == ["a.txt", "b/c.vec"]
    with open_text(tmp_path / "a.zip", member="a.txt") as file:
        assert file.read() == "é"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Expecting property name"),
        ("[NaN]", "NaN is not a number"),
        ("[-Infinity]", "-Infinity is not a number"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "an object has the name 'c' twice; keep one of the two"),
        ("[" * 100_000, "arrays or objects are nested too deeply"),
        ("9" * 5000, "Exceeds the limit"),
    ],
)
def test_what_is_no_json(tmp_path, text, message):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match=rf"a\.json: no JSON: {message}"):
        read_json(tmp_path / "a.json")


def test_json_and_toml_with_a_byte_order_mark(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"a": 1}), encoding="utf-8-sig")
    assert read_json(tmp_path / "a.json") == {"a": 1}
    (tmp_path / "a.toml").write_text("a = 'é'", encoding="utf-16")
    assert read_toml(tmp_path / "a.toml") == {"a": "é"}
    (tmp_path / "a.toml").write_text("a = " + "[" * 100_000)
    with pytest.raises(DataError, match=r"a\.toml: no TOML that can be read: .* nested too deeply"):
        read_toml(tmp_path / "a.toml")


@pytest.mark.parametrize(
    "member", [b"", b"no array", npy("{("), npy("-" * 9000 + "1"), npy(header(shape=f"({2**60},)"))]
)
def test_an_archive_with_a_member_that_is_no_array(tmp_path, member):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", member)
    with pytest.raises(DataError, match=r"a\.npz: cannot be read as an archive of arrays \(\.npz\)"):
        dict(arrays_in(tmp_path / "a.npz", ["a"]))


def test_what_operating_systems_made_is_no_data(tmp_path):
    hidden = tmp_path / ".cache" / "data"  # the folder itself may be hidden
    for name in ("b.csv", "a.csv", "._a.csv", "__MACOSX/c.csv", ".ipynb_checkpoints/d.csv", "e/Thumbs.db", "e/f.csv"):
        (hidden / name).parent.mkdir(parents=True, exist_ok=True)
        (hidden / name).touch()
    assert found_in(hidden, "*.csv") == [hidden / "a.csv", hidden / "b.csv"]
    assert found_in(hidden, "**/*.csv", "*.csv", "e/*") == [hidden / name for name in ("a.csv", "b.csv", "e/f.csv")]


def test_a_file_beside_its_compressed_copy(tmp_path):
    refuse_copies([tmp_path / "a.csv", tmp_path / "b.csv.gz"])
    with pytest.raises(DataError, match=r"a\.csv and a\.csv\.gz: the same file twice, plain and compressed; keep one"):
        refuse_copies([tmp_path / "a.csv", tmp_path / "a.csv.gz"])


def test_links_to_folders_are_entered_once(tmp_path):
    (tmp_path / "data" / "owl").mkdir(parents=True)
    (tmp_path / "day").mkdir()
    for path in ("data/owl/a.png", "day/b.png"):
        (tmp_path / path).touch()
    for name, target in (("day", tmp_path / "day"), ("twice", tmp_path / "day"), ("above", tmp_path / "data")):
        (tmp_path / "data" / "owl" / name).symlink_to(target)
    owl = tmp_path / "data" / "owl"
    assert found_in(tmp_path / "data", "*/**/*.png") == [owl / "a.png", owl / "day" / "b.png"]
    assert found_in(tmp_path / "data", "*/**/") == [owl, owl / "above", owl / "day"]
