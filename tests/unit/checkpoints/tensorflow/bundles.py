"""TensorFlow checkpoints made by hand: any number of data files, slices, blocks and kinds of compression."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import google_crc32c
import pyarrow
import torch
from torch import Tensor

NUMBERS = {
    **{torch.float32: 1, torch.float64: 2, torch.int32: 3, torch.uint8: 4, torch.int16: 5, torch.int8: 6},
    **{torch.int64: 9, torch.bool: 10, torch.bfloat16: 14, torch.float16: 19},
}
MAGIC = bytes.fromhex("57fb808b247547db")


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    return varint_of(value) if value > 127 else bytes([value])


def varint_of(value: int) -> bytes:
    return bytes([value & 127 | 128]) + (varint_of(value >> 7) if value >> 7 > 127 else bytes([value >> 7]))


def masked(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8 & 0xFFFFFFFF).to_bytes(4, "little")


def numbers(*values: int) -> bytes:
    """Fields 1, 2, … of a message."""
    return b"".join(varint(place << 3) + varint(value) for place, value in enumerate(values, 1) if value)


def nested(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def entry(
    dtype: int,
    shape: tuple[int, ...],
    shard: int = 0,
    offset: int = 0,
    size: int = 0,
    crc: bytes = b"",
    slices: list[list[tuple[int, int]]] | None = None,
) -> bytes:
    """A BundleEntryProto."""
    content = numbers(dtype) + nested(2, b"".join(nested(2, numbers(length)) for length in shape))
    content += b"".join(varint(place << 3) + varint(value) for place, value in ((3, shard), (4, offset), (5, size)))
    for extents in slices or []:
        parts = (numbers(start) + (b"" if length < 0 else varint(16) + varint(length)) for start, length in extents)
        content += nested(7, b"".join(nested(1, part) for part in parts))
    return content + (bytes([6 << 3 | 5]) + crc if crc else b"")


def block(rows: list[tuple[bytes, bytes]], restarts: int = 16) -> bytes:
    content, places, previous = b"", [], b""
    for number, (key, value) in enumerate(rows):
        shared = 0
        if number % restarts == 0:
            places.append(len(content))
        else:
            while shared < min(len(key), len(previous)) and key[shared] == previous[shared]:
                shared += 1
        content += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        previous = key
    places = places or [0]
    return content + b"".join(place.to_bytes(4, "little") for place in [*places, len(places)])


def table(
    rows: dict[bytes, bytes], per_block: int = 5, snappy: bool = False, changed: Callable[[bytes], bytes] = lambda b: b
) -> bytes:
    """An index. `changed` replaces the content of the data blocks before their checksums are made."""
    data = b""

    def add(content: bytes) -> bytes:
        nonlocal data
        kind = b"\0"
        if snappy:
            content, kind = pyarrow.compress(content, codec="snappy", asbytes=True), b"\1"
        place = varint(len(data)) + varint(len(content))
        data += content + kind + masked(content + kind)
        return place

    ordered = sorted(rows.items())
    groups = [ordered[start : start + per_block] for start in range(0, len(ordered), per_block)]
    index = [(group[-1][0], add(changed(block(group)))) for group in groups]
    footer = add(block([])) + add(block(index, restarts=1))
    return data + footer.ljust(40, b"\0") + MAGIC


def ordered_number(value: int) -> bytes:
    """A signed number in the order of its bytes, for small numbers."""
    if -64 <= value < 64:
        return bytes([0x80 ^ value & 0xFF])
    assert 0 <= value < 1 << 13
    return (0xC000 | value).to_bytes(2, "big")


def slice_key(name: str, extents: list[tuple[int, int]]) -> bytes:
    places = b"".join(ordered_number(number) for extent in extents for number in extent)
    return b"\0" + name.encode() + b"\0\1" + bytes([1, len(extents)]) + places


def string_bytes(*values: bytes) -> tuple[bytes, bytes]:
    """The bytes of a tensor of strings, and its checksum."""
    lengths = b"".join(len(value).to_bytes(4, "little") for value in values)
    rest = masked(lengths) + b"".join(values)
    return b"".join(varint(len(value)) for value in values) + rest, masked(lengths + rest)


@dataclass
class Bundle:
    """A checkpoint to write, whose rows and data can be changed."""

    shards: int = 1
    header: bytes = b""
    rows: dict[bytes, bytes] = field(default_factory=dict)
    data: list[bytearray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.data = [bytearray() for _ in range(self.shards)]
        self.header = numbers(self.shards) + nested(3, numbers(1))

    def store(self, content: bytes, shard: int) -> tuple[int, int, int]:
        """Shard, offset and size."""
        self.data[shard] += content
        return shard, len(self.data[shard]) - len(content), len(content)

    def add(self, name: str | bytes, tensor: Tensor, shard: int = 0) -> None:
        content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        key = name.encode() if isinstance(name, str) else name
        place = self.store(content, shard)
        self.rows[key] = entry(NUMBERS[tensor.dtype], tuple(tensor.shape), *place, masked(content))

    def add_strings(self, name: str, *values: bytes, scalar: bool = False) -> None:
        content, crc = string_bytes(*values)
        self.rows[name.encode()] = entry(7, () if scalar else (len(values),), *self.store(content, 0), crc)

    def add_slices(self, name: str, tensor: Tensor, slices: list[list[tuple[int, int]]]) -> None:
        """Add a partitioned variable, with its slices in turn in the data files."""
        for number, extents in enumerate(slices):
            full = [(0, size) if length < 0 else (at, length) for (at, length), size in zip(extents, tensor.shape)]  # noqa: B905
            part = tensor[tuple(slice(at, at + length) for at, length in full)]
            self.add(slice_key(name, extents), part, number % self.shards)
        self.rows[name.encode()] = entry(NUMBERS[tensor.dtype], tuple(tensor.shape), slices=slices)

    def write(self, prefix: Path, index: bytes | None = None, snappy: bool = False) -> Path:
        rows = {b"": self.header, **self.rows}
        Path(f"{prefix}.index").write_bytes(table(rows, snappy=snappy) if index is None else index)
        for shard, content in enumerate(self.data):
            Path(f"{prefix}.data-{shard:05d}-of-{self.shards:05d}").write_bytes(content)
        return prefix


def example(seed: int = 0) -> tuple[Bundle, dict[str, Tensor]]:
    """A checkpoint in two data files with all dtypes, slices in one and two dimensions, and strings; and its tensors."""
    random = torch.Generator().manual_seed(seed)
    floats = torch.randn(12, 8, generator=random)
    tensors = {f"model/{dtype}".replace("torch.", ""): (floats[:3] * 9).to(dtype) for dtype in NUMBERS}
    tensors["model/bool"] = floats[:3] > 0
    tensors |= {"scalar": torch.tensor(7), "empty": torch.empty(0, 3)}
    bundle = Bundle(shards=2)
    for number, (name, tensor) in enumerate(tensors.items()):
        bundle.add(name, tensor, number % 2)
    bundle.add_slices("rows", floats, [[(0, 5), (0, -1)], [(5, 7), (0, -1)]])
    bundle.add_slices("tiles", floats, [[(y, 6), (x, 4)] for y in (0, 6) for x in (0, 4)])
    bundle.add_slices("long", torch.arange(200), [[(0, 100)], [(100, 100)]])
    bundle.add_strings("words", b"one", b"", b"three" * 50)
    return bundle, tensors | {"rows": floats, "tiles": floats, "long": torch.arange(200)}


def object_graph(variables: dict[str, str], slots: tuple[str, ...] = ()) -> bytes:
    """TensorFlow 2's object graph: the names of variables by their entries, and the entries that belong to the optimizer."""
    nodes = [
        nested(2, nested(1, b"VARIABLE_VALUE") + nested(2, name.encode()) + nested(3, entry_name.encode()))
        for entry_name, name in variables.items()
    ]
    places = [list(variables).index(slot) for slot in slots]
    owner = b"".join(nested(3, varint(2 << 3 | 2) + b"\1m" + varint(3 << 3) + varint(place)) for place in places)
    return b"".join(nested(1, node) for node in [*nodes, owner])
