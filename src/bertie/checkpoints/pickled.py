"""Weights that torch has pickled. Only torch's weights_only reader reads them: it runs no code of the file."""

from __future__ import annotations

import io
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertie.checkpoints.mapped import Mapped
from bertie.checkpoints.pickle_check import REMEDY, require_small
from bertie.errors import UserError, naming

NESTED = ("state_dict", "model_state_dict", "model")
"""Keys under which training scripts save the weights beside other things."""
ZIP = b"PK\x03\x04"
LEGACY_PICKLES = 5
"""The pickles of a file of torch before 1.6: a magic number, a version, the machine, the objects, and the keys of tensors."""
MAX_PARTS = 100_000
SHARING = 4  # tensors may share memory (tied matrices), but not without limit


def read_pickled(path: Path, mapped: Mapped | None = None) -> dict[str, Tensor]:
    """Read the tensors of a file of `torch.save`. mapped: as in `read_weights`; files of torch before 1.6 are never mapped.

    Raises:
        UserError: The file is damaged, or it holds something else than named tensors, such as code.
    """
    try:
        with open(path, "rb") as file:
            zipped = file.read(len(ZIP)) == ZIP  # as torch decides
        _require_small(path, zipped)
        with warnings.catch_warnings(action="ignore"):
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped and mapped is not None)
    except UserError:
        raise
    except Exception as error:  # the reader meets any bytes: each of its steps has errors of its own
        raise UserError(_refusal(path, error)) from error
    for key in NESTED:
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not loaded:
        raise UserError(f"{path} holds {type(loaded).__name__}, not the tensors of a model by name")
    size = path.stat().st_size
    for name, value in loaded.items():
        _require_tensor(path, name, value, size)
    if sum(tensor.nbytes for tensor in loaded.values()) > SHARING * size:
        raise UserError(f"{path} is damaged: its tensors are larger than the file")
    if zipped and mapped is not None:
        mapped.add(loaded.values())
    return {name: tensor.detach() for name, tensor in loaded.items()}


def _require_small(path: Path, zipped: bool) -> None:
    """Check that reading a file takes no more memory than it has bytes, and that its pickles build tensors. Raises UserError."""
    with naming(f"{path} is not read"):
        if not zipped:
            with open(path, "rb") as file:
                for _ in range(LEGACY_PICKLES):
                    if file.tell() < path.stat().st_size:
                        require_small(file)
            return
        with zipfile.ZipFile(path) as file:
            if any(part.compress_type != zipfile.ZIP_STORED for part in file.infolist()):
                raise UserError("it is compressed, which torch never writes: save the weights again")
        reader: Any = torch._C.PyTorchFileReader(str(path))  # its view of the file counts: two directories may be in it
        names = reader.get_all_records()
        if len(names) > MAX_PARTS:
            raise UserError(f"it has {len(names):,} parts")
        if sum(map(reader.get_record_size, names)) > path.stat().st_size:
            raise UserError("its parts are larger than the file")
        require_small(io.BytesIO(reader.get_record("data.pkl")))


def _require_tensor(path: Path, name: Any, value: Any, size: int) -> None:
    if not isinstance(name, str) or not isinstance(value, Tensor):
        raise UserError(f"{path}: {str(name)[:200]} is {type(value).__name__}: expected tensors by name")
    plain = value.layout == torch.strided and value.device.type == "cpu" and not value.is_quantized
    if not plain:
        raise UserError(f"{path}: {name[:200]} is a sparse, quantized or empty tensor: save it as a dense one")
    if value.nbytes > size:
        raise UserError(f"{path} is damaged: {name[:200]} has {value.nbytes:,} bytes and the file {size:,}")


def _refusal(path: Path, error: Exception) -> str:
    """Return one line that says why torch does not read a file."""
    text = " ".join(str(error).split())
    if "GLOBAL" in text or "nsupported" in text:
        found = re.search(r"GLOBAL ([\w.]+)", text)
        what = f"holds more than tensors ({found[1][:80]})" if found else "is damaged, or holds more than tensors"
        return f"{path} {what}, {REMEDY}"
    return f"{path} is damaged: torch cannot read it ({type(error).__name__}: {text.split('rror: ')[-1][:120]})"
