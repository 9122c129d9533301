"""The format of TensorFlow's checkpoints, with files made by hand and by `write_bundle`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from bundles import MAGIC, Bundle, entry, example, nested, numbers, slice_key, table
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.base.errors import UserError
from bertie.checkpoints.tensorflow import tensor_bundle as entries
from bertie.checkpoints.tensorflow.table import MAX_BYTES, read_table, write_table
from bertie.checkpoints.tensorflow.tensor_bundle import open_bundle, write_bundle

WRITTEN, DATA = Path(__file__).parent / "written", "m.data-00000-of-00001"


@pytest.mark.parametrize(("name", "files", "slices"), [("first", 3, 4), ("second", 1, 0), ("second-sharded", 2, 3)])
def test_files_of_tensorflow_are_read(name: str, files: int, slices: int) -> None:
    """Partitioned variables, several data files, all dtypes, and the object graph of TensorFlow 2."""
    bundle = open_bundle(WRITTEN / f"{name}.ckpt")
    assert (bundle.shards, len(bundle.parts)) == (files, slices)
    kinds = {entry.dtype for entry in bundle.entries.values()}
    assert len(kinds) == (11 if name == "second" else 10 if name == "first" else 2)
    for each, found in bundle.entries.items():
        if found.dtype == entries.STRING:
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


FLOATS = torch.arange(6.0).reshape(2, 3)


def one(name: str = "w", tensor: torch.Tensor = FLOATS) -> Bundle:
    bundle = Bundle()
    bundle.add(name, tensor)
    return bundle


def with_row(row: bytes) -> Bundle:
    """A checkpoint with one entry, and data of 24 zeros."""
    bundle = Bundle()
    bundle.rows[b"w"] = row
    bundle.data[0] += bytes(24)
    return bundle


def with_slices(slices: list[list[tuple[int, int]]], drop: bytes = b"") -> Bundle:
    bundle = Bundle()
    bundle.add_slices("w", FLOATS, slices)
    bundle.rows.pop(drop, None)
    return bundle


def index(data: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / "m.index").write_bytes(data)


GOOD = table({b"": numbers(1), **{f"k{number:03d}".encode(): b"v" * 9 for number in range(40)}})
DAMAGED: dict[str, tuple[Bundle, Callable[[Path], object] | None, str]] = {
    "other size": (with_row(entry(1, (5,), 0, 0, 24)), None, "it has 24 bytes, and its shape (5,) needs 20"),
    "negative length": (with_row(entry(1, (-2, -3), 0, 0, 24)), None, "damaged: it has 24 bytes"),
    "wrong checksum": (with_row(entry(1, (6,), 0, 0, 24, bytes(4))), None, "the checksum of 'w' is wrong"),
    "complex numbers": (with_row(entry(8, (3,), 0, 0, 24)), None, "'w' has TensorFlow's type 8; bertie reads float32"),
    "slice missing": (with_slices([[(0, 2), (0, -1)]], slice_key("w", [(0, 2), (0, -1)])), None, "'w' is missing or"),
    "slices too few": (with_slices([[(0, 1), (0, -1)]]), None, "the slices of 'w' have 3 values"),
    "data cut": (
        one(),
        lambda folder: os.truncate(folder / DATA, 23),
        "truncated: it has 23 bytes, and its tensors need",
    ),
    "no data": (one(), lambda folder: (folder / DATA).unlink(), f"{DATA[1:]} cannot be read: No such file"),
    "no index": (one(), lambda folder: (folder / "m.index").unlink(), "X.index: cannot be read: No such file"),
    "large": (one(), lambda folder: os.truncate(folder / "m.index", MAX_BYTES + 1), f"at most {MAX_BYTES:,}"),
    "cut": (one(), index(GOOD[:-1]), "does not end in its magic number"),
    "bit flip": (one(), index(bytes([GOOD[0] ^ 4]) + GOOD[1:]), "the checksum of the block at byte 0 is wrong"),
    "footer without an end": (one(), index(b"\xff" * 40 + MAGIC), "the number at byte"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_damaged_is_named_in_one_line(tmp_path: Path, name: str) -> None:
    bundle, change, expected = DAMAGED[name]
    prefix = bundle.write(tmp_path / "m")
    if change is not None:
        change(tmp_path)
    with pytest.raises(UserError) as raised:
        open_bundle(prefix).read("w")
    assert expected in str(raised.value).replace(str(prefix), "X")
    assert "\n" not in str(raised.value)


def test_a_reader_loads_only_what_it_is_asked_for(tmp_path: Path) -> None:
    written = one()
    written.add("v", FLOATS)
    written.data[0][0] ^= 1
    bundle = open_bundle(written.write(tmp_path / "m"))
    assert torch.equal(bundle.read("v"), FLOATS)
    with pytest.raises(UserError, match="the checksum of 'w' is wrong"):
        bundle.read("w")
    with pytest.raises(UserError, match="'w' has TensorFlow's type 1: expected strings"):
        bundle.strings("w")
