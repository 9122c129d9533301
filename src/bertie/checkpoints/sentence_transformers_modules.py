"""Reading the modules of sentence-transformers that turn hidden states into a vector: Pooling, and what comes after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from bertie import console, untrusted
from bertie.checkpoints.sentence_transformers_format import OLD_MODES
from bertie.checkpoints.weight_files import PICKLED, SAFETENSORS, read_tensors
from bertie.errors import UserError
from bertie.files.model_folder import ModelFolder
from bertie.model.pooling import Pooling
from bertie.model.vector_modules import ACTIVATIONS, Dense, Dropout, LayerNorm, Normalize, VectorModule, output_width

REMEDY = "to use the encoder alone, remove modules.json"


def read_pooling(folder: ModelFolder) -> tuple[int | None, tuple[Pooling, ...], bool]:
    """Return the width of the hidden states, if the file names it, the poolings, and whether prompts are pooled.

    Raises:
        UserError: The file is damaged, or asks for what bertie does not support.
    """
    path, values = folder / "config.json", folder.json("config.json")
    old = {key: mode for key, mode in OLD_MODES.items() if key in values}
    sizes = ("embedding_dimension", "word_embedding_dimension")
    unknown = [key for key in values if key.startswith("pooling_mode_") and key not in OLD_MODES and values[key]]
    if unknown:
        raise refused(path, unknown[0], values[unknown[0]])
    warn_unknown(path, values, (*OLD_MODES, *sizes, "pooling_mode", "include_prompt", *unknown))
    given = values.get("pooling_mode", [mode for key, mode in old.items() if values[key]] or ["mean"])
    modes = given if isinstance(given, list) else [given]
    if not modes or len(modes) > len(OLD_MODES) or not all(mode in OLD_MODES.values() for mode in modes):
        raise refused(path, "pooling_mode", given)
    width = next((values[key] for key in sizes if key in values), None)
    if width is not None and (type(width) is not int or width < 1):
        raise refused(path, sizes[0], width)
    include = values.get("include_prompt", True)
    if type(include) is not bool:
        raise refused(path, "include_prompt", include)
    return width, tuple(modes), include


def read_module(kind: str, folder: ModelFolder, listed: Path) -> VectorModule:
    """Return a module after the pooling. Raises UserError.

    Args:
        kind: Its class.
        folder: Its folder.
        listed: The file that lists it, for messages.
    """
    path, values = folder / "config.json", folder.json("config.json")
    for key in ("module_input_name", "module_output_name"):
        if values.get(key, "sentence_embedding") not in ("sentence_embedding", None):
            raise refused(path, key, values[key])
    known: tuple[str, ...] = ("module_input_name", "module_output_name")
    if kind == "Normalize":
        module: VectorModule = Normalize()
    elif kind == "Dropout":
        rate = values.get("dropout", 0.2)
        if not isinstance(rate, int | float) or not 0 <= rate <= 1:
            raise refused(path, "dropout", rate)
        module, known = Dropout(float(rate)), ("dropout",)
    elif kind == "LayerNorm":
        tensors = _tensors(folder, {"norm.weight": 1, "norm.bias": 1})
        module, known = LayerNorm(tensors["norm.weight"], tensors["norm.bias"]), ("dimension",)
        _require_size(path, values, "dimension", len(module.weight))
        if module.bias.shape != module.weight.shape:
            raise UserError(f"{folder} is damaged: the tensors of its LayerNorm have different sizes")
    elif kind == "Dense":
        module = _dense(folder, path, values)
        known = (*known, "in_features", "out_features", "bias", "activation_function", "use_residual")
    else:
        raise UserError(f"{listed} asks for the module {kind[:60]}, which is not supported here: {REMEDY}")
    warn_unknown(path, values, known)
    return module


def _dense(folder: ModelFolder, path: Path, values: dict[str, Any]) -> Dense:
    bias, residual = values.get("bias", True), values.get("use_residual", False)
    for key, value in (("bias", bias), ("use_residual", residual)):
        if type(value) is not bool:
            raise refused(path, key, value)
    name = values.get("activation_function", "torch.nn.modules.activation.Tanh")
    act = name.rsplit(".", 1)[-1] if isinstance(name, str) and name.startswith("torch.nn.") else None
    if act not in ACTIVATIONS:
        raise refused(path, "activation_function", name)
    sizes = [values.get(key) for key in ("in_features", "out_features")]
    projected = residual and sizes[0] != sizes[1]
    optional = [("linear.bias", 1)] * bias + [("residual.weight", 2)] * projected
    tensors = _tensors(folder, {"linear.weight": 2, **dict(optional)})
    weight = tensors["linear.weight"]
    _require_size(path, values, "in_features", weight.shape[1])
    _require_size(path, values, "out_features", weight.shape[0])
    if bias and len(tensors["linear.bias"]) != len(weight):
        raise UserError(f"{folder} is damaged: linear.bias has another size than linear.weight")
    if projected and tensors["residual.weight"].shape != weight.shape:
        raise UserError(f"{folder} is damaged: residual.weight has another size than linear.weight")
    return Dense(weight, tensors.get("linear.bias"), act, residual, tensors.get("residual.weight"))


def _tensors(folder: ModelFolder, wanted: dict[str, int]) -> dict[str, Tensor]:
    """Return the weights of a module as float32. wanted: their names, and their numbers of dimensions."""
    names = [name for name in (SAFETENSORS, PICKLED) if folder.has(name)]
    if not names:
        raise UserError(f"{folder / SAFETENSORS} is missing: restore it, or {PICKLED}")
    untrusted.require_inside(folder.path, names)
    tensors = read_tensors(folder / names[0])
    if (found := set(tensors)) != (names_wanted := set(wanted)):
        first = min(found ^ names_wanted)
        problem = "lacks" if first in names_wanted else "also holds"
        raise UserError(f"{folder / names[0]} {problem} {first[:200]}: it does not fit its config.json")
    for name, dimensions in wanted.items():
        if tensors[name].ndim != dimensions:
            raise UserError(f"{folder / names[0]} is damaged: {name} has the shape {tuple(tensors[name].shape)}")
    return {name: tensor.float() for name, tensor in tensors.items()}


def _require_size(path: Path, values: dict[str, Any], key: str, size: int) -> None:
    if values.get(key) != size:
        raise UserError(f"{path}: {key} is {str(values.get(key))[:60]}, and the weights have {size}")


def require_fit(module: VectorModule, width: int | None, folder: ModelFolder) -> int | None:
    """Return the width after a module. Raises UserError if the module reads another one."""
    reads = {Dense: lambda m: m.weight.shape[1], LayerNorm: lambda m: len(m.weight)}
    if type(module) not in reads:
        return width
    own = reads[type(module)](module)
    if width is not None and own != width:
        raise UserError(f"{folder} reads vectors of width {own}, and those before it have width {width}")
    return output_width((module,), own)


def warn_unknown(path: Path, values: dict[str, Any], known: tuple[str, ...]) -> None:
    """Warn of the keys of a file that bertie does not know."""
    if unknown := sorted(set(values) - set(known)):
        shown = ", ".join(key[:60] for key in unknown[:10])
        console.warn(f"{path}: bertie does not know {shown}: ignored")


def refused(path: Path, key: str, value: Any, why: str = "") -> UserError:
    """Return the error that names a file, a key and its value. why: instead of "not supported" and the remedy."""
    shown = repr(value) if isinstance(value, str) else str(value)
    return UserError(f"{path}: {key} is {shown[:100]}: {why or f'not supported; {REMEDY}'}")
