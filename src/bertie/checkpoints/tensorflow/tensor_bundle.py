"""The tensors of a TensorFlow checkpoint: `PREFIX.index`, and the bytes of the tensors in `PREFIX.data-00000-of-00001`, ….

The key "" of the index has the number of data files. The other keys are names of variables. A partitioned variable has no
bytes of its own: its entry lists slices, and each slice has an entry under an encoded key (tensorflow/core/util/tensor_bundle
and saved_tensor_slice_util). Numbers are little-endian.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bertie.base import storage, untrusted
from bertie.base.errors import UserError, naming
from bertie.checkpoints.tensorflow.table import MAX_BYTES, masked_crc, read_table, write_table
from bertie.files.protobuf import Message, bytes_field, fixed32_field, read_varint, varint_field

DTYPES = {
    **{1: torch.float32, 2: torch.float64, 3: torch.int32, 4: torch.uint8, 5: torch.int16, 6: torch.int8},
    **{9: torch.int64, 10: torch.bool, 14: torch.bfloat16, 19: torch.float16},
}
"""TensorFlow's numbers of dtypes, and torch's dtypes."""
STRING = 7
SLICE_MARK = b"\0"  # begins the keys of slices
Extent = tuple[int, int]
"""First index and length of a slice in one dimension. The length -1 means all of the dimension."""
VERSION = 1  # of the format, the only one so far


@dataclass(frozen=True)
class BundleEntry:
    """A tensor of a bundle, or a slice of one."""

    label: str
    """Its name, for people."""
    dtype: int
    """TensorFlow's number of the dtype, as in `DTYPES`."""
    shape: tuple[int, ...]
    shard: int
    """Number of the data file."""
    offset: int
    """First byte in the data file."""
    size: int
    """Number of bytes."""
    crc: int
    """Masked CRC-32C of the bytes."""
    slices: tuple[tuple[Extent, ...], ...]
    """Slices, if the bytes are in other entries."""


@dataclass(frozen=True, eq=False)
class TensorBundle:
    """The index of a checkpoint, whose data files have all bytes. `read` and `strings` read tensors."""

    prefix: Path
    """Path of the files without their endings."""
    shards: int
    """Number of data files."""
    entries: dict[str, BundleEntry]
    """The variables, by name."""
    parts: dict[bytes, BundleEntry]
    """The slices of partitioned variables, by key."""

    def read(self, name: str) -> Tensor:
        """Read one tensor. Memory: the tensor, and for a partitioned one another time its largest slice.

        Raises:
            UserError: Its dtype is not supported, or its bytes are damaged.
        """
        entry = self.entries[name]
        if entry.dtype not in DTYPES:
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES.values())
            raise UserError(
                f"{self.prefix}.index: {entry.label} has TensorFlow's type {entry.dtype}; bertie reads {known}"
            )
        if not entry.slices:
            return self._tensor(entry)
        whole, count = torch.empty(entry.shape, dtype=DTYPES[entry.dtype]), 0
        try:
            for extents in entry.slices:
                part = self._tensor(self.parts[slice_key(name, extents)])
                places = _full_extents(extents, entry.shape)
                whole[tuple(slice(start, start + length) for start, length in places)] = part
                count += part.numel()
        except (KeyError, ValueError, RuntimeError) as error:
            raise UserError(
                f"{self.prefix}.index: damaged: a slice of {entry.label} is missing or does not fit"
            ) from error
        if count != whole.numel():
            raise UserError(f"{self.prefix}.index: damaged: the slices of {entry.label} have {count:,} values")
        return whole

    def strings(self, name: str) -> list[bytes]:
        """Read the elements of a tensor of strings. Raises UserError if it has another dtype, or is damaged."""
        entry = self.entries[name]
        if entry.dtype != STRING or entry.slices:
            raise UserError(f"{self.prefix}.index: {entry.label} has TensorFlow's type {entry.dtype}: expected strings")
        buffer = np.empty(entry.size, np.uint8)
        self._fill(buffer, entry)
        data, at, lengths = buffer.tobytes(), 0, []
        with naming(self._data(entry)), naming(entry.label):
            for _ in range(math.prod(entry.shape)):
                length, at = read_varint(data, at)
                lengths.append(length)
        stops = np.cumsum([at + 4, *lengths]).tolist()  # a checksum of the lengths is in front
        return [data[start:stop] for start, stop in itertools.pairwise(stops)]

    def _tensor(self, entry: BundleEntry) -> Tensor:
        tensor = torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
        data = _as_bytes(tensor)
        self._fill(data, entry)
        if masked_crc(data) != entry.crc:
            raise UserError(f"{self._data(entry)}: damaged: the checksum of {entry.label} is wrong")
        return tensor

    def _fill(self, data: np.ndarray, entry: BundleEntry) -> None:
        """Read the bytes of an entry."""
        path = self._data(entry)
        try:
            with open(path, "rb") as file:
                file.seek(entry.offset)
                count = file.readinto(data.data)
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
        if count != entry.size:
            raise UserError(f"{path}: truncated: it ends within {entry.label}")

    def _data(self, entry: BundleEntry) -> Path:
        return _data_path(self.prefix, entry.shard, self.shards)


