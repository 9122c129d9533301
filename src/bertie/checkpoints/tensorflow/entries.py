"""Entries of a tensor bundle: dtype, shape and place of a tensor, or of a slice of one (BundleEntryProto)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from bertie.errors import UserError
from bertie.files.protobuf import Message, bytes_field, fixed32_field, varint_field

DTYPES = {
    **{1: torch.float32, 2: torch.float64, 3: torch.int32, 4: torch.uint8, 5: torch.int16, 6: torch.int8},
    **{9: torch.int64, 10: torch.bool, 14: torch.bfloat16, 19: torch.float16},
}
"""TensorFlow's numbers of dtypes, and torch's dtypes."""
STRING = 7
SLICE_MARK = b"\0"  # begins the keys of slices
Extent = tuple[int, int]
"""First index and length of a slice in one dimension. The length -1 means all of the dimension."""


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


def parse_entry(label: str, message: Message) -> BundleEntry:
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


def full_extents(extents: tuple[Extent, ...], shape: tuple[int, ...]) -> list[Extent]:
    """Return first indices and lengths, with the whole dimension for the length -1."""
    return [(start, size if length < 0 else length) for (start, length), size in zip(extents, shape, strict=True)]


def slice_key(name: str, extents: tuple[Extent, ...]) -> bytes:
    """Return the key of a slice: 0, name, number of dimensions, then first index and length in each of them."""
    escaped = name.encode().replace(b"\xff", b"\xff\0").replace(b"\0", b"\0\xff")
    rank = bytes([1, len(extents)]) if extents else b"\0"
    return SLICE_MARK + escaped + b"\0\1" + rank + b"".join(_ordered(number) for each in extents for number in each)


def _ordered(value: int) -> bytes:
    """Return a signed number so that its bytes sort as the numbers do: leading ones count its bytes, 7 bits in each."""
    length = (~value if value < 0 else value).bit_length() // 7 + 1
    mark = (1 << length) - 1 << 8 * length - length  # `length` ones in front
    return ((value & (1 << 8 * length) - 1) ^ mark).to_bytes(length, "big")


def entry_message(tensor: torch.Tensor, offset: int, size: int, crc: int) -> bytes:
    """Return the entry of a tensor in the first data file."""
    numbers = {dtype: number for number, dtype in DTYPES.items()}
    shape = b"".join(bytes_field(2, varint_field(1, length)) for length in tensor.shape)
    place = varint_field(4, offset) + varint_field(5, size) + fixed32_field(6, crc)
    return varint_field(1, numbers[tensor.dtype]) + bytes_field(2, shape) + place
