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
OTHER_DTYPES = {STRING: "string", 8: "complex64", 17: "uint16", 18: "complex128", 20: "resource", 21: "variant"}
OTHER_DTYPES |= {11: "qint8", 12: "quint8", 13: "qint32", 15: "qint16", 16: "quint16", 22: "uint32", 23: "uint64"}
MAX_NAME = 2000  # characters of a name, which is compared with patterns
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

    @property
    def kind(self) -> str:
        """The name of its dtype, for people."""
        if self.dtype in DTYPES:
            return str(DTYPES[self.dtype]).removeprefix("torch.")
        return OTHER_DTYPES.get(self.dtype, f"of TensorFlow's type {self.dtype}")

    @property
    def bytes_needed(self) -> int | None:
        """The number of bytes that dtype and shape need. None: it follows from the content."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize if self.dtype in DTYPES else None


def parse_entry(label: str, message: Message) -> BundleEntry:
    """Return an entry from its message. Raises UserError."""
    shapes = message.parts(2)
    shape = tuple(Message(size).integer(1) for part in shapes[-1:] for size in Message(part).parts(2))
    slices = tuple(
        tuple((Message(extent).integer(1), Message(extent).integer(2, -1)) for extent in Message(part).parts(1))
        for part in message.parts(7)
    )
    numbers = [message.integer(field) for field in (1, 3, 4, 5)]
    if min(*numbers, *shape) < 0 or len(shape) > 254 or math.prod(max(size, 1) for size in shape) >= 1 << 60:
        raise UserError("damaged: a size or a place is negative or too large, or it has more than 254 dimensions")
    dtype, shard, offset, size = numbers
    entry = BundleEntry(label, dtype, shape, shard, offset, size, message.unsigned32(6), slices)
    if not slices and entry.bytes_needed not in (None, size):
        what = f"{entry.kind} of shape {' × '.join(map(str, shape)) or '()'}"
        raise UserError(f"damaged: it has {size:,} bytes, which is not the size of {what[:200]}")
    return entry


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


def printed(key: bytes) -> str:
    """Return a key for messages."""
    text = repr(key.decode(errors="backslashreplace"))
    return text if len(text) <= 120 else f"{text[:120]}…'"


def decoded(key: bytes) -> str:
    """Return the name that a key is. Raises UserError."""
    if len(key) > MAX_NAME:
        raise UserError(f"damaged: the name {printed(key)} has {len(key):,} bytes")
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"damaged: the name {printed(key)} is not UTF-8") from error


def entry_message(tensor: torch.Tensor, offset: int, size: int, crc: int) -> bytes:
    """Return the entry of a tensor in the first data file."""
    numbers = {dtype: number for number, dtype in DTYPES.items()}
    shape = b"".join(bytes_field(2, varint_field(1, length)) for length in tensor.shape)
    place = varint_field(4, offset) + varint_field(5, size) + fixed32_field(6, crc)
    return varint_field(1, numbers[tensor.dtype]) + bytes_field(2, shape) + place
