"""Find the folder of a model: a folder, the newest checkpoint of a run, or a download from the hub."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from bertie.base import untrusted
from bertie.base.errors import UsageError, UserError, nearest
from bertie.checkpoints import hub, sentence_transformers_format
from bertie.checkpoints.sentence_transformers_format import MODULES
from bertie.checkpoints.tensorflow import folder as google
from bertie.checkpoints.weight_files import ADAPTER, ADAPTER_WEIGHTS, INDEX, SAFETENSORS, WHOLE, weights_file
from bertie.files.model_folder import ModelFolder
from bertie.tokenizers import folder as tokenizer_folder

GIVE = "give a run, a checkpoint folder or a hub id"
TASK_FILE = "task.json"
MODEL_FILES = ("config.json", SAFETENSORS, *tokenizer_folder.FILES)
TASK_FILES = (TASK_FILE, *sentence_transformers_format.FILES)  # only in folders of fine-tuned models
MANIFEST, ENGINE = LISTS = ("manifest.json", "engine.json")
"""Lists of files with their checksums: those of a model, and those of the engine of a converted one."""
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
        raise UsageError(_no_model(path, [each.relative_to(path).as_posix() for each in path.glob("*/config.json")]))
    if exists:
        raise UsageError(f"{path} is a file: give the folder of the model, or the prefix of a TensorFlow checkpoint")
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or (path.parent.is_dir() and "/" in name):
        near = nearest(path.name, [other.name for other in path.parent.glob("*/")])
        raise UsageError(f"{path} does not exist: " + (f"did you mean {path.parent / near}?" if near else GIVE))
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
        weights_file(folder)  # says what to do
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


def root_of(folder: ModelFolder) -> ModelFolder | None:
    """Return the folder with the modules.json that names a model folder as that of its Transformer; None: there is none."""
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
    """Check that a folder is not that of a module after the encoder, such as 1_Pooling. Raises UsageError."""
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
        raise UserError(f"{folder / first}/config.json is missing, the configuration of the encoder: restore it")


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
        if (found := hub.downloaded(name)) is None:
            raise
        root, names = found, [path.relative_to(found).as_posix() for path in found.glob("*/config.json")]
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
