"""Weights that torch has pickled. Only torch's weights_only reader reads them: it runs no code of the file.

It had holes, so only pickles pass that are made of the steps and name the functions and classes that weights need.
"""

from __future__ import annotations

import io
import pickletools
import warnings
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from bertie.base.errors import UserError, first_line, naming

NESTED = ("state_dict", "model_state_dict", "model")
"""Keys under which training scripts save the weights beside other things."""
REMEDY = "and bertie runs no code of a file: load it where you trust it, and save its state_dict as safetensors"
ZIP = b"PK\x03\x04"
LEGACY_PICKLES = 5
"""The pickles of a file of torch before 1.6: a magic number, a version, the machine, the objects, and the keys of tensors."""
STEPS = frozenset(
    [
        *("PROTO", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "BINFLOAT", "LONG1"),
        *("BINUNICODE", "SHORT_BINSTRING", "EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET", "EMPTY_TUPLE", "TUPLE", "TUPLE1"),
        *("TUPLE2", "TUPLE3", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "BINGET", "LONG_BINGET", "BINPUT"),
        *("LONG_BINPUT", "GLOBAL", "REDUCE", "BUILD", "BINPERSID"),
    ]
)
"""Steps of pickles that make plain values and call functions by name."""
FUNCTIONS = frozenset(
    [
        *(f"torch._utils._rebuild_{name}" for name in ("tensor", "tensor_v2", "tensor_v3", "parameter")),
        *("collections.OrderedDict", "collections.Counter", "torch.Size", "torch.device", "__builtin__.set"),
    ]
)
"""Functions that files of weights call."""
CLASSES = ("torch", "torch.cuda", "torch.storage")
"""Modules of the dtypes and storages that they name: torch's reader allows only these of them."""


def read_pickled(path: Path, mapped: bool = False) -> dict[str, Tensor]:
    """Read the tensors of a file of `torch.save`. mapped: as in `read_weights`; files of torch before 1.6 are never mapped.

    Raises:
        UserError: The file is damaged, or it holds something else than named tensors, such as code.
    """
    try:
        with open(path, "rb") as file:
            zipped = file.read(len(ZIP)) == ZIP  # as torch decides
        with naming(f"{path} is not read"):
            _require_tensors(path, zipped)
        with warnings.catch_warnings(action="ignore"):
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped and mapped)
    except UserError:
        raise
    except Exception as error:  # the reader meets any bytes: each of its steps has errors of its own
        problem = f"{type(error).__name__}: {first_line(error)[:120]}"
        raise UserError(f"{path} is damaged: torch cannot read it ({problem})") from error
    for key in NESTED:
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not loaded:
        raise UserError(f"{path} holds {type(loaded).__name__}, not the tensors of a model by name")
    for name, value in loaded.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise UserError(f"{path}: {str(name)[:200]} is {type(value).__name__}: expected tensors by name")
    return {name: tensor.detach() for name, tensor in loaded.items()}


def _require_tensors(path: Path, zipped: bool) -> None:
    """Check the pickles of a file as torch finds them. Raises UserError, ValueError."""
    if zipped:
        reader: Any = torch._C.PyTorchFileReader(str(path))  # two directories may be in a file: torch's view counts
        require_plain(io.BytesIO(reader.get_record("data.pkl")))
        return
    with open(path, "rb") as file:
        for _ in range(LEGACY_PICKLES):
            if file.tell() < path.stat().st_size:
                require_plain(file)


def require_plain(stream: IO[bytes]) -> None:
    """Check that a pickle only makes tensors and plain values, and leave the stream after it. Raises UserError, ValueError."""
    for step, argument, _ in pickletools.genops(stream):
        if step.name not in STEPS:
            raise UserError(f"it holds more than tensors ({step.name}), {REMEDY}")
        name = str(argument).replace(" ", ".")
        if step.name == "GLOBAL" and name not in FUNCTIONS and name.rpartition(".")[0] not in CLASSES:
            raise UserError(f"it holds more than tensors ({name}), {REMEDY}")
