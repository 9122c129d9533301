"""The files with the weights of a model folder: safetensors or pickled by torch, whole or in shards.

Every tensor is read into memory of its own, so that reading takes no more memory than the weights, and a file that changes
later changes no model. `bertie convert`, which only passes tensors on, maps the files instead (`Mapped`).
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from bertie import storage, untrusted
from bertie.checkpoints.mapped import Mapped
from bertie.checkpoints.other_weights import other_weights
from bertie.checkpoints.pickled import read_pickled
from bertie.checkpoints.tensorflow import folder as google
from bertie.errors import MachineError, UserError

SAFETENSORS, PICKLED = "model.safetensors", "pytorch_model.bin"
INDEX, TENSORFLOW_INDEX = ".index.json", ".index"
WHOLE = (SAFETENSORS, f"{SAFETENSORS}{INDEX}", PICKLED, f"{PICKLED}{INDEX}")
"""Names of weights, in the order in which transformers looks for them."""
ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", ("adapter_model.safetensors", "adapter_model.bin")
NUMBERS = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8},
    "BOOL": torch.bool,
}
"""dtypes of safetensors that weights and positions have."""
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)  # accepted dtypes of weights
MAX_HEADER = 32 * 2**20  # bytes; that of a model with 100,000 tensors has 12 MB
LARGE = 2**20  # bytes of a tensor after which mapped memory is released
MAX_TENSORS = 100_000
MAX_SHARDS = 1000
MAX_NAME = 200  # characters of the name of a file


def weights_file(folder: Path) -> Path:
    """Return the file with the weights that transformers would load, or the index of its shards.

    Args:
        folder: A model folder, or the prefix of a TensorFlow checkpoint, as `find_model_folder` returns it.

    Raises:
        UserError: There is none that bertie reads, or an adapter would change them.
    """
    if not folder.is_dir():
        beside = [path.name for path in folder.parent.iterdir() if path.name.startswith(f"{folder.name}.")]
        untrusted.require_inside(folder.parent, beside)
        return Path(f"{folder}{TENSORFLOW_INDEX}")
    if (folder / ADAPTER).is_file() and any((folder / name).exists() for name in ADAPTER_WEIGHTS):
        raise UserError(
            f"{folder / ADAPTER} describes an adapter, which bertie does not apply: merge it with PEFT "
            "(model.merge_and_unload().save_pretrained(OUT)), or remove the adapter's files to use the base model alone"
        )
    if (named := _named(folder)) is not None:
        return folder / named
    for name in WHOLE:
        if (folder / name).is_file():
            return _inside(folder, name, str(folder))
    if (folder / ADAPTER).is_file():
        raise UserError(f"{folder / ADAPTER} describes an adapter, and the folder lacks the weights of its base model")
    if problem := other_weights(folder):
        raise UserError(problem)
    raise UserError(f"{folder / SAFETENSORS} is missing: bertie reads {SAFETENSORS}, {PICKLED}, and both in shards")


def names_to_try(folder: Path, tries: int) -> list[str]:
    """Return the names of the files that may be the weights of a folder that is downloaded step by step.

    Args:
        folder: The folder, with its small files, and the larger ones that were returned before.
        tries: How many names `weights_file` may look for, up to the first that is there. An index adds its shards.

    Raises:
        UserError: config.json or an index is damaged.
    """
    if (folder / ADAPTER).is_file() and any((folder / name).is_file() for name in ADAPTER_WEIGHTS):
        return []  # it is refused
    candidates = WHOLE[:tries] if (named := _named(folder)) is None else (named,)
    found = next((i for i, name in enumerate(candidates) if (folder / name).is_file()), None)
    if found is None:
        return list(candidates)
    shards = set(shard_names(folder / candidates[found]).values()) if candidates[found].endswith(INDEX) else ()
    return [*candidates[: found + 1], *shards]


def _named(folder: Path) -> str | None:
    """Return the name of the weights in config.json; None if it names none. Raises UserError if it is no file's name."""
    path = folder / "config.json"
    named = storage.read_json(path).get("transformers_weights") if path.is_file() else None
    if named is None:
        return None
    if not isinstance(named, str) or not named.endswith((".safetensors", f".safetensors{INDEX}")):
        raise UserError(f"{path}: transformers_weights is {str(named)[:60]!r}: it must name a file")
    return _inside(folder, named, f"{path}: transformers_weights").name


def weights_files(place: Path) -> tuple[Path, ...]:
    """Return the files with the weights of a model. Raises UserError as `weights_file`.

    Of a TensorFlow checkpoint, this is the index, which has the checksums of all tensors.
    """
    path = weights_file(place)
    return tuple(_shards(path)) if path.name.endswith(INDEX) else (path,)


def weights_fingerprint(files: Iterable[Path]) -> str:
    """Return the SHA-256 checksums of the files with the weights of a model."""
    return " ".join(map(storage.sha256, files))


def read_weights(folder: Path, mapped: Mapped | None = None) -> dict[str, Tensor]:
    """Read the tensors of a model folder or of a TensorFlow checkpoint, under the names in its files or Hugging Face's.

    Args:
        folder: As in `weights_file`.
        mapped: If given, tensors are mapped where their format allows it, and noted there.

    Returns:
        The tensors.

    Raises:
        UserError: As `weights_file`, or a file is damaged, or a tensor has non-finite values or an unsupported dtype.
    """
    path = weights_file(folder)
    if path.suffix == TENSORFLOW_INDEX:
        tensors = google.read_weights(folder)
        _require_valid(path, tensors)
        return tensors
    return _read_shards(path, mapped) if path.name.endswith(INDEX) else read_tensors(path, mapped)


