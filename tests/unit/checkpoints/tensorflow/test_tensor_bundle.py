"""The format of TensorFlow's checkpoints, with files made by hand and by `write_bundle`."""

from __future__ import annotations

import functools
import resource
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
import torch
from bundle_mutations import WRITTEN
from bundles import MAGIC, NUMBERS, Bundle, block, entry, example, masked, nested, numbers, slice_key, table, varint
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.checkpoints.tensorflow import entries
from bertie.checkpoints.tensorflow.table import MAX_BYTES, MAX_ENTRIES, read_table, write_table
from bertie.checkpoints.tensorflow.tensor_bundle import open_bundle, write_bundle
from bertie.errors import UserError


@pytest.mark.parametrize(("name", "files", "slices"), [("first", 3, 4), ("second", 1, 0), ("second-sharded", 2, 3)])
def test_files_of_tensorflow_are_read(name: str, files: int, slices: int) -> None:
    """Partitioned variables, several data files, all dtypes, and the object graph of TensorFlow 2."""
    bundle = open_bundle(WRITTEN / f"{name}.ckpt")
    assert (bundle.shards, len(bundle.parts)) == (files, slices)
    kinds = {entry.kind for entry in bundle.entries.values()}
    assert len(kinds) == (11 if name == "second" else 10 if name == "first" else 2)
    for each, found in bundle.entries.items():
        if found.kind == "string":
            assert b"VARIABLE_VALUE" in bundle.strings(each)[0]
            continue
        tensor = bundle.read(each)
        assert tensor.shape in ((2, 3), (6, 4))
        assert torch.equal(tensor, torch.arange(tensor.numel()).reshape(tensor.shape).to(tensor.dtype)), each


@pytest.mark.parametrize("snappy", [False, True])
def test_all_tensors_are_read_back(tmp_path: Path, snappy: bool) -> None:
    written, tensors = example()
    bundle = open_bundle(written.write(tmp_path / "model.ckpt", snappy=snappy))
    assert set(bundle.entries) == {*tensors, "words"}
    for name, tensor in tensors.items():
        assert bundle.entries[name].shape == tensor.shape
        assert bundle.read(name).dtype == tensor.dtype
        assert torch.equal(bundle.read(name), tensor), name
    assert bundle.strings("words") == [b"one", b"", b"three" * 50]


def test_written_tensors_are_read_back_from_plain_blocks(tmp_path: Path) -> None:
    _, tensors = example()
    many = {f"layer_{number}/kernel": torch.full((2,), number) for number in range(100)}
    tensors = tensors | many | {"ä/ß": torch.ones(1), "transposed": torch.arange(6).reshape(2, 3).t()}
    write_bundle(tmp_path / "a", reversed(tensors.items()))
    bundle = open_bundle(tmp_path / "a")
    assert list(bundle.entries) == sorted(tensors, key=str.encode)
    for name, tensor in tensors.items():
        assert torch.equal(bundle.read(name), tensor), name
    assert {path.name for path in tmp_path.iterdir()} == {"a.index", "a.data-00000-of-00001"}
    rows = {b"": numbers(1) + nested(3, numbers(1)), b"x": b"y"}
    assert write_table(rows) == table(rows)  # by another program


@settings(max_examples=30)
@given(st.dictionaries(st.binary(max_size=40), st.binary(max_size=40), max_size=40))
def test_any_table_is_read_back(rows: dict[bytes, bytes]) -> None:
    assert read_table(write_table(rows)) == dict(sorted(rows.items()))
    assert read_table(table(rows)) == read_table(table(rows, snappy=True)) == dict(sorted(rows.items()))


@settings(max_examples=30)
@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 63), (1 << 63) - 1))
def test_numbers_in_keys_of_slices_sort_as_numbers(a: int, b: int) -> None:
    left, right = entries.slice_key("x", ((a, 0),)), entries.slice_key("x", ((b, 0),))
    assert (left < right) == (a < b)
    assert len(left) <= 17


def test_keys_of_slices_are_tensorflows() -> None:
    """The bytes follow from the encoding in TensorFlow's ordered_code.h."""
    assert entries.slice_key("a", ((0, 5), (0, -1))) == b"\0a\0\1\1\2\x80\x85\x80\x7f"
    assert entries.slice_key("a\0\xff", ()) == b"\0a\0\xff\xc3\xbf\0\1\0"  # U+00FF is C3 BF in UTF-8
    assert entries.slice_key("a", ((64, 8191),)) == b"\0a\0\1\1\1\xc0\x40\xdf\xff"
    assert entries.slice_key("a", ((8192, 1 << 62),)) == b"\0a\0\1\1\1\xe0\x20\0\xff\xc0\x40" + bytes(7)
    assert entries.slice_key("a", ((5, 100),)) == slice_key("a", [(5, 100)])


