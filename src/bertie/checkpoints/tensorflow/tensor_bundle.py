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

from bertie import storage, untrusted
from bertie.checkpoints.tensorflow.entries import (
    DTYPES,
    SLICE_MARK,
    STRING,
    BundleEntry,
    decoded,
    entry_message,
    full_extents,
    parse_entry,
    printed,
    slice_key,
)
from bertie.checkpoints.tensorflow.table import MAX_BYTES, masked_crc, read_table, write_table
from bertie.errors import UserError, naming
from bertie.files.protobuf import Message, bytes_field, read_varint, varint_field

VERSION = 1  # of the format, the only one so far


@dataclass(frozen=True, eq=False)
class TensorBundle:
    """The index of a checkpoint, checked against the sizes of its data files. `read` and `strings` read tensors."""

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
            raise UserError(f"{self.prefix}.index: {entry.label} is {entry.kind}; bertie reads {known}")
        if not entry.slices:
            return self._tensor(entry)
        whole = torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
        covered = torch.zeros(entry.shape, dtype=torch.bool)
        for extents in entry.slices:
            region = tuple(slice(start, start + length) for start, length in full_extents(extents, entry.shape))
            if covered[region].any():
                raise UserError(f"{self.prefix}.index: damaged: the slices of {entry.label} overlap")
            covered[region] = True
            whole[region] = self._tensor(self.parts[slice_key(name, extents)])
        return whole  # all is covered: the slices do not overlap and are as large as the whole

    def strings(self, name: str) -> list[bytes]:
        """Read the elements of a tensor of strings.

        Raises:
            UserError: It has another dtype, or its bytes are damaged.
        """
        entry, lengths = self.entries[name], []
        if entry.dtype != STRING or entry.slices or entry.size > MAX_BYTES:
            wrong = f"expected strings of at most {MAX_BYTES:,} bytes, found {entry.size:,} bytes of {entry.kind}"
            raise UserError(f"{self.prefix}.index: {entry.label}: {wrong}")
        buffer = np.empty(entry.size, np.uint8)
        self._fill(buffer, entry)
        data, at = buffer.tobytes(), 0
        with naming(self._data(entry)), naming(entry.label):
            for _ in range(math.prod(entry.shape)):
                length, at = read_varint(data, at)
                lengths.append(length)
            # The checksum is that of the lengths as fixed numbers, of their own checksum, and of the strings.
            plain = b"".join(length.to_bytes(4 if length < 1 << 32 else 8, "little") for length in lengths)
            mark, at = data[at : at + 4], at + 4
            if at + sum(lengths) != entry.size or mark != masked_crc(plain).to_bytes(4, "little"):
                raise UserError("damaged: the lengths of its strings are wrong")
            if masked_crc(plain + mark + data[at:]) != entry.crc:
                raise UserError("damaged: its checksum is wrong")
        stops = np.cumsum([at, *lengths]).tolist()
        return [data[start:stop] for start, stop in itertools.pairwise(stops)]

    def _tensor(self, entry: BundleEntry) -> Tensor:
        tensor = torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
        data = _as_bytes(tensor)
        self._fill(data, entry)
        if masked_crc(data) != entry.crc:
            raise UserError(f"{self._data(entry)}: damaged: the checksum of {entry.label} is wrong")
        if tensor.dtype == torch.bool and data.size and data.max() > 1:
            raise UserError(f"{self._data(entry)}: damaged: {entry.label} holds other values than true and false")
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
        if b"" not in table:
            raise UserError('damaged: it has no header (the key "")')
        header = Message(table.pop(b""))
        _require_format(header)
        entries, parts = {}, {}
        for key, value in table.items():
            label = printed(key)
            with naming(label):
                entry = parse_entry(label, Message(value))
            if key.startswith(SLICE_MARK):
                parts[key] = entry
            else:
                entries[decoded(key)] = entry
        bundle = TensorBundle(prefix, header.integer(1), entries, parts)
        _require_slices(bundle)
    _require_places(bundle)
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
            rows[name.encode()] = entry_message(tensor, offset, len(data), masked_crc(data))
            offset += len(data)
    storage.write_atomic(Path(f"{prefix}.index"), write_table(rows))


