"""Reading the files of sentence-transformers: every setting that changes a vector or a score is obeyed, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from operator import eq, not_
from pathlib import Path
from typing import Any, get_args

from torch import Tensor

from bertie.base import console, untrusted
from bertie.base.errors import UserError
from bertie.checkpoints.find import PICKLED, SAFETENSORS, module_paths, read_tensors, root_of
from bertie.checkpoints.sentence_transformers_format import (
    DEFAULT_PROMPTS,
    GENERAL,
    LENGTHS,
    MODULES,
    OLD_MODES,
    SCORE_ACTIVATIONS,
    SentenceEmbedding,
    Similarity,
)
from bertie.files.model_folder import ModelFolder
from bertie.model.heads.vector_modules import (
    ACTIVATIONS,
    Dense,
    Dropout,
    LayerNorm,
    Normalize,
    VectorModule,
    output_width,
)
from bertie.model.pooling import Pooling

REMEDY = "to use the encoder alone, remove modules.json"
ARGUMENTS = ("model_args", "model_kwargs", "tokenizer_args", "processor_kwargs", "config_args", "config_kwargs")
"""Keys of the module Transformer with arguments for the functions of transformers: names up to version 5, and from 6 on."""
ARGUMENTS_WITHOUT_EFFECT = frozenset(
    [
        *("attn_implementation", "torch_dtype", "dtype", "add_pooling_layer", "low_cpu_mem_usage", "device_map"),
        *("trust_remote_code", "use_safetensors", "use_fast", "revision", "cache_dir", "token", "local_files_only"),
        *("subfolder", "weights_only", "return_dict", "use_cache", "output_attentions", "output_hidden_states"),
    ]
)
TEXT_ONLY = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
EMPTY = ("processing_kwargs", "query_length", "document_length", "query_expansion", "tokenizer_name_or_path")
"""Keys of the module Transformer that are supported only without a value."""


def read(folder: Path | ModelFolder, hidden_size: int | None = None) -> SentenceEmbedding | None:
    """Read how the model of a folder computes text vectors.

    Args:
        folder: Model folder.
        hidden_size: Width of the hidden states, to check the files. None: they are not compared with it.

    Returns:
        None if the folder lacks modules.json, or describes a cross-encoder, which scores pairs.

    Raises:
        UserError: A file is damaged, or asks for what bertie does not support.
    """
    root = root_of(ModelFolder.of(folder))
    if root is None or root.json(GENERAL).get("model_type", "SentenceTransformer") == "CrossEncoder":
        return None
    general, path = root.json(GENERAL), root / GENERAL
    known = ("model_type", "prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim", "__version__")
    _warn_unknown(path, general, (*known, "requirements"))
    _require(path, general, model_type="SentenceTransformer")
    entries = _entries(root)
    kinds = [kind for kind, _ in entries]
    if kinds[:2] != ["Transformer", "Pooling"]:
        raise UserError(f"{root / MODULES} asks for {' → '.join(kinds) or 'nothing'}, which is not supported: {REMEDY}")
    lowercase = _transformer(*transformer_settings(entries[0][1]), "feature-extraction")
    width, pooling, include_prompt = _pooling(entries[1][1])
    if width is not None and hidden_size not in (None, width):
        shown = f"{width}, and the model's hidden states have the width {hidden_size}"
        raise UserError(f"{entries[1][1] / 'config.json'}: embedding_dimension is {shown}")
    width = (hidden_size or width or 0) * len(pooling) or None
    modules: list[VectorModule] = []
    for kind, module in entries[2:]:
        modules.append(_module(kind, module, root / MODULES))
        width = _width_after(modules[-1], width, module)
    prompts = _value(path, general, "prompts", {}, lambda texts: all(map(_is_text, (texts or {}).values())))
    prompts = {name: text or "" for name, text in (prompts or {}).items()}
    named = (None, *prompts, *DEFAULT_PROMPTS)
    default = _value(path, general, "default_prompt_name", None, named.__contains__, "there is no such prompt")
    similarity = general.get("similarity_fn_name") or "cosine"
    _value(path, general, "similarity_fn_name", None, (None, *get_args(Similarity)).__contains__)
    dimensions = _value(path, general, "truncate_dim", None, _is_size, "give at least 1")
    return SentenceEmbedding(
        pooling, tuple(modules), include_prompt, lowercase, prompts, default, similarity, dimensions, stated=True
    )


def dropped_by_training(folder: Path, pooling: Pooling) -> str:
    """Return what a model loses when it is trained further for text vectors with a pooling; empty: nothing.

    Raises:
        UserError: As `read`.
    """
    how = read(folder)
    if how is None:
        return ""
    others = [
        name for name, prompt in how.prompts.items() if prompt and name not in (*DEFAULT_PROMPTS, "passage", "corpus")
    ]
    lost = {
        f"the pooling {' and '.join(how.pooling)}": how.pooling != (pooling,),
        f"the modules {', '.join(type(module).__name__ for module in how.modules)}": bool(how.modules),
        f"the prompts {', '.join(others)}": bool(others),
        "lowercasing": how.lowercase,
        f"the similarity {how.similarity}": how.similarity != "cosine",
        f"the width {how.dimensions}": how.dimensions is not None,
    }
    return ", ".join(what[:100] for what, gone in lost.items() if gone)


def score_activation(folder: Path | ModelFolder, outputs: int) -> str | None:
    """Return the activation of the scores of a cross-encoder, a key of `SCORE_ACTIVATIONS`.

    Args:
        folder: Model folder.
        outputs: Scores per pair.

    Returns:
        None if no file says that the model is a cross-encoder of sentence-transformers.

    Raises:
        UserError: A file is damaged, or asks for what bertie does not support.
    """
    folder = ModelFolder.of(folder)
    root, path = root_of(folder), folder / "config.json"
    values = folder.json("config.json")  # Google's folders have none
    nested, old = values.get("sentence_transformers"), values.get("sbert_ce_default_activation_function")
    name, key, marked = None, "", False
    if root is not None and (general := root.json(GENERAL)).get("model_type") == "CrossEncoder":
        _require_cross_encoder(root, general)
        name, key, marked = general.get("activation_fn"), "activation_fn", True
        path = root / GENERAL if name is not None else path
    if name is None and isinstance(nested, dict):
        name, key, marked = nested.get("activation_fn"), "sentence_transformers.activation_fn", True
    if name is None and old is not None:
        name, key, marked = old, "sbert_ce_default_activation_function", True
    if name is None:
        return ("Sigmoid" if outputs == 1 else "Identity") if marked else None
    activation = name.rsplit(".", 1)[-1] if isinstance(name, str) and name.startswith("torch.nn.") else ""
    if activation not in SCORE_ACTIVATIONS or (activation != "Identity" and outputs > 1):
        scores = console.plural(outputs, "score")
        raise UserError(f"{path}: {key} is {str(name)[:100]!r}, which is not supported for {scores} per pair")
    return activation


def max_sequence_length(folder: Path | ModelFolder) -> int | None:
    """Return the maximum length of a text in tokens, or None if the files do not limit it.

    Versions of sentence-transformers from 6 on write it into the tokenizer's configuration.

    Raises:
        UserError: The value is not a valid length.
    """
    folder = ModelFolder.of(folder)
    if root_of(folder) is None:
        return None
    path, settings = transformer_settings(folder)
    sources: list[tuple[Path, dict[str, Any], str]] = [
        *((path, settings.get(name) or {}, "model_max_length") for name in ("tokenizer_args", "processor_kwargs")),
        (path, settings, "max_seq_length"),
        (folder / "tokenizer_config.json", folder.json("tokenizer_config.json"), "model_max_length"),
    ]
    for path, values, name in sources:
        if length := _value(path, values, name, None, partial(_is_size, least=4), "give at least 4 tokens"):
            return length
    return None


def transformer_settings(folder: ModelFolder) -> tuple[Path, dict[str, Any]]:
    """Return the file with the settings of the module Transformer in a folder, and its contents."""
    name = next((name for name in LENGTHS if folder.json(name)), LENGTHS[0])
    return folder / name, folder.json(name)


def _entries(root: ModelFolder) -> list[tuple[str, ModelFolder]]:
    """Return the class and the folder of each module. Raises UserError."""
    path, modules = root / MODULES, []
    for entry in root.json_list(MODULES):
        if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in ("path", "type")):
            raise UserError(f"{path} is damaged: each module has a path and a type, which are texts")
        if not entry["type"].startswith("sentence_transformers."):
            raise _refused(path, "type", entry["type"], f"it is code that bertie does not have; {REMEDY}")
        _value(path, entry, "kwargs", None, not_)
        _warn_unknown(path, entry, ("idx", "name", "path", "type", "kwargs"))
        modules.append(entry["type"].rsplit(".", 1)[-1])
    return [(kind, root.inside(name)) for kind, name in zip(modules, module_paths(root), strict=True)]


def _transformer(path: Path, values: dict[str, Any], task: str) -> bool:
    """Check the settings of the module Transformer. Return whether it lowercases texts."""
    known = ("max_seq_length", "do_lower_case", "transformer_task", "modality_config", "module_output_name")
    _warn_unknown(path, values, (*known, *EMPTY, *ARGUMENTS, "unpad_inputs", "backend", "cache_dir"))
    for name in EMPTY:
        _value(path, values, name, None, not_)
    for name in ARGUMENTS:
        limits = {"model_max_length"} if name in ("tokenizer_args", "processor_kwargs") else set()
        _value(path, {name: values.get(name) or {}}, name, {}, (ARGUMENTS_WITHOUT_EFFECT | limits).issuperset)
    _require(path, {"transformer_task": "feature-extraction"} | values, transformer_task=task)
    if task == "feature-extraction":
        _require(path, values, modality_config=TEXT_ONLY, module_output_name="token_embeddings")
    return bool(_value(path, values, "do_lower_case", False, (None, True, False).__contains__))


def _require_cross_encoder(root: ModelFolder, general: dict[str, Any]) -> None:
    """Check the files of a cross-encoder of version 6. Raises UserError."""
    path = root / GENERAL
    known = ("model_type", "prompts", "default_prompt_name", "activation_fn", "__version__", "requirements")
    _warn_unknown(path, general, (*known, "keep_in_fp32_modules"))
    _require(path, general, default_prompt_name=None)
    entries = _entries(root)
    if [kind for kind, _ in entries] != ["Transformer"]:
        shown = " → ".join(kind for kind, _ in entries) or "nothing"
        raise UserError(f"{root / MODULES} asks for {shown}, which is not supported: {REMEDY}")
    where, settings = transformer_settings(entries[0][1])
    _transformer(where, settings, "sequence-classification")
    _value(
        where,
        settings,
        "do_lower_case",
        False,
        not_,
        "bertie lowercases the texts of a cross-encoder only in its tokenizer",
    )


def _pooling(folder: ModelFolder) -> tuple[int | None, tuple[Pooling, ...], bool]:
    """Return the width of the hidden states, if the file names it, the poolings, and whether prompts are pooled.

    Raises:
        UserError: The file is damaged, or asks for what bertie does not support.
    """
    path, values = folder / "config.json", folder.json("config.json")
    old = {key: mode for key, mode in OLD_MODES.items() if key in values}
    sizes = ("embedding_dimension", "word_embedding_dimension")
    unknown = [key for key in values if key.startswith("pooling_mode_") and key not in OLD_MODES and values[key]]
    if unknown:
        raise _refused(path, unknown[0], values[unknown[0]])
    _warn_unknown(path, values, (*OLD_MODES, *sizes, "pooling_mode", "include_prompt", *unknown))
    named = values.get("pooling_mode", [mode for key, mode in old.items() if values[key]] or ["mean"])
    modes = named if isinstance(named, list) else [named]
    if not modes or len(modes) > len(OLD_MODES) or not all(mode in OLD_MODES.values() for mode in modes):
        raise _refused(path, "pooling_mode", named)
    width = next((_value(path, values, key, None, _is_size) for key in sizes if key in values), None)
    return width, tuple(modes), _value(path, values, "include_prompt", True, _is_bool)


def _module(kind: str, folder: ModelFolder, listed: Path) -> VectorModule:
    """Return a module after the pooling. Raises UserError.

    Args:
        kind: Its class.
        folder: Its folder.
        listed: The file that lists it, for messages.
    """
    path, values = folder / "config.json", folder.json("config.json")
    known: tuple[str, ...] = ("module_input_name", "module_output_name")
    for key in known:
        _value(path, values, key, None, (None, "sentence_embedding").__contains__)
    if kind == "Normalize":
        module: VectorModule = Normalize()
    elif kind == "Dropout":
        module, known = Dropout(float(_value(path, values, "dropout", 0.2, lambda rate: 0 <= rate <= 1))), ("dropout",)
    elif kind == "LayerNorm":
        tensors = _tensors(folder, {"norm.weight": 1, "norm.bias": 1})
        module, known = LayerNorm(tensors["norm.weight"], tensors["norm.bias"]), ("dimension",)
    elif kind == "Dense":
        module = _dense(folder, path, values)
        known = (*known, "in_features", "out_features", "bias", "activation_function", "use_residual")
    else:
        raise UserError(f"{listed} asks for the module {kind[:60]}, which is not supported here: {REMEDY}")
    _warn_unknown(path, values, known)
    return module


def _dense(folder: ModelFolder, path: Path, values: dict[str, Any]) -> Dense:
    bias, residual = (_value(path, values, *item, _is_bool) for item in (("bias", True), ("use_residual", False)))
    name = values.get("activation_function", "torch.nn.modules.activation.Tanh")
    act = name.rsplit(".", 1)[-1] if isinstance(name, str) and name.startswith("torch.nn.") else None
    if act not in ACTIVATIONS:
        raise _refused(path, "activation_function", name)
    sizes = [values.get(key) for key in ("in_features", "out_features")]
    projected = residual and sizes[0] != sizes[1]
    optional = [("linear.bias", 1)] * bias + [("residual.weight", 2)] * projected
    tensors = _tensors(folder, {"linear.weight": 2, **dict(optional)})
    weight = tensors["linear.weight"]
    for key, size in zip(("out_features", "in_features"), weight.shape, strict=True):
        if values.get(key) != size:
            raise UserError(f"{path}: {key} is {str(values.get(key))[:60]}, and the weights have {size}")
    return Dense(weight, tensors.get("linear.bias"), act, residual, tensors.get("residual.weight"))


def _tensors(folder: ModelFolder, wanted: dict[str, int]) -> dict[str, Tensor]:
    """Return the weights of a module as float32. wanted: their names, and their numbers of dimensions."""
    names = [name for name in (SAFETENSORS, PICKLED) if folder.has(name)]
    if not names:
        raise UserError(f"{folder / SAFETENSORS} is missing: restore it, or {PICKLED}")
    untrusted.require_inside(folder.path, names)
    tensors = read_tensors(folder / names[0])
    if (stored := set(tensors)) != (names_wanted := set(wanted)):
        first = min(stored ^ names_wanted)
        problem = "lacks" if first in names_wanted else "also holds"
        raise UserError(f"{folder / names[0]} {problem} {first[:200]}: it does not fit its config.json")
    for name, dimensions in wanted.items():
        if tensors[name].ndim != dimensions:
            raise UserError(f"{folder / names[0]} is damaged: {name} has the shape {tuple(tensors[name].shape)}")
    return {name: tensor.float() for name, tensor in tensors.items()}


def _width_after(module: VectorModule, width: int | None, folder: ModelFolder) -> int | None:
    """Return the width after a module. Raises UserError if the module reads another one."""
    reads = {Dense: lambda m: m.weight.shape[1], LayerNorm: lambda m: len(m.weight)}
    if type(module) not in reads:
        return width
    reads_width = reads[type(module)](module)
    if width is not None and reads_width != width:
        raise UserError(f"{folder} reads vectors of width {reads_width}, but the module before it gives width {width}")
    return output_width((module,), reads_width)


def _warn_unknown(path: Path, values: dict[str, Any], known: tuple[str, ...]) -> None:
    """Warn of the keys of a file that bertie does not know."""
    if unknown := sorted(set(values) - set(known)):
        shown = ", ".join(key[:60] for key in unknown[:10])
        console.warn(f"{path}: bertie does not know {shown}: ignored")


def _value(
    path: Path, values: dict[str, Any], key: str, default: Any, fits: Callable[[Any], bool], why: str = ""
) -> Any:
    """Return the value of a key. Raises UserError if it does not fit, with `why` as `_refused`."""
    value = values.get(key, default)
    with suppress(AttributeError, TypeError):  # the value has another type than expected
        if fits(value):
            return value
    raise _refused(path, key, value, why)


def _require(path: Path, values: dict[str, Any], **supported: Any) -> None:
    """Check keys of which bertie supports a single value, which missing keys have. Raises UserError."""
    for key, value in supported.items():
        _value(path, values, key, value, partial(eq, value))


def _is_bool(value: Any) -> bool:
    return type(value) is bool


def _is_text(value: Any) -> bool:
    return isinstance(value, str | None)


def _is_size(value: Any, least: int = 1) -> bool:
    return value is None or (type(value) is int and value >= least)


def _refused(path: Path, key: str, value: Any, why: str = "") -> UserError:
    """Return the error that names a file, a key and its value. why: instead of "not supported" and the remedy."""
    shown = repr(value) if isinstance(value, str) else str(value)
    return UserError(f"{path}: {key} is {shown[:100]}: {why or f'not supported; {REMEDY}'}")