def read_all(prefix: Path) -> None:
    bundle = open_bundle(prefix)
    for name in bundle.entries:
        bundle.read(name)


def problem(prefix: Path) -> str:
    """The message on reading all of a checkpoint."""
    with pytest.raises(UserError) as raised:
        read_all(prefix)
    message = str(raised.value)
    assert "\n" not in message
    assert len(message) < 600
    assert str(prefix) in message
    return message.replace(str(prefix), "X")


FLOATS = torch.arange(6.0).reshape(2, 3)


def one(name: str = "w", tensor: torch.Tensor = FLOATS) -> Bundle:
    bundle = Bundle()
    bundle.add(name, tensor)
    return bundle


def with_row(row: bytes, data: int = 24) -> Bundle:
    """A checkpoint with one entry, and data of some zeros."""
    bundle = Bundle()
    bundle.rows[b"w"] = row
    bundle.data[0] += bytes(data)
    return bundle


def with_header(header: bytes) -> Bundle:
    bundle = one()
    bundle.header = header
    return bundle


def with_slices(slices: list[list[tuple[int, int]]], *extra: bytes, drop: bytes = b"") -> Bundle:
    bundle = Bundle()
    bundle.add_slices("w", FLOATS, slices)
    for key in extra:
        bundle.add(key, FLOATS)
    bundle.rows.pop(drop, None)
    return bundle


def repeated_slice() -> Bundle:
    bundle = with_slices([[(0, 1), (0, -1)]])
    bundle.rows[b"w"] = entry(1, (2, 3), slices=[[(0, 1), (0, -1)]] * 2)
    return bundle


def overlapping() -> Bundle:
    bundle = one()
    bundle.add("v", FLOATS)
    bundle.rows[b"v"] = entry(1, (2, 3), 0, 4, 24, masked(bytes(bundle.data[0][4:28])))
    return bundle


DAMAGED: dict[str, tuple[Callable[[], Bundle], str]] = {
    "big-endian": (lambda: with_header(numbers(1, 1)), "big-endian"),
    "newer format": (lambda: with_header(numbers(1) + nested(3, numbers(3, 2))), "version 2; bertie reads version 1"),
    "no data files": (lambda: with_header(b""), "it names 0 data files"),
    "header without end": (lambda: with_header(b"\x08"), "the number at byte"),
    "header of a text": (lambda: with_header(nested(1, b"x")), "field 1 is not a number"),
    "group in a header": (lambda: with_header(b"\x0b"), "unknown wire type 3"),
    "2^60 bytes": (
        lambda: with_row(entry(1, (1 << 58,), 0, 0, 1 << 60, bytes(4))),
        "has 24 bytes, and 'w' needs the bytes 0 to 1,152,921,504,606,846,976",
    ),
    "2^60 values": (lambda: with_row(entry(1, (1 << 30, 1 << 30), 0, 0, 24, bytes(4))), "negative or too large"),
    "empty, with 2^62 columns": (lambda: with_row(entry(1, (0, 1 << 62), 0, 0, 0)), "negative or too large"),
    "other size": (lambda: with_row(entry(1, (5,), 0, 0, 24)), "24 bytes, which is not the size of float32 of shape 5"),
    "negative offset": (lambda: with_row(entry(1, (6,), 0, -8, 24)), "negative"),
    "negative size": (lambda: with_row(entry(1, (6,), 0, 0, -24)), "negative"),
    "negative length": (lambda: with_row(entry(1, (-2, -3), 0, 0, 24)), "negative"),
    "255 dimensions": (lambda: with_row(entry(1, (1,) * 255, 0, 0, 4)), "more than 254 dimensions"),
    "offset beyond the end": (lambda: with_row(entry(1, (6,), 0, 1, 24)), "needs the bytes 1 to 25"),
    "overlap": (overlapping, "its bytes belong to another tensor, too"),
    "data file beyond": (lambda: with_row(entry(1, (6,), 1, 0, 24)), "in the data file 1, and there are 1"),
    "wrong checksum": (lambda: with_row(entry(1, (6,), 0, 0, 24, bytes(4))), "the checksum of 'w' is wrong"),
    "no checksum": (lambda: with_row(entry(1, (6,), 0, 0, 24)), "the checksum of 'w' is wrong"),
    "bool of 2": (lambda: _bool_of_two(), "other values than true and false"),
    "complex numbers": (lambda: with_row(entry(8, (3,), 0, 0, 24)), "'w' is complex64; bertie reads float32"),
    "text": (lambda: with_row(entry(7, (3,), 0, 0, 24)), "'w' is string"),
    "unknown dtype": (lambda: with_row(entry(77, (3,), 0, 0, 24)), "'w' is of TensorFlow's type 77"),
    "name in Latin-1": (lambda: _named(b"\xe4"), "is not UTF-8"),
    "name of 1 MB": (lambda: _named(b"a" * (1 << 20)), "a key has 1,048,576 bytes"),
    "name of 3 kB": (lambda: _named(b"a" * 3000), "…' has 3,000 bytes"),
    "slice missing": (lambda: with_slices([[(0, 2), (0, -1)]], drop=slice_key("w", [(0, 2), (0, -1)])), "is missing"),
    "slices too few": (lambda: with_slices([[(0, 1), (0, -1)]]), "its slices have 3 of 6 values"),
    "slices overlap": (
        lambda: with_slices([[(0, 1), (0, 2)], [(0, 1), (1, 2)], [(1, 1), (0, 2)]]),
        "the slices of 'w' overlap",
    ),
    "slice twice": (repeated_slice, "is missing, or listed twice"),
    "slice beyond": (lambda: _slice_of((2, 3), [(1, 2), (0, -1)]), "does not fit the variable"),
    "slice of other rank": (lambda: _slice_of((2, 3), [(0, 2)]), "another number of dimensions"),
    "slice without a variable": (
        lambda: with_slices([[(0, 2), (0, -1)]], slice_key("v", [(0, 2), (0, 3)])),
        "belongs to no variable",
    ),
}


