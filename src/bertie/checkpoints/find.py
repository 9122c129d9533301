"""Find the files of a model: its folder, the newest checkpoint of a run, or a download from the hub; and its weights.

Every tensor is read into memory of its own, so that a file that changes later changes no model. `bertie convert`, which only
passes tensors on, maps the files instead: the system reads a tensor when it is used, and may drop it again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

import safetensors
import torch
from torch import Tensor

from bertie.base import config as configuration
from bertie.base import storage, untrusted
from bertie.base.errors import MachineError, UsageError, UserError, first_line, nearest_path
from bertie.checkpoints import hub, sentence_transformers_format
from bertie.checkpoints.pickled import read_pickled
from bertie.checkpoints.sentence_transformers_format import MODULES
from bertie.checkpoints.tensorflow import folder as google
from bertie.files.model_folder import ModelFolder
from bertie.tokenizers import folder as tokenizer_folder

GIVE = "give a run, a checkpoint folder or a hub id"
SAFETENSORS, PICKLED = "model.safetensors", "pytorch_model.bin"
INDEX, TENSORFLOW_INDEX = ".index.json", ".index"
WHOLE = (SAFETENSORS, f"{SAFETENSORS}{INDEX}", PICKLED, f"{PICKLED}{INDEX}")
"""Names of weights, in the order in which transformers looks for them."""
ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", ("adapter_model.safetensors", "adapter_model.bin")
OTHER_FORMATS = (".h5", ".msgpack", ".gguf", ".pt", ".onnx")
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)  # accepted dtypes of weights
TASK_FILE = "task.json"
MODEL_FILES = ("config.json", SAFETENSORS, *tokenizer_folder.FILES)
TASK_FILES = (TASK_FILE, *sentence_transformers_format.FILES)  # only in folders of fine-tuned models
MANIFEST, ENGINE = LISTS = ("manifest.json", "engine.json")
"""Lists of files with their checksums: the files of a model, and the files of the engine of a converted one."""
DESCRIBING = (
    *(name for name in (*MODEL_FILES, *WHOLE) if name.endswith(INDEX) or name not in WHOLE),
    *(*TASK_FILES, *LISTS, "config.toml", "README.md", ADAPTER, *ADAPTER_WEIGHTS),
    *(*google.CONFIGS.values(), google.LATEST),
)
"""The files of a folder that say what the model is, and which other files it needs. An adapter is refused."""
SHARD = re.compile(r"(model|pytorch_model)-\d+-of-\d+\.(safetensors|bin)")


def find_model_folder(source: str | Path) -> Path:
    """Return the folder with config.json: `source` itself, a run's newest checkpoint, or a downloaded hub model; for a
    TensorFlow checkpoint the prefix of its files, which is no folder.

    Raises:
        UsageError: There is no such folder, or the download failed.
        UserError: Its modules.json is damaged, or begins with what bertie does not read.
    """
    folder, prefix = find_model(source)
    return prefix or folder.path


def find_model(source: str | Path) -> tuple[ModelFolder, Path | None]:
    """Return the folder of a model, and the prefix of its weights if they are a checkpoint of TensorFlow.

    Raises:
        UsageError, UserError: As `find_model_folder`.
    """
    path, name = Path(source), str(source)
    if not name or "://" in name:
        raise UsageError(f"{name or 'the name of the model'} is {'an address' if name else 'empty'}: {GIVE}")
    try:
        exists = path.exists()
    except OSError as error:
        raise UsageError(f"{name[:100]}: {error.strerror}: {GIVE}") from error
    root = ModelFolder(path)
    if (model := _model_in(root)) is not None:
        return model
    unfinished = path.is_dir() and not any(map(root.has, WHOLE))  # checkpoints of a finished run are other models
    if unfinished and (steps := list_checkpoints(path)):
        return ModelFolder(steps[-1]), None
    if unfinished and root.has("config.toml"):
        raise UsageError(f"{path} is a run without a checkpoint yet: {GIVE}")
    if path.is_dir():
        raise UsageError(_no_model(path, [inner.relative_to(path).as_posix() for inner in path.glob("*/config.json")]))
    if exists:
        raise UsageError(f"{path} is a file: give the folder of the model, or the prefix of a TensorFlow checkpoint")
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or (path.parent.is_dir() and "/" in name):
        raise UsageError(f"{path} does not exist{nearest_path(path, GIVE)}")
    return _from_hub(name)


def _model_in(folder: ModelFolder) -> tuple[ModelFolder, Path | None] | None:
    """Return the model whose files are in a folder; None if there are none. Raises UserError."""
    if (inner := transformer_folder(folder)) is not None:
        return inner, None  # beside it, old folders have a config.json with a version only
    if folder.has("config.json"):
        _require_no_module(folder)
        return folder, None
    _require_transformer(folder)
    if (prefix := google.find_checkpoint(folder.path)) is not None:
        return ModelFolder(prefix.parent), prefix
    if folder.has(ADAPTER):
        weights_files(folder)  # says what to do
    return None


def _no_model(place: Path, names: Iterable[str]) -> str:
    """Return what is wrong with a folder without config.json. names: files in it, or in folders below."""
    below = sorted(Path(name).parent for name in names if name.endswith("/config.json"))
    return f"{place} holds no config.json" + (f", but {place / below[-1]} does" if below else "") + f": {GIVE}"


def list_checkpoints(run: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first. Folders with other names than step-NNNNNNNN do not count."""
    return _steps((run / "checkpoints").glob("step-*"))


