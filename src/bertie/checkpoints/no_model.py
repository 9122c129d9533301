"""Say why a place is no model folder, and what to give instead."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path

from bertie.checkpoints.tensorflow import folder as google
from bertie.checkpoints.weight_files import WHOLE, other_weights
from bertie.errors import nearest

GIVE = "give a run, a checkpoint folder or a hub id"
ADDRESS = re.compile(
    r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/([\w.-]+(?:/(?!(?:tree|blob|resolve)\b)[\w.-]+)?)"
)
ARCHIVES = (".zip", ".tar", ".tgz", ".7z", ".rar", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json")
MAX_FOLDERS = 1000  # that are looked into


def address(source: str) -> str:
    """Return what to give instead of the address of a web page; empty: it is none."""
    if found := ADDRESS.match(source):
        return f"{source} is the address of a page: give the model's hub id, {found[1]}"
    if re.match(r"https?://", source):
        return f"{source} is the address of a page: download the model's folder, and give its path"
    return ""


def missing(source: str) -> str:
    """Return what is wrong with a path that does not exist."""
    place = Path(source)
    near = nearest(place.name, [path.name for path in place.parent.glob("*/")])
    return f"{source} does not exist: " + (f"did you mean {place.parent / near}?" if near else GIVE)


def is_file(path: Path) -> str:
    """Return what to give instead of a file."""
    name = path.name.lower()
    if name.endswith(ARCHIVES):
        return f"{path} is an archive: extract it, and give the folder with config.json"
    if name.endswith(".gguf"):
        return other_weights(path)
    prefix = path.with_name(re.sub(r"\.(index|data-\d+-of-\d+)$", "", path.name))
    if google.find_checkpoint(prefix):
        return f"{path} is a file of a TensorFlow checkpoint: give {prefix}"
    if (path.parent / "config.json").is_file():
        return f"{path} is a file: give its folder, {path.parent}"
    return f"{path} is a file: {GIVE}"


def lacks_config(folder: Path) -> str:
    """Return what is wrong with a folder that has no config.json."""
    if (folder / "config.toml").is_file():
        return f"{folder} is a run without a checkpoint yet: {GIVE}"
    if other := other_weights(folder):
        return other
    for level in ("*/", "*/*/"):
        paths = [path for path in islice(folder.glob(level), MAX_FOLDERS) if _holds_model(path)]
        if paths:
            count = f"{len(paths)} models are below it, such as" if len(paths) > 1 else "the model is below it:"
            return f"{folder} holds no config.json; {count} {min(paths)}"
    if any((folder / name).is_file() for name in TOKENIZERS):
        return f"{folder} holds no config.json, but a tokenizer: {GIVE}"
    return f"{folder} holds no config.json: {GIVE}"


def _holds_model(folder: Path) -> bool:
    whole = (folder / "config.json").is_file() and any((folder / name).is_file() for name in WHOLE)
    return whole or (google.find_config(folder) is not None and any(folder.glob("*.index")))
