"""Reading the files of sentence-transformers: every setting that changes a vector or a score is obeyed, or refused by name."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any, get_args

from bertie import console, storage, untrusted
from bertie.checkpoints.sentence_transformers_format import (
    GENERAL,
    LENGTHS,
    MODULES,
    SCORE_ACTIVATIONS,
    SentenceEmbedding,
    Similarity,
)
from bertie.checkpoints.sentence_transformers_modules import (
    REMEDY,
    read_module,
    read_pooling,
    refused,
    require_fit,
    warn_unknown,
)
from bertie.checkpoints.weight_files import PICKLED, SAFETENSORS
from bertie.errors import UsageError, UserError
from bertie.model.pooling import Pooling
from bertie.model.vector_modules import VectorModule

MAX_MODULES = 100
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


def root_of(folder: Path) -> Path | None:
    """Return the folder with the modules.json that names a model folder as that of its Transformer; None: there is none."""
    if (folder / MODULES).is_file():
        return folder
    above = folder.absolute().parent
    return above if transformer_folder(above) == above / folder.absolute().name else None


def transformer_folder(folder: Path) -> Path | None:
    """Return the subfolder with the encoder, such as 0_Transformer, if modules.json names one. Raises UserError."""
    if not (folder / MODULES).is_file():
        return None
    entries = storage.read_json_list(folder / MODULES)
    path = entries[0].get("path") if entries and isinstance(entries[0], dict) else None
    if not isinstance(path, str) or path.strip("./") == "":
        return None
    inner = _inside(folder, path)
    return inner if (inner / "config.json").is_file() else None


def require_no_module(folder: Path) -> None:
    """Check that a folder is not that of a module after the encoder, such as 1_Pooling. Raises UsageError."""
    listed, name = folder.absolute().parent / MODULES, folder.absolute().name
    modules = storage.read_json_list(listed)[1:] if listed.is_file() else []
    if name in [module.get("path") for module in modules if isinstance(module, dict)]:
        raise UsageError(f"{folder} is a module of the model in {folder.parent}: give that folder")


def require_transformer(folder: Path) -> None:
    """Check that modules.json, if a folder without config.json has one, begins with an encoder. Raises UserError."""
    entries = _entries(folder / MODULES) if (folder / MODULES).is_file() else []
    if entries and entries[0][0] != "Transformer":
        kinds = " → ".join(kind for kind, _ in entries)
        raise UserError(
            f"{folder / MODULES} asks for {kinds}, which is not supported: bertie reads Transformer → Pooling"
        )
    if entries and entries[0][1].strip("./"):
        missing = _inside(folder, entries[0][1]) / "config.json"
        raise UserError(f"{missing} is missing, the configuration of the encoder: restore it")


def module_folders(folder: Path) -> list[Path]:
    """Return the folders of the modules that modules.json names. Raises UserError."""
    entries = storage.read_json_list(folder / MODULES) if (folder / MODULES).is_file() else []
    paths = [entry.get("path") for entry in entries[:MAX_MODULES] if isinstance(entry, dict)]
    return [_inside(folder, path) for path in paths if isinstance(path, str)]


def read(folder: Path, hidden_size: int | None = None) -> SentenceEmbedding | None:
    """Read how the model of a folder computes text vectors.

    Args:
        folder: Model folder.
        hidden_size: Width of the hidden states, to check the files. None: they are not compared with it.

    Returns:
        None if the folder lacks modules.json, or has that of a cross-encoder, which scores pairs.

    Raises:
        UserError: A file is damaged, or asks for what bertie does not support.
    """
    root = root_of(folder)
    if root is None or _general(root).get("model_type", "SentenceTransformer") == "CrossEncoder":
        return None
    general, path = _general(root), root / GENERAL
    known = ("model_type", "prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim", "__version__")
    warn_unknown(path, general, (*known, "requirements"))
    if (kind := general.get("model_type", "SentenceTransformer")) != "SentenceTransformer":
        raise refused(path, "model_type", kind)
    entries = _entries(root / MODULES)
    kinds = [kind for kind, _ in entries]
    if kinds[:2] != ["Transformer", "Pooling"]:
        raise UserError(f"{root / MODULES} asks for {' → '.join(kinds) or 'nothing'}, which is not supported: {REMEDY}")
    lowercase = _transformer(*transformer_settings(root, entries[0][1]), "feature-extraction")
    width, pooling, include_prompt = read_pooling(_module_folder(root, entries[1][1]) / "config.json")
    if width is not None and hidden_size not in (None, width):
        shown = f"{width}, and the model's hidden states have the width {hidden_size}"
        raise UserError(f"{_module_folder(root, entries[1][1]) / 'config.json'}: embedding_dimension is {shown}")
    width = (hidden_size or width or 0) * len(pooling) or None
    modules: list[VectorModule] = []
    for kind, name in entries[2:]:
        modules.append(read_module(kind, _module_folder(root, name), root / MODULES))
        width = require_fit(modules[-1], width, _module_folder(root, name))
    prompts = general.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str | None) for text in prompts.values()):
        raise refused(path, "prompts", prompts, "it must map names to texts")
    prompts = {name: text or "" for name, text in prompts.items()}
    default, similarity, dimensions = (general.get(name) for name in known[2:5])
    if default is not None and default not in (*prompts, "query", "document"):
        raise refused(path, "default_prompt_name", default, "there is no such prompt")
    similarity = similarity or "cosine"
    if similarity not in get_args(Similarity):
        raise refused(path, "similarity_fn_name", similarity)
    if dimensions is not None and (type(dimensions) is not int or dimensions < 1):
        raise refused(path, "truncate_dim", dimensions, "give at least 1")
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
    lost = {
        f"the pooling {' and '.join(how.pooling)}": how.pooling != (pooling,),
        f"the modules {', '.join(type(module).__name__ for module in how.modules)}": bool(how.modules),
        f"the prompts {', '.join(how.prompts)}": any(how.prompts.values()),
        "lowercasing": how.lowercase,
        f"the similarity {how.similarity}": how.similarity != "cosine",
        f"the width {how.dimensions}": how.dimensions is not None,
    }
    return ", ".join(what[:100] for what, gone in lost.items() if gone)


def score_activation(folder: Path, outputs: int) -> str | None:
    """Return the activation of the scores of a cross-encoder, a key of `SCORE_ACTIVATIONS`.

    Args:
        folder: Model folder.
        outputs: Scores per pair.

    Returns:
        None if no file says that the model is a cross-encoder of sentence-transformers.

    Raises:
        UserError: A file is damaged, or asks for what bertie does not support.
    """
    root, path = root_of(folder), folder / "config.json"
    values = storage.read_json(path) if path.is_file() else {}  # Google's folders have none
    own, old = values.get("sentence_transformers"), values.get("sbert_ce_default_activation_function")
    name, key, marked = None, "", False
    if root is not None and (general := _general(root)).get("model_type") == "CrossEncoder":
        _require_cross_encoder(root, general)
        name, key, marked = general.get("activation_fn"), "activation_fn", True
        path = root / GENERAL if name is not None else path
    if name is None and isinstance(own, dict):
        name, key, marked = own.get("activation_fn"), "sentence_transformers.activation_fn", True
    if name is None and old is not None:
        name, key, marked = old, "sbert_ce_default_activation_function", True
    if name is None:
        return ("Sigmoid" if outputs == 1 else "Identity") if marked else None
    found = name.rsplit(".", 1)[-1] if isinstance(name, str) and name.startswith("torch.nn.") else ""
    if found not in SCORE_ACTIVATIONS or (found != "Identity" and outputs > 1):
        scores = console.plural(outputs, "score")
        raise UserError(f"{path}: {key} is {str(name)[:100]!r}, which is not supported for {scores} per pair")
    return found


def max_sequence_length(folder: Path) -> int | None:
    """Return the maximum length of a text in tokens, or None if the files do not limit it.

    Versions of sentence-transformers from 6 on write it into the tokenizer's configuration.

    Raises:
        UserError: The value is not a valid length.
    """
    if (root := root_of(folder)) is None:
        return None
    path, settings = transformer_settings(root, "" if root == folder else folder.absolute().name)
    tokenizer = folder / "tokenizer_config.json"
    sources: list[tuple[Path, dict[str, Any], str]] = [
        *((path, settings.get(name) or {}, "model_max_length") for name in ("tokenizer_args", "processor_kwargs")),
        (path, settings, "max_seq_length"),
        (tokenizer, storage.read_json(tokenizer) if tokenizer.is_file() else {}, "model_max_length"),
    ]
    for path, values, name in sources:
        length = values.get(name) if isinstance(values, dict) else None
        if length is not None and (type(length) is not int or length < 4):
            raise UserError(f"{path}: {name} is {repr(length)[:60]}: give at least 4 tokens")
        if length:
            return length
    return None


def transformer_settings(root: Path, name: str) -> tuple[Path, dict[str, Any]]:
    """Return the file with the settings of the module Transformer in the subfolder `name`, and its contents."""
    folder = _inside(root, name)
    for file in LENGTHS:
        untrusted.require_inside(folder, [file])
        if (folder / file).is_file() and (values := storage.read_json(folder / file)):
            return folder / file, values
    return folder / LENGTHS[0], {}


def _general(root: Path) -> dict[str, Any]:
    untrusted.require_inside(root, [MODULES, GENERAL])
    return storage.read_json(root / GENERAL) if (root / GENERAL).is_file() else {}


def _entries(path: Path) -> list[tuple[str, str]]:
    """Return the class and the subfolder of each module."""
    found, names = [], set()
    entries = storage.read_json_list(path)
    if len(entries) > MAX_MODULES:
        raise UserError(f"{path} is damaged: it lists {len(entries):,} modules")
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in ("path", "type")):
            raise UserError(f"{path} is damaged: each module has a path and a type, which are texts")
        if (name := str(entry.get("name", number))) in names:
            raise UserError(f"{path} is damaged: two modules have the name {name[:60]!r}")
        if not entry["type"].startswith("sentence_transformers."):
            raise refused(path, "type", entry["type"], f"it is code that bertie does not have; {REMEDY}")
        if entry.get("kwargs"):
            raise refused(path, "kwargs", entry["kwargs"])
        warn_unknown(path, entry, ("idx", "name", "path", "type", "kwargs"))
        names.add(name)
        found.append((entry["type"].rsplit(".", 1)[-1], entry["path"]))
    return found


def _inside(root: Path, name: str) -> Path:
    """Return a subfolder. Raises UserError if it is elsewhere."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name:
        raise refused(root / MODULES, "path", name, "it must be a folder in the model's folder")
    untrusted.require_inside(root, [name])
    return root / path