def _as_bytes(tensor: Tensor) -> np.ndarray:
    """Return the bytes of a contiguous tensor, without a copy."""
    return tensor.reshape(-1).view(torch.uint8).numpy()


def _data_path(prefix: Path, shard: int, shards: int) -> Path:
    return Path(f"{prefix}.data-{shard:05d}-of-{shards:05d}")


def _require_format(header: Message) -> None:
    if header.integer(2) != 0:
        raise UserError("its numbers are big-endian; bertie reads little-endian checkpoints")
    oldest = max((Message(part).integer(2) for part in header.parts(3)), default=0)
    if oldest > VERSION:
        raise UserError(f"its format needs a reader of version {oldest}; bertie reads version {VERSION}")
    if not 1 <= header.integer(1) <= 99999:
        raise UserError(f"damaged: it names {header.integer(1)} data files")


def _require_slices(bundle: TensorBundle) -> None:
    """Check that each partitioned variable has its slices, and each slice its variable. Raises UserError."""
    used: set[bytes] = set()
    for name, entry in bundle.entries.items():
        elements = 0
        for extents in entry.slices:
            with naming(entry.label):
                if len(extents) != len(entry.shape):
                    raise UserError("damaged: a slice has another number of dimensions")
                key, full = slice_key(name, extents), full_extents(extents, entry.shape)
                part = bundle.parts.get(key)
                if part is None or key in used:
                    raise UserError("damaged: a slice is missing, or listed twice")
                inside = all(0 <= at <= at + n <= size for (at, n), size in zip(full, entry.shape, strict=True))
                if not inside or part.shape != tuple(n for _, n in full) or part.dtype != entry.dtype or part.slices:
                    raise UserError("damaged: a slice does not fit the variable")
            elements += math.prod(part.shape)
            used.add(key)
        if entry.slices and elements != math.prod(entry.shape):
            raise UserError(
                f"{entry.label}: damaged: its slices have {elements:,} of {math.prod(entry.shape):,} values"
            )
    if unused := bundle.parts.keys() - used:
        raise UserError(f"damaged: the slice {printed(min(unused))} belongs to no variable")


def _require_places(bundle: TensorBundle) -> None:
    """Check that all bytes are in the data files, and that none belong to two tensors. Raises UserError."""
    sizes: dict[int, int] = {}
    stored = [entry for entry in (*bundle.entries.values(), *bundle.parts.values()) if not entry.slices]
    stop, shard = 0, -1
    for entry in sorted(stored, key=lambda entry: (entry.shard, entry.offset, entry.size)):
        if entry.shard >= bundle.shards:
            number = f"the data file {entry.shard}, and there are {bundle.shards}"
            raise UserError(f"{bundle.prefix}.index: {entry.label}: damaged: it is in {number}")
        path = _data_path(bundle.prefix, entry.shard, bundle.shards)
        if entry.shard not in sizes:
            try:
                untrusted.require_content(path, None)
                sizes[entry.shard] = path.stat().st_size
            except OSError as error:
                raise UserError(f"{path} cannot be read: {error.strerror or error}: restore it") from error
        if entry.shard != shard:
            stop, shard = 0, entry.shard
        if entry.offset + entry.size > sizes[entry.shard]:
            raise UserError(
                f"{path}: truncated, or {bundle.prefix.name}.index is damaged: it has {sizes[shard]:,} bytes, and "
                f"{entry.label} needs the bytes {entry.offset:,} to {entry.offset + entry.size:,}"
            )
        if entry.size and entry.offset < stop:
            raise UserError(f"{bundle.prefix}.index: {entry.label}: damaged: its bytes belong to another tensor, too")
        stop = max(stop, entry.offset + entry.size)