def open_bundle(prefix: Path) -> TensorBundle:
    """Read and check the index of a checkpoint. No tensor is read.

    Args:
        prefix: Path of its files without their endings, such as `uncased_L-12_H-768_A-12/bert_model.ckpt`.

    Raises:
        UserError: A file is missing or damaged.
    """
    path = Path(f"{prefix}.index")
    try:
        untrusted.require_content(path, MAX_BYTES)
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    with naming(path):
        table = read_table(data)
        header = Message(table.pop(b"", b""))
        entries, parts = {}, {}
        for key, value in table.items():
            name = key.decode(errors="backslashreplace")
            with naming(repr(name)):
                entry = _parsed(repr(name), Message(value))
            if key.startswith(SLICE_MARK):
                parts[key] = entry
            else:
                entries[name] = entry
    bundle = TensorBundle(prefix, header.integer(1), entries, parts)
    _require_data(bundle)
    return bundle


def write_bundle(prefix: Path, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Write a checkpoint with one data file. The index is written last, and each file atomically.

    Args:
        prefix: Path of its files without their endings.
        tensors: Names and tensors. One at a time is in memory, if the iterator makes them.
    """
    version = bytes_field(3, varint_field(1, VERSION))
    rows = {b"": varint_field(1, 1) + version}
    offset = 0
    with storage.atomic_file(_data_path(prefix, 0, 1)) as path, open(path, "wb") as file:
        for name, tensor in tensors:
            data = _as_bytes(tensor.detach().cpu().contiguous())
            file.write(data.data)
            rows[name.encode()] = _message(tensor, offset, len(data), masked_crc(data))
            offset += len(data)
    storage.write_atomic(Path(f"{prefix}.index"), write_table(rows))


def _as_bytes(tensor: Tensor) -> np.ndarray:
    """Return the bytes of a contiguous tensor, without a copy."""
    return tensor.reshape(-1).view(torch.uint8).numpy()


def _data_path(prefix: Path, shard: int, shards: int) -> Path:
    return Path(f"{prefix}.data-{shard:05d}-of-{shards:05d}")


def _require_data(bundle: TensorBundle) -> None:
    """Check that all bytes are in the data files, before memory is taken for them. Raises UserError."""
    ends: dict[int, int] = {}
    for entry in (*bundle.entries.values(), *bundle.parts.values()):
        if not entry.slices:
            ends[entry.shard] = max(ends.get(entry.shard, 0), entry.offset + entry.size)
    for shard, end in ends.items():
        path = _data_path(bundle.prefix, shard, bundle.shards)
        try:
            untrusted.require_content(path, None)
            size = path.stat().st_size
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror or error}: restore it") from error
        if size < end:
            raise UserError(f"{path}: truncated: it has {size:,} bytes, and its tensors need {end:,}")


def _parsed(label: str, message: Message) -> BundleEntry:
    """Return an entry from its message. Raises UserError if its size does not fit its shape."""
    shape = tuple(Message(size).integer(1) for part in message.parts(2)[-1:] for size in Message(part).parts(2))
    slices = tuple(
        tuple((Message(extent).integer(1), Message(extent).integer(2, -1)) for extent in Message(part).parts(1))
        for part in message.parts(7)
    )
    dtype, shard, offset, size = (message.integer(field) for field in (1, 3, 4, 5))
    needed = math.prod(shape) * DTYPES[dtype].itemsize if dtype in DTYPES and not slices else size
    if min(shard, offset, size, *shape) < 0 or needed != size:
        raise UserError(f"damaged: it has {size:,} bytes, and its shape {shape} needs {needed:,}")
    return BundleEntry(label, dtype, shape, shard, offset, size, message.unsigned32(6), slices)


def _full_extents(extents: tuple[Extent, ...], shape: tuple[int, ...]) -> list[Extent]:
    """Return first indices and lengths, with the whole dimension for the length -1."""
    return [(start, size if length < 0 else length) for (start, length), size in zip(extents, shape, strict=True)]


def slice_key(name: str, extents: tuple[Extent, ...]) -> bytes:
    """Return the key of a slice: 0, name, number of dimensions, then first index and length in each of them."""
    escaped = name.encode().replace(b"\xff", b"\xff\0").replace(b"\0", b"\0\xff")
    rank = bytes([1, len(extents)]) if extents else b"\0"
    return SLICE_MARK + escaped + b"\0\1" + rank + b"".join(_ordered(number) for extent in extents for number in extent)


def _ordered(value: int) -> bytes:
    """Return a signed number so that its bytes sort as the numbers do: leading ones count its bytes, 7 bits in each."""
    length = (~value if value < 0 else value).bit_length() // 7 + 1
    mark = (1 << length) - 1 << 8 * length - length  # `length` ones in front
    return ((value & (1 << 8 * length) - 1) ^ mark).to_bytes(length, "big")


def _message(tensor: torch.Tensor, offset: int, size: int, crc: int) -> bytes:
    """Return the entry of a tensor in the first data file."""
    numbers = {dtype: number for number, dtype in DTYPES.items()}
    shape = b"".join(bytes_field(2, varint_field(1, length)) for length in tensor.shape)
    place = varint_field(4, offset) + varint_field(5, size) + fixed32_field(6, crc)
    return varint_field(1, numbers[tensor.dtype]) + bytes_field(2, shape) + place