def shard_names(index: Path) -> dict[str, str]:
    """Return the file name of the shard of each tensor, from an index. Raises UserError if the index is damaged."""
    placed = storage.read_json(index).get("weight_map")
    if not isinstance(placed, dict) or not placed or not all(isinstance(name, str) for name in placed.values()):
        raise UserError(f"{index} is damaged: weight_map must name the file of each tensor")
    if (count := len(set(placed.values()))) > MAX_SHARDS:
        raise UserError(f"{index} is damaged: it names {count:,} files")
    return placed


def _shards(index: Path) -> list[Path]:
    paths = [_inside(index.parent, name, f"{index}: weight_map") for name in sorted(set(shard_names(index).values()))]
    if missing := [path.name for path in paths if not path.is_file()]:
        raise UserError(f"{index} names {missing[0]}, which is missing: restore it")
    return paths


def _read_shards(index: Path, mapped: Mapped | None) -> dict[str, Tensor]:
    placed, paths = shard_names(index), _shards(index)
    tensors: dict[str, Tensor] = {}
    for path in paths:
        found = read_tensors(path, mapped)
        if absent := [name for name, file in placed.items() if file == path.name and name not in found]:
            raise UserError(f"{index} is damaged: {absent[0][:200]} is not in {path.name}")
        if twice := tensors.keys() & found.keys():
            raise UserError(f"{index} is damaged: two of its files hold {min(twice)[:200]}")
        tensors |= found
    return tensors


def _inside(folder: Path, name: str, where: str) -> Path:
    """Return the path of a file of a folder. Raises UserError if it is elsewhere."""
    if Path(name).name != name or name in ("", ".", "..") or len(name) > MAX_NAME:
        raise UserError(f"{where} names {name[:200]!r}: it must be a file in the folder")
    untrusted.require_inside(folder, [name])
    return folder / name


def read_tensors(path: Path, mapped: Mapped | None = None) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file, or of a file of `torch.save`. mapped: as in `read_weights`.

    Raises:
        UserError: The file is missing or damaged, or a tensor has non-finite values or an unsupported dtype.
    """
    if not path.is_file():
        raise UserError(f"{path} is missing: restore it")
    untrusted.require_content(path, None)
    read = _read_safetensors if path.suffix == ".safetensors" else read_pickled
    tensors = read(path, mapped)
    _require_valid(path, tensors, mapped)
    return tensors


def _require_valid(path: Path, tensors: dict[str, Tensor], mapped: Mapped | None = None) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() or tensor.is_complex():  # integers may be position ids, which are ignored
            require_dtype(path, name, tensor)
            if tensor.numel() and not all(map(torch.isfinite, torch.aminmax(tensor))):  # needs no second tensor
                raise UserError(f"{path} is damaged: {name} holds NaN or infinity")
        if mapped is not None and tensor.nbytes > LARGE:
            mapped.release()


def _read_safetensors(path: Path, mapped: Mapped | None) -> dict[str, Tensor]:
    try:
        with open(path, "rb") as file:
            start = file.read(8)
        if len(start) < 8 or struct.unpack("<Q", start)[0] > MAX_HEADER:
            raise ValueError("it lacks a header of a usual size")
        opened: Any = safetensors.safe_open(path, "pt")
        with opened:  # it checks all places
            if len(opened.keys()) > MAX_TENSORS:
                raise ValueError(f"it has more than {MAX_TENSORS:,} tensors")
            if mapped is not None:
                tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
                mapped.add(tensors.values())
                return tensors
            tensors = {name: _empty(opened, name) for name in opened.keys()}  # noqa: SIM118 - no mapping
        with open(path, "rb", buffering=0) as file:
            size = struct.unpack("<Q", file.read(8))[0]
            header = json.loads(file.read(size))
            for name, tensor in tensors.items():
                if header[name]["dtype"] in NUMBERS:
                    file.seek(8 + size + header[name]["data_offsets"][0])
                    _fill(tensor, file)
        return tensors
    except (
        safetensors.SafetensorError,
        OSError,
        ValueError,
        TypeError,
        AttributeError,
        RuntimeError,
        MemoryError,
    ) as error:
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            raise MachineError(f"{path} does not fit into memory: it has {path.stat().st_size:,} bytes") from error
        raise UserError(f"{path} is damaged: {_line(error)}") from error


def _empty(opened: Any, name: str) -> Tensor:
    """Return memory for a tensor of an open file, or the tensor itself if its dtype is none of `NUMBERS`."""
    place = opened.get_slice(name)
    kind = NUMBERS.get(place.get_dtype())
    return opened.get_tensor(name) if kind is None else torch.empty(place.get_shape(), dtype=kind, device="cpu")


def _fill(tensor: Tensor, file: io.RawIOBase) -> None:
    """Read a tensor from the place of a file. Raises OSError if the file ends before it does."""
    rest = tensor.reshape(-1).view(torch.uint8).numpy().data
    while rest:
        if not (count := file.readinto(rest)):
            raise OSError("the file has become shorter")
        rest = rest[count:]


def _line(error: Exception) -> str:
    """Return the first line of a message, shortened."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def require_dtype(path: Path, name: str, tensor: Tensor) -> None:
    """Check that a tensor has a dtype of weights. Raises UserError."""
    if tensor.dtype not in DTYPES:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise UserError(f"{path}: {name} is {kind}, which is not supported: give float32, float16 or bfloat16")