def _steps(paths: Iterable[Path]) -> list[Path]:
    steps = [path for path in paths if re.fullmatch(r"step-\d{8,}", path.name)]
    return sorted(steps, key=lambda path: int(path.name[5:]))


def run_settings(folder: Path) -> dict[str, Any]:
    """Read the config.toml of a run or of the run of a checkpoint; {} for other folders."""
    path = run_of(folder) / "config.toml"
    untrusted.require_content(path)
    return configuration.read(path) if path.is_file() else {}


def run_of(folder: Path) -> Path:
    """Return the run of a checkpoint folder; other folders as they are."""
    folder = folder.resolve()
    return folder.parent.parent if folder in list_checkpoints(folder.parent.parent) else folder


def root_of(folder: ModelFolder) -> ModelFolder | None:
    """Return the folder whose modules.json names a model folder as its Transformer; None: there is none."""
    if folder.has(MODULES):
        return folder
    inner = transformer_folder(folder.above)
    return folder.above if inner is not None and inner.path.name == folder.path.absolute().name else None


def module_paths(folder: ModelFolder) -> list[str]:
    """Return the folders of the modules that modules.json names. Raises UserError if one is elsewhere."""
    entries = [entry for entry in folder.json_list(MODULES) if isinstance(entry, dict)]
    paths = [path for entry in entries if isinstance(path := entry.get("path"), str)]
    for name in paths:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name:
            raise UserError(f"{folder / MODULES}: path is {name[:100]!r}: it must be a folder in the model's folder")
    untrusted.require_inside(folder.path, paths)
    return paths


def transformer_folder(folder: ModelFolder) -> ModelFolder | None:
    """Return the subfolder with the encoder, such as 0_Transformer, if modules.json names one. Raises UserError."""
    first = next(iter(module_paths(folder)), "").strip("./")
    return folder.inside(first) if first and folder.inside(first).has("config.json") else None


def _require_no_module(folder: ModelFolder) -> None:
    """Check that a folder does not hold a module after the encoder, such as 1_Pooling. Raises UsageError."""
    if folder.above.has(MODULES) and folder.path.absolute().name in module_paths(folder.above)[1:]:
        raise UsageError(f"{folder} is a module of the model in {folder.path.parent}: give that folder")


def _require_transformer(folder: ModelFolder) -> None:
    """Check that modules.json, if a folder without config.json has one, begins with an encoder. Raises UserError."""
    if not folder.has(MODULES):
        return
    kinds = [
        str(entry.get("type")).rpartition(".")[2] for entry in folder.json_list(MODULES) if isinstance(entry, dict)
    ]
    if kinds[:1] != ["Transformer"]:
        raise UserError(
            f"{folder / MODULES} asks for {' → '.join(kinds)[:200]}, which is not supported: bertie reads Transformer → Pooling"
        )
    if first := module_paths(folder)[0].strip("./"):
        raise UserError(f"{folder / first}/config.json, the configuration of the encoder, is missing: restore it")


def _from_hub(name: str) -> tuple[ModelFolder, Path | None]:
    """Download what bertie reads of a model: first the files that describe it, then its weights and what they list."""
    try:
        names = hub.names_in(name)
        inner = _newest_step(names)
        wanted = {*DESCRIBING, *(f"{inner}/{file}" for file in DESCRIBING)}.intersection(names)
        root = hub.download(name, wanted)
        wanted |= _needed(ModelFolder(root / inner), f"{inner}/" if inner else "", names)
        root = hub.download(name, wanted, commit=root.name)
    except UsageError:  # without a connection, an earlier download counts
        if (cached := hub.downloaded(name)) is None:
            raise
        root, names = cached, [path.relative_to(cached).as_posix() for path in cached.glob("*/config.json")]
    steps = list_checkpoints(root)
    if (model := _model_in(ModelFolder(root))) is None and not steps:
        raise UsageError(_no_model(Path(name), names))
    return model or (ModelFolder(steps[-1]), None)


def _newest_step(names: Iterable[str]) -> str:
    """Return the folder of the newest checkpoint of a run, if the repository is one without a model of its own; or ""."""
    if not {*WHOLE, "config.json", MODULES}.isdisjoint(names):
        return ""
    steps = _steps({Path(name).parent for name in names if re.fullmatch(r"checkpoints/[^/]*/config\.json", name)})
    return steps[-1].as_posix() if steps else ""


