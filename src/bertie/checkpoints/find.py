"""Find the folder of a model: a folder, the newest checkpoint of a run, or a download from the hub."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from bertie import storage
from bertie.checkpoints import no_model, sentence_transformers_format
from bertie.checkpoints.other_weights import names_in, other_weights
from bertie.checkpoints.sentence_transformers_reader import (
    module_folders,
    require_no_module,
    require_transformer,
    transformer_folder,
)
from bertie.checkpoints.tensorflow import folder as google
from bertie.checkpoints.weight_files import (
    ADAPTER,
    ADAPTER_WEIGHTS,
    INDEX,
    SAFETENSORS,
    WHOLE,
    names_to_try,
    weights_file,
)
from bertie.errors import UsageError, UserError, first_line
from bertie.text import tokenizer_folder

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


def find_model_folder(source: str | Path) -> Path:
    """Return the folder with config.json: `source` itself, a run's newest checkpoint, or a downloaded hub model; for a
    TensorFlow checkpoint the prefix of its files, which is no folder.

    Raises:
        UsageError: There is no such folder, or the download failed.
        UserError: Its modules.json is damaged, or begins with what bertie does not read.
    """
    folder = Path(source)
    if source == "":
        raise UsageError(f"the name of the model is empty: {no_model.GIVE}")
    if problem := no_model.address(str(source)) or no_model.unusable(str(source), max(DESCRIBING, key=len)):
        raise UsageError(problem)
    if (found := _model_in(folder)) is not None:
        return found
    finished = any((folder / name).is_file() for name in WHOLE)  # its checkpoints are other models
    if not finished and (steps := list_checkpoints(folder)):
        return steps[-1]
    if folder.is_dir():
        raise UsageError(no_model.lacks_config(folder, names_in(folder)))
    if folder.exists():
        raise UsageError(no_model.is_file(folder))
    beside = folder.parent.is_dir() and "/" in str(source)
    if beside or str(source).count("/") > 1 or str(source).startswith((".", "/", "~")):
        raise UsageError(no_model.missing(str(source)))
    return _from_hub(str(source))


def _model_in(folder: Path) -> Path | None:
    """Return the place of the model whose files are in a folder; None if there are none. Raises UserError."""
    if (inner := transformer_folder(folder)) is not None:
        return inner  # beside it, old folders have a config.json with a version only
    if (folder / "config.json").is_file():
        require_no_module(folder)
        return folder
    require_transformer(folder)
    if (checkpoint := google.find_checkpoint(folder)) is not None:
        return checkpoint
    if (folder / ADAPTER).is_file():
        weights_file(folder)  # says what to do
    return None


def list_checkpoints(run: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first. Folders with other names than step-NNNNNNNN do not count."""
    return _steps((run / "checkpoints").glob("step-*"))


def _steps(paths: Iterable[Path]) -> list[Path]:
    found = [path for path in paths if re.fullmatch(r"step-\d{8,}", path.name)]
    return sorted(found, key=lambda path: int(path.name[5:]))


def _from_hub(name: str) -> Path:
    """Download what bertie reads of a model, and return its folder, which is read, or refused, like any other."""
    root = _download(name, DESCRIBING)
    _fetch(name, root, root)
    if (folder := _model_in(root)) is None:
        names = _names_in(name, root.name, Path()) or names_in(root)
        steps = _steps(path for path in map(Path, names) if path.parent == Path("checkpoints"))
        if not steps or not {*WHOLE}.isdisjoint(names):
            raise UsageError(no_model.lacks_config(Path(name), names))
        folder = root / steps[-1]
        _fetch(name, root, folder)
    if folder.is_dir() and names_to_try(folder, len(WHOLE)) == list(WHOLE):  # there is none
        inner = folder.relative_to(root)
        if problem := other_weights(Path(name) / inner, _names_in(name, root.name, inner)):
            raise UserError(problem)
    return folder


def _fetch(name: str, root: Path, model: Path) -> None:
    """Download what bertie reads of the model in a folder of a repository: the root, or a checkpoint of a run."""
    wanted = set(DESCRIBING)
    for tries in range(-1, len(WHOLE) + 1):
        if more := _asked_for(root, model, tries) - wanted:
            wanted |= more
            _download(name, wanted, root.name)


def _asked_for(root: Path, model: Path, tries: int) -> set[str]:
    """Return patterns of the files that the files of a download ask for. tries: as in `names_to_try`; 0: small files."""
    modules = {model, *module_folders(model)}
    if tries < 1:
        return {_pattern(root, folder, file) for folder in modules for file in DESCRIBING}
    encoder = transformer_folder(model) or model
    wanted: set[str] = set()
    for folder in modules:
        names = [file for listing in LISTS if (folder / listing).is_file() for file in _listed(folder / listing)]
        if folder != model or (folder == encoder and (folder / "config.json").is_file()):
            names += names_to_try(folder, tries)
        wanted |= {_pattern(root, folder, file) for file in names}
    if not (encoder / "config.json").is_file() and google.find_config(model) is not None:
        prefix = google.find_checkpoint(model)
        wanted |= {"*.index"} if prefix is None else {f"{_pattern(root, model, prefix.name)}.data-*-of-*"}
    return wanted


def _listed(path: Path) -> list[str]:
    files = storage.read_json(path).get("files")
    return list(files) if isinstance(files, dict) else []


def _pattern(root: Path, folder: Path, file: str) -> str:
    return glob.escape(f"{folder.relative_to(root).as_posix()}/{file}".removeprefix("./"))


def _download(name: str, wanted: Iterable[str], commit: str | None = None) -> Path:
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(name, revision=commit, allow_patterns=sorted(wanted)))
    except Exception as error:  # the hub's client raises errors of its own, of its HTTP library and of the system
        reason = first_line(error)
        raise UsageError(f"{name} is not a folder, and the download from the hub failed: {reason}") from error


def _names_in(name: str, commit: str, folder: Path) -> list[str]:
    """Return what is in a folder of a repository, as `names_in` does; nothing without a connection."""
    import huggingface_hub

    with suppress(Exception):  # the hub's client raises errors of its own, of its HTTP library and of the system
        files = [Path(file) for file in huggingface_hub.list_repo_files(name, revision=commit)]
        inside = [file.relative_to(folder) for file in files if file.is_relative_to(folder)]
        return [each.as_posix() for each in {part for file in inside for part in (file, *file.parents[:-1])}]
    return []