def _bool_of_two() -> Bundle:
    bundle = Bundle()
    bundle.rows[b"w"] = entry(10, (1,), *bundle.store(b"\2", 0), masked(b"\2"))
    return bundle


def _named(name: bytes) -> Bundle:
    bundle = one()
    bundle.rows[name] = bundle.rows.pop(b"w")
    return bundle


def _slice_of(shape: tuple[int, ...], extents: list[tuple[int, int]]) -> Bundle:
    bundle = with_slices([[(0, 2), (0, -1)]])
    part = bundle.rows[slice_key("w", [(0, 2), (0, -1)])]
    bundle.rows = {slice_key("w", extents): part, b"w": entry(NUMBERS[FLOATS.dtype], shape, slices=[extents])}
    return bundle


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_entry_is_named(tmp_path: Path, name: str) -> None:
    make, expected = DAMAGED[name]
    assert expected in problem(make().write(tmp_path / "m"))


@functools.cache
def tables() -> dict[str, tuple[bytes, str]]:
    """Damaged indexes, and what is said of them."""
    rows = {b"": numbers(1), **{f"k{number:03d}".encode(): b"v" * 9 for number in range(40)}}
    good = table(rows)
    swapped = block([(b"b", b""), (b"a", b"")])
    place = varint(0) + varint(len(swapped))
    return {
        "empty": (b"", "does not end in its magic number"),
        "cut": (good[:-1], "does not end in its magic number"),
        "cut in front": (good[70:], "damaged"),
        "other file": (b"PK\3\4" * 50, "does not end in its magic number"),
        "only a footer": (good[-48:], "a block lies outside of the file"),
        "bit flip": (bytes([good[0] ^ 4]) + good[1:], "the checksum of the block at byte 0 is wrong"),
        "footer without an end": (b"\xff" * 40 + MAGIC, "the number at byte"),
        "no header": (table({b"a": b"b"}), 'it has no header (the key "")'),
        "nothing": (table({}), "it has no header"),
        "keys not in order": (_whole(swapped, [(b"b", place)]), "its keys are not in order"),
        "separator too small": (
            _whole(block([(b"b", b"")]), [(b"a", varint(0) + varint(len(block([(b"b", b"")]))))]),
            "order",
        ),
        "block twice": (_whole(swapped, [(b"b", place), (b"c", place)]), "its keys are not in order"),
        "blocks overlap": (
            _whole(block([(b"a", b"")]), [(b"a", varint(0) + varint(len(block([(b"a", b"")]))))] * 2),
            "its blocks overlap",
        ),
        "shares too much": (table(rows, changed=lambda content: b"\x05" + content[1:]), "an entry lies outside"),
        "value too long": (table(rows, changed=lambda content: content[:2] + b"\x7f" + content[3:]), "an entry lies"),
        "too many places": (table(rows, changed=lambda content: content[:-4] + b"\xff" * 4), "list of places"),
        "block without an end": (table(rows, changed=lambda _: b"\0\0"), "list of places"),
        "unknown compression": (_whole(b"abc", [], kind=2), "unknown method 2"),
        "not Snappy": (_whole(varint(50) + b"\xff" * 9, [], kind=1), "cannot be decompressed"),
        "Snappy of 2^60 bytes": (
            _whole(varint(1 << 60) + b"\0" * 99, [], kind=1),
            "declares 1,152,921,504,606,846,976",
        ),
        "Snappy bomb": (_whole(_snappy_bomb(), [], kind=1), "declares"),
        "long keys, each shared": (_shared_keys(), "a key has 1,048,576 bytes"),
        "many entries": (_many_entries(), f"more than {MAX_ENTRIES:,} entries"),
    }