def _needed(folder: ModelFolder, start: str, names: Iterable[str]) -> set[str]:
    """Return the files of a repository that a model needs, beside those that describe it.

    Args:
        folder: The folder of the model, which holds these.
        start: Its name in the repository, with a slash at the end; "": the whole repository.
        names: All files of the repository.
    """
    inside = {name.removeprefix(start) for name in names if name.startswith(start)}
    wanted = {file for listing in LISTS for file in _listed(folder, listing)}
    modules = {"" if path.strip("./") == "" else f"{path.strip('./')}/" for path in module_paths(folder)} or {""}
    for module in modules:
        files = {name.removeprefix(module): name for name in inside if name.startswith(module)}
        wanted |= {files[name] for name in DESCRIBING if name in files} | _weights(folder, module, files)
    if not any(f"{module}config.json" in inside for module in modules) and google.find_config(folder.path):
        latest = google.latest(folder / google.LATEST)
        wanted |= {name for name in inside if name.endswith(".index")}
        wanted |= {name for name in inside if ".data-" in name and name.startswith(latest)}
    return {start + name for name in wanted & inside}


def _weights(folder: ModelFolder, module: str, files: dict[str, str]) -> set[str]:
    """Return the files with the weights of a module. files: its files, with their names in the folder."""
    if ADAPTER in files and not {*ADAPTER_WEIGHTS}.isdisjoint(files):
        return set()  # it is refused
    named = folder.json("config.json").get("transformers_weights") if not module else None
    first = next((name for name in ([named] if isinstance(named, str) else WHOLE) if name in files), "")
    if not first.endswith(INDEX):
        return {files[first]} if first else set()
    kind = ".safetensors" if ".safetensors" in first else ".bin"
    placed = folder.json(first).get("weight_map") if not module else None
    shards = placed.values() if isinstance(placed, dict) else [name for name in files if SHARD.fullmatch(name)]
    return {files[first], *(files[name] for name in shards if name in files and name.endswith(kind))}


def _listed(folder: ModelFolder, listing: str) -> list[str]:
    files = folder.json(listing).get("files")
    return list(files) if isinstance(files, dict) else []


def weights_files(folder: Path | ModelFolder) -> tuple[Path, ...]:
    """Return the files with the weights of a model: the file that transformers would load, or the shards of its index.

    Args:
        folder: Its folder; or the prefix of a TensorFlow checkpoint, whose index has the checksums of all tensors.

    Raises:
        UserError: There are none that bertie reads, or an adapter would change them.
    """
    if isinstance(folder, Path) and not folder.is_dir():
        return (Path(f"{folder}{TENSORFLOW_INDEX}"),)
    folder = ModelFolder.of(folder)
    if folder.has(ADAPTER) and any(map(folder.has, ADAPTER_WEIGHTS)):
        raise UserError(
            f"{folder / ADAPTER} describes an adapter, which bertie does not apply: merge it with PEFT "
            "(model.merge_and_unload().save_pretrained(OUT)), or remove the adapter's files to use the base model alone"
        )
    usual = next(filter(folder.has, WHOLE), None)
    name = folder.json("config.json").get("transformers_weights") or usual
    if name is None:
        others = [path.name for path in folder.path.iterdir() if path.suffix in OTHER_FORMATS]
        also = f", and bertie does not read {others[0]}" if others else ""
        raise UserError(
            f"{folder / SAFETENSORS} is missing{also}: bertie reads {SAFETENSORS} or {PICKLED}, whole or in shards"
        )
    where, names = f"{folder / 'config.json'}: transformers_weights", [str(name)]
    if names[0].endswith(INDEX):
        where, placed = f"{folder}/{name}: weight_map", folder.json(name).get("weight_map")
        names = sorted({*map(str, placed.values())}) if isinstance(placed, dict) and placed else ["nothing"]
    for file in names:
        if Path(file).name != file or not file.endswith((".safetensors", ".bin")):
            raise UserError(f"{where} names {file[:200]!r}: it must name files with weights in the folder")
    untrusted.require_inside(folder.path, names)
    return tuple(folder / file for file in names)


def weights_fingerprint(files: Iterable[Path]) -> str:
    """Return the SHA-256 checksums of the files with the weights of a model."""
    return " ".join(map(storage.sha256, files))


def read_weights(folder: ModelFolder, mapped: bool = False) -> dict[str, Tensor]:
    """Read the tensors of a model folder, under the names in its files.

    Args:
        folder: The folder.
        mapped: Whether tensors are mapped, where their format allows it. The files must not change while they are in use.

    Raises:
        UserError: As `weights_files`, or a file is damaged, or a tensor has non-finite values or an unsupported dtype.
    """
    return {name: tensor for path in weights_files(folder) for name, tensor in read_tensors(path, mapped).items()}


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
