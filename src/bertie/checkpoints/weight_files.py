"""The files with the weights of a model folder: safetensors or pickled by torch, whole or in shards.

Every tensor is read into memory of its own, so that a file that changes later changes no model. `bertie convert`, which only
passes tensors on, maps the files instead: the system reads a tensor when it is used, and may drop it again.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from bertie.base import storage, untrusted
from bertie.base.errors import MachineError, UserError, first_line
from bertie.checkpoints.pickled import read_pickled
from bertie.files.model_folder import ModelFolder

SAFETENSORS, PICKLED = "model.safetensors", "pytorch_model.bin"
INDEX, TENSORFLOW_INDEX = ".index.json", ".index"
WHOLE = (SAFETENSORS, f"{SAFETENSORS}{INDEX}", PICKLED, f"{PICKLED}{INDEX}")
"""Names of weights, in the order in which transformers looks for them."""
ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", ("adapter_model.safetensors", "adapter_model.bin")
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)  # accepted dtypes of weights


def weights_file(folder: ModelFolder) -> Path:
    """Return the file with the weights that transformers would load, or the index of its shards.

    Raises:
        UserError: There is none that bertie reads, or an adapter would change them.
    """
    if folder.has(ADAPTER) and any((folder / name).exists() for name in ADAPTER_WEIGHTS):
        raise UserError(
            f"{folder / ADAPTER} describes an adapter, which bertie does not apply: merge it with PEFT "
            "(model.merge_and_unload().save_pretrained(OUT)), or remove the adapter's files to use the base model alone"
        )
    named = folder.json("config.json").get("transformers_weights")
    if named is not None:
        if not isinstance(named, str) or not named.endswith((".safetensors", f".safetensors{INDEX}")):
            raise UserError(
                f"{folder / 'config.json'}: transformers_weights is {str(named)[:60]!r}: it must name a file"
            )
        return _inside(folder, named, f"{folder / 'config.json'}: transformers_weights")
    for name in WHOLE:
        if folder.has(name):
            return _inside(folder, name, str(folder))
    others = [
        path.name for path in folder.path.iterdir() if path.suffix in (".h5", ".msgpack", ".gguf", ".pt", ".onnx")
    ]
    also = f", and bertie does not read {others[0]}" if others else ""
    raise UserError(
        f"{folder / SAFETENSORS} is missing{also}: bertie reads {SAFETENSORS} or {PICKLED}, whole or in shards"
    )


def weights_files(folder: Path | ModelFolder) -> tuple[Path, ...]:
    """Return the files with the weights of a model. Raises UserError as `weights_file`.

    Args:
        folder: Its folder; or the prefix of a TensorFlow checkpoint, whose index has the checksums of all tensors.
    """
    if isinstance(folder, Path) and not folder.is_dir():
        return (Path(f"{folder}{TENSORFLOW_INDEX}"),)
    folder = ModelFolder.of(folder)
    path = weights_file(folder)
    if not path.name.endswith(INDEX):
        return (path,)
    return tuple(_inside(folder, name, f"{path}: weight_map") for name in sorted({*_placed(folder, path).values()}))


def weights_fingerprint(files: Iterable[Path]) -> str:
    """Return the SHA-256 checksums of the files with the weights of a model."""
    return " ".join(map(storage.sha256, files))


def read_weights(folder: ModelFolder, mapped: bool = False) -> dict[str, Tensor]:
    """Read the tensors of a model folder, under the names in its files.

    Args:
        folder: The folder.
        mapped: Whether tensors are mapped, where their format allows it. The files must not change while they are in use.

    Raises:
        UserError: As `weights_file`, or a file is damaged, or a tensor has non-finite values or an unsupported dtype.
    """
    path = weights_file(folder)
    if not path.name.endswith(INDEX):
        return read_tensors(path, mapped)
    placed = _placed(folder, path)
    tensors: dict[str, Tensor] = {}
    for shard in weights_files(folder):
        held = read_tensors(shard, mapped)
        if absent := [name for name, file in placed.items() if file == shard.name and name not in held]:
            raise UserError(f"{path} is damaged: {absent[0][:200]} is not in {shard.name}")
        tensors |= held
    return tensors


def _placed(folder: ModelFolder, index: Path) -> dict[str, str]:
    """Return the file name of the shard of each tensor, from an index. Raises UserError if the index is damaged."""
    placed = folder.json(index.name).get("weight_map")
    if not isinstance(placed, dict) or not placed or not all(isinstance(name, str) for name in placed.values()):
        raise UserError(f"{index} is damaged: weight_map must name the file of each tensor")
    return placed


def _inside(folder: ModelFolder, name: str, where: str) -> Path:
    """Return the path of a file of a folder. Raises UserError if it is elsewhere."""
    if Path(name).name != name or name in ("", ".", ".."):
        raise UserError(f"{where} names {name[:200]!r}: it must be a file in the folder")
    untrusted.require_inside(folder.path, [name])
    return folder / name


def read_tensors(path: Path, mapped: bool = False) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file, or of a file of `torch.save`. mapped: as in `read_weights`.

    Raises:
        UserError: The file is missing or damaged, or a tensor has non-finite values or an unsupported dtype.
    """
    if not path.is_file():
        raise UserError(f"{path} is missing: restore it")
    untrusted.require_content(path, None)
    try:
        tensors = _read_safetensors(path, mapped) if path.suffix == ".safetensors" else read_pickled(path, mapped)
    except (safetensors.SafetensorError, OSError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        if "can't allocate memory" in str(error):
            raise MachineError(f"{path} does not fit into memory: it has {path.stat().st_size:,} bytes") from error
        raise UserError(f"{path} is damaged: {first_line(error)[:200]}") from error
    require_valid(path, tensors)
    return tensors


def _read_safetensors(path: Path, mapped: bool) -> dict[str, Tensor]:
    opened: Any = safetensors.safe_open(path, "pt")
    with opened:  # it checks all places
        names = opened.keys()
        return {name: opened.get_tensor(name) if mapped else opened.get_tensor(name).clone() for name in names}


def require_valid(path: Path, tensors: dict[str, Tensor]) -> None:
    """Check that weights are finite, and that their dtypes are supported. Raises UserError."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() or tensor.is_complex():  # integers may be position ids, which are ignored
            require_dtype(path, name, tensor)
            if tensor.numel() and not all(map(torch.isfinite, torch.aminmax(tensor))):  # needs no second tensor
                raise UserError(f"{path} is damaged: {name} holds NaN or infinity")


def require_dtype(path: Path, name: str, tensor: Tensor) -> None:
    """Check that a tensor has a dtype of weights. Raises UserError."""
    if tensor.dtype not in DTYPES:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise UserError(f"{path}: {name} is {kind}, which is not supported: give float32, float16 or bfloat16")
