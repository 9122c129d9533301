"""The index of a TensorFlow checkpoint: a table of sorted keys with values, which are messages of protocol buffers.

The table has the format of LevelDB (github.com/google/leveldb/blob/main/doc/table_format.md). A block is a list of entries
(bytes shared with the previous key, further bytes of the key, bytes of the value, then these bytes), the places of the
entries that share nothing, and their number. A type byte (0: plain, 1: Snappy) and a masked CRC-32C follow. The index block
has the places of the other blocks. The last 48 bytes of the file have its place and a magic number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bertie.errors import UserError
from bertie.files.protobuf import read_varint, varint

MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
FOOTER_BYTES = 48
TRAILER_BYTES = 5  # type and checksum of a block
PLAIN, SNAPPY = 0, 1
RESTART_INTERVAL = 16
MAX_BYTES = 1 << 24
"""Largest size of an index, and of its keys and values. That of BERT-base has 9 kB, and damage could ask for any amount."""
MAX_ENTRIES = 100_000
"""Largest number of entries of an index."""
MAX_KEY = 1 << 14
"""Largest number of bytes of a key: each entry may repeat that of the entry before."""
MAX_SNAPPY_RATIO = 32  # Snappy's shortest instruction has 3 bytes and copies 64


def masked_crc(data: Any, type_byte: bytes = b"") -> int:
    """Return the CRC-32C of bytes as TensorFlow stores it: rotated, plus a constant."""
    import google_crc32c

    crc = google_crc32c.value(data)
    crc = google_crc32c.extend(crc, type_byte) if type_byte else crc
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def read_table(data: bytes) -> dict[bytes, bytes]:
    """Return the values of a table by their keys, in the order of the keys.

    Raises:
        UserError: The table is damaged, or larger than `MAX_BYTES`.
    """
    if len(data) < FOOTER_BYTES or data[-len(MAGIC) :] != MAGIC:
        raise UserError("truncated, or not the index of a TensorFlow checkpoint: it does not end in its magic number")
    footer = data[-FOOTER_BYTES:]
    first, at = _handle(footer, 0)
    index, _ = _handle(footer, at)
    _block(data, *first, MAX_BYTES)  # of no use here, but its checksum must be right
    table: dict[bytes, bytes] = {}
    left, stop, previous = MAX_BYTES, 0, None
    for last, place in _entries(_block(data, *index, MAX_BYTES)):
        (offset, size), _ = _handle(place, 0)
        if offset < stop:
            raise UserError("damaged: its blocks overlap")
        stop = offset + size + TRAILER_BYTES
        block = _block(data, offset, size, left)
        for key, value in _entries(block):
            if key > last or (previous is not None and key <= previous):
                raise UserError("damaged: its keys are not in order")
            table[key] = value
            previous = key
            left -= len(key) + len(value)
            if left < 0 or len(table) > MAX_ENTRIES:
                limits = f"{MAX_ENTRIES:,} entries, or more than {MAX_BYTES:,} bytes of keys and values"
                raise UserError(f"too large: it has more than {limits}")
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


def _block(data: bytes, offset: int, size: int, limit: int) -> bytes:
    """Return the content of a block of at most `limit` bytes."""
    end = offset + size
    if end + TRAILER_BYTES > len(data) - FOOTER_BYTES:
        raise UserError("truncated or damaged: a block lies outside of the file")
    content, kind = data[offset:end], data[end]
    if masked_crc(content, data[end : end + 1]) != int.from_bytes(data[end + 1 : end + TRAILER_BYTES], "little"):
        raise UserError(f"damaged: the checksum of the block at byte {offset} is wrong")
    if kind == SNAPPY:
        return _decompressed(content, limit)
    if kind != PLAIN:
        raise UserError(f"its block at byte {offset} is compressed with the unknown method {kind}")
    return content


def _decompressed(content: bytes, limit: int) -> bytes:
    import pyarrow

    size, _ = read_varint(content, 0)
    if size > limit or size > MAX_SNAPPY_RATIO * len(content):
        raise UserError(f"damaged: a compressed block of {len(content):,} bytes declares {size:,} bytes")
    try:
        return pyarrow.decompress(content, decompressed_size=size, codec="snappy", asbytes=True)
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"damaged: a block cannot be decompressed: {error}") from error


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    count = int.from_bytes(block[-4:], "little")
    stop = len(block) - 4 - 4 * count
    if stop < 0:
        raise UserError("damaged: a block is smaller than its list of places")
    at, key = 0, b""
    while at < stop:
        shared, at = read_varint(block, at)
        further, at = read_varint(block, at)
        length, at = read_varint(block, at)
        if shared > len(key) or further + length > stop - at:
            raise UserError("damaged: an entry lies outside of its block")
        if shared + further > MAX_KEY:
            raise UserError(f"damaged: a key has {shared + further:,} bytes")
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