def _whole(content: bytes, index: list[tuple[bytes, bytes]], kind: int = 0) -> bytes:
    """An index with one block of data, and an index block with these rows."""
    data = content + bytes([kind]) + masked(content + bytes([kind]))
    index = index or [(b"\xff", varint(0) + varint(len(content)))]
    meta, last = block([]), block(index, restarts=1)
    footer = varint(len(data)) + varint(len(meta))
    data += meta + b"\0" + masked(meta + b"\0")
    footer += varint(len(data)) + varint(len(last))
    return data + last + b"\0" + masked(last + b"\0") + footer.ljust(40, b"\0") + MAGIC


def _snappy_bomb() -> bytes:
    return pyarrow.compress(bytes(2 * MAX_BYTES), codec="snappy", asbytes=True)


def _shared_keys() -> bytes:
    """A key of 1 MB, and 10,000 keys that add one byte each: 10 GB of keys in an index of 1 MB."""
    content, length = b"\0" + varint(1 << 20) + b"\0" + b"k" * (1 << 20), 1 << 20
    for _ in range(10_000):
        content += varint(length) + b"\1\0" + b"k"
        length += 1
    content += bytes(4) + (1).to_bytes(4, "little")
    return _whole(content, [(b"\xff", varint(0) + varint(len(content)))])


def _many_entries() -> bytes:
    content = b"\0\0\0" + b"".join(b"\0\3\0" + number.to_bytes(3, "big") for number in range(MAX_ENTRIES + 1))
    content += bytes(4) + (1).to_bytes(4, "little")
    return _whole(content, [(b"\xff", varint(0) + varint(len(content)))])


@pytest.mark.parametrize("name", tables())
def test_a_damaged_index_is_refused_with_little_memory(tmp_path: Path, name: str) -> None:
    index, expected = tables()[name]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert expected in problem(one().write(tmp_path / "m", index))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kB


def test_a_message_with_too_many_fields_is_refused(tmp_path: Path) -> None:
    assert "more than 100,000 fields" in problem(
        with_header(numbers(1) + b"\x20\0" * MAX_ENTRIES).write(tmp_path / "m")
    )


def test_missing_and_large_files_are_named(tmp_path: Path) -> None:
    prefix = one().write(tmp_path / "m")
    data = tmp_path / "m.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-1])
    assert "X.data-00000-of-00001: truncated, or m.index is damaged: it has 23 bytes" in problem(prefix)
    data.unlink()
    assert "X.data-00000-of-00001 cannot be read: No such file or directory: restore it" in problem(prefix)
    data.mkdir()
    problem(prefix)
    with open(tmp_path / "m.index", "wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert f"at most {MAX_BYTES:,} are read" in problem(prefix)
    (tmp_path / "m.index").unlink()
    assert "X.index: cannot be read: No such file" in problem(prefix)


@pytest.mark.parametrize("place", [0, 3, 5, -1])
def test_damaged_strings_are_named(tmp_path: Path, place: int) -> None:
    written = Bundle()
    written.add_strings("words", b"one", b"two")
    written.data[0][place] ^= 1
    bundle = open_bundle(written.write(tmp_path / "m"))
    with pytest.raises(UserError, match=r"m\.data-00000-of-00001: 'words': damaged"):
        bundle.strings("words")


def test_strings_are_not_read_from_numbers(tmp_path: Path) -> None:
    bundle = open_bundle(one().write(tmp_path / "m"))
    with pytest.raises(UserError, match=r"expected strings of at most .* found 24 bytes of float32"):
        bundle.strings("w")


def test_a_reader_loads_only_what_it_is_asked_for(tmp_path: Path) -> None:
    written = one()
    written.add("v", FLOATS)
    written.data[0][0] ^= 1
    bundle = open_bundle(written.write(tmp_path / "m"))
    assert torch.equal(bundle.read("v"), FLOATS)
    with pytest.raises(UserError, match="the checksum of 'w' is wrong"):
        bundle.read("w")
