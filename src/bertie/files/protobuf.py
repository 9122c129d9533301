"""Read and write the fields of protocol buffers, as SentencePiece models and TensorFlow's indexes have them.

A message is a list of fields: a varint with the field's number and wire type, then its value
(https://protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from bertie.base.errors import UserError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED = {FIXED64: 8, FIXED32: 4}
_LONGEST_VARINT = 10  # bytes of a number of 64 bits


class Field(NamedTuple):
    """A field of a message."""

    number: int
    wire_type: int
    value: int | memoryview
    """A number (varint), or bytes: a string, a message, or a fixed number in little-endian order."""

    def text(self) -> str:
        """Return the value as a string. Raises UserError."""
        try:
            return bytes(self._bytes(BYTES)).decode()
        except UnicodeDecodeError as error:
            raise UserError(f"field {self.number} is not UTF-8 text") from error

    def message(self) -> memoryview:
        """Return the value as the bytes of a message or of a byte string. Raises UserError."""
        return self._bytes(BYTES)

    def integer(self) -> int:
        """Return the value as a signed integer of 64 bits. Raises UserError."""
        if not isinstance(self.value, int):
            raise UserError(f"field {self.number} is not a number")
        return self.value - (1 << 64) if self.value >> 63 else self.value

    def unsigned32(self) -> int:
        """Return the value of a fixed number as an integer from 0. Raises UserError."""
        return int.from_bytes(self._bytes(FIXED32), "little")

    def float32(self) -> float:
        """Return the value as a float. Raises UserError."""
        return struct.unpack("<f", self._bytes(FIXED32))[0]

    def _bytes(self, wire_type: int) -> memoryview:
        if self.wire_type != wire_type or isinstance(self.value, int):
            raise UserError(f"field {self.number} has the wire type {self.wire_type} in place of {wire_type}")
        return self.value


def read_varint(data: bytes | memoryview, start: int) -> tuple[int, int]:
    """Read a number of at most 64 bits, and return it and the position after it. Raises UserError."""
    value = 0
    for place, byte in enumerate(data[start : start + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80 and not value >> 64:
            return value, start + place + 1
    raise UserError(f"the number at byte {start} does not end")


def read_fields(data: memoryview) -> Iterator[Field]:
    """Yield the fields of a message, in order. Values are views of `data`, nothing is copied.

    Raises:
        UserError: The message is damaged.
    """
    start = 0
    while start < len(data):
        key, start = read_varint(data, start)
        number, wire_type = key >> 3, key & 7
        if wire_type == VARINT:
            value, start = read_varint(data, start)
            yield Field(number, wire_type, value)
            continue
        if wire_type == BYTES:
            size, start = read_varint(data, start)
        elif wire_type in _FIXED:
            size = _FIXED[wire_type]
        else:
            raise UserError(f"the field before byte {start} has the unknown wire type {wire_type}")
        if size > len(data) - start:
            raise UserError(f"the field at byte {start} has {size} bytes, and only {len(data) - start} follow")
        yield Field(number, wire_type, data[start : start + size])
        start += size


class Message:
    """The fields of a message by their numbers, for messages that are read whole."""

    def __init__(self, data: bytes | memoryview):
        """Parse a message. Raises UserError."""
        self.fields: dict[int, list[Field]] = {}
        for field in read_fields(memoryview(data)):
            self.fields.setdefault(field.number, []).append(field)

    def integer(self, number: int, default: int = 0) -> int:
        """Return a signed integer of 64 bits; of several fields, the last one. Raises UserError."""
        return self.fields[number][-1].integer() if number in self.fields else default

    def unsigned32(self, number: int) -> int:
        """Return a fixed number, 0 if the field is missing; of several fields, the last one. Raises UserError."""
        return self.fields[number][-1].unsigned32() if number in self.fields else 0

    def parts(self, number: int) -> list[bytes]:
        """Return the texts or messages of a field. Raises UserError if they are numbers."""
        return [bytes(field.message()) for field in self.fields.get(number, [])]


def varint(value: int) -> bytes:
    """Return the bytes of a number, from 0."""
    return bytes([value & 127 | 128]) + varint(value >> 7) if value > 127 else bytes([value])


def varint_field(number: int, value: int) -> bytes:
    """Return a field of a message with a number from 0. 0 is the default, which is not written."""
    return varint(number << 3 | VARINT) + varint(value) if value else b""


def bytes_field(number: int, value: bytes) -> bytes:
    """Return a field of a message with a text or a message."""
    return varint(number << 3 | BYTES) + varint(len(value)) + value


def fixed32_field(number: int, value: int) -> bytes:
    """Return a field of a message with a number of 32 bits."""
    return varint(number << 3 | FIXED32) + value.to_bytes(4, "little")