def _module_folder(root: Path, name: str) -> Path:
    folder = _inside(root, name)
    untrusted.require_inside(folder, ["config.json", SAFETENSORS, PICKLED])
    return folder


def _transformer(path: Path, values: dict[str, Any], task: str) -> bool:
    """Check the settings of the module Transformer. Return whether it lowercases texts."""
    known = ("max_seq_length", "do_lower_case", "transformer_task", "modality_config", "module_output_name")
    warn_unknown(path, values, (*known, *EMPTY, *ARGUMENTS, "unpad_inputs", "backend", "cache_dir"))
    for name in EMPTY:
        if values.get(name):
            raise refused(path, name, values[name])
    for name in ARGUMENTS:
        given = values.get(name) or {}
        if not isinstance(given, dict):
            raise refused(path, name, given)
        limits = {"model_max_length"} if name in ("tokenizer_args", "processor_kwargs") else set()
        for key, value in given.items():
            if key not in ARGUMENTS_WITHOUT_EFFECT | limits:
                raise refused(path, f"{name}.{key}", value)
    if (found := values.get("transformer_task", "feature-extraction")) != task:
        raise refused(path, "transformer_task", found)
    if task == "feature-extraction":
        if values.get("modality_config", TEXT_ONLY) != TEXT_ONLY:
            raise refused(path, "modality_config", values["modality_config"])
        if (output := values.get("module_output_name", "token_embeddings")) != "token_embeddings":
            raise refused(path, "module_output_name", output)
    lowercase = values.get("do_lower_case") or False
    if lowercase not in (True, False):
        raise refused(path, "do_lower_case", lowercase)
    return bool(lowercase)


def _require_cross_encoder(root: Path, general: dict[str, Any]) -> None:
    """Check the files of a cross-encoder of version 6. Raises UserError."""
    path = root / GENERAL
    known = ("model_type", "prompts", "default_prompt_name", "activation_fn", "__version__", "requirements")
    warn_unknown(path, general, (*known, "keep_in_fp32_modules"))
    if (default := general.get("default_prompt_name")) is not None:
        raise refused(path, "default_prompt_name", default, "a cross-encoder of bertie has no prompts")
    entries = _entries(root / MODULES)
    if [kind for kind, _ in entries] != ["Transformer"]:
        shown = " → ".join(kind for kind, _ in entries) or "nothing"
        raise UserError(f"{root / MODULES} asks for {shown}, which is not supported: {REMEDY}")
    where, settings = transformer_settings(root, entries[0][1])
    if _transformer(where, settings, "sequence-classification"):
        raise refused(where, "do_lower_case", True, "a cross-encoder of bertie reads texts as its tokenizer does")
