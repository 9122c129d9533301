"""The index of a TensorFlow checkpoint: a table of sorted keys with values, which are messages of protocol buffers.

The table has the format of LevelDB (github.com/google/leveldb/blob/main/doc/table_format.md). A block is a list of entries
(bytes shared with the previous key, further bytes of the key, bytes of the value, then these bytes), the places of the
entries that share nothing, and their number. A type byte (0: plain, 1: Snappy) and a masked CRC-32C follow. The index block
has the places of the other blocks. The last 48 bytes of the file have its place and a magic number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bertie.base.errors import UserError
from bertie.files.protobuf import read_varint, varint

MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
FOOTER_BYTES = 48
PLAIN, SNAPPY = 0, 1
RESTART_INTERVAL = 16
MAX_BYTES = 1 << 24
"""Largest size of an index. That of BERT-base has 9 kB."""


def masked_crc(data: Any, type_byte: bytes = b"") -> int:
    """Return the CRC-32C of bytes as TensorFlow stores it: rotated, plus a constant."""
    import google_crc32c

    crc = google_crc32c.value(data)
    crc = google_crc32c.extend(crc, type_byte) if type_byte else crc
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def read_table(data: bytes) -> dict[bytes, bytes]:
    """Return the values of a table by their keys. Raises UserError if it is truncated or damaged."""
    if len(data) < FOOTER_BYTES or data[-len(MAGIC) :] != MAGIC:
        raise UserError("truncated, or not the index of a TensorFlow checkpoint: it does not end in its magic number")
    footer = data[-FOOTER_BYTES:]
    index, _ = _handle(footer, _handle(footer, 0)[1])
    table: dict[bytes, bytes] = {}
    for _, place in _entries(_block(data, *index)):
        table |= _entries(_block(data, *_handle(place, 0)[0]))
    return table


def write_table(rows: dict[bytes, bytes]) -> bytes:
    """Return a table with one block, as TensorFlow writes small ones: not compressed."""
    ordered = sorted(rows.items())
    data, places = b"", []
    last = ordered[-1][0] if ordered else b""
    for block in (_build_block(ordered), _build_block([])):
        places.append(varint(len(data)) + varint(len(block)))
        data += _with_trailer(block)
    index = _build_block([(last, places[0])])
    footer = places[1] + varint(len(data)) + varint(len(index))
    return data + _with_trailer(index) + footer.ljust(FOOTER_BYTES - len(MAGIC), b"\0") + MAGIC


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Return offset and size of a block, and the place after these numbers."""
    offset, at = read_varint(data, at)
    size, at = read_varint(data, at)
    return (offset, size), at


def _block(data: bytes, offset: int, size: int) -> bytes:
    """Return the content of a block."""
    content, kind, crc = (data[offset : offset + size], *(data[offset + size :][at] for at in (slice(1), slice(1, 5))))
    if masked_crc(content, kind) != int.from_bytes(crc, "little"):
        raise UserError(f"damaged: the checksum of the block at byte {offset} is wrong")
    return _decompressed(content) if kind == bytes([SNAPPY]) else content


def _decompressed(content: bytes) -> bytes:
    import pyarrow

    try:
        return pyarrow.decompress(content, read_varint(content, 0)[0], codec="snappy", asbytes=True)
    except (OSError, MemoryError, pyarrow.ArrowException) as error:
        raise UserError(f"damaged: a block cannot be decompressed: {error}") from error


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    stop = len(block) - 4 - 4 * int.from_bytes(block[-4:], "little")
    at, key = 0, b""
    while at < stop:
        shared, at = read_varint(block, at)
        further, at = read_varint(block, at)
        length, at = read_varint(block, at)
        key = key[:shared] + block[at : at + further]
        at += further + length
        yield key, block[at - length : at]


def _build_block(rows: list[tuple[bytes, bytes]]) -> bytes:
    content, restarts, previous = bytearray(), [0], b""
    for number, (key, value) in enumerate(rows):
        shared = 0
        if number % RESTART_INTERVAL == 0:
            restarts[number // RESTART_INTERVAL :] = [len(content)]
        else:
            while shared < min(len(key), len(previous)) and key[shared] == previous[shared]:
                shared += 1
        content += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        previous = key
    return bytes(content) + b"".join(at.to_bytes(4, "little") for at in [*restarts, len(restarts)])


def _with_trailer(block: bytes) -> bytes:
    kind = bytes([PLAIN])
    return block + kind + masked_crc(block, kind).to_bytes(4, "little")
