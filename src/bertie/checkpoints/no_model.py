"""Say why a place is no model folder, and what to give instead."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from bertie import storage
from bertie.checkpoints.other_weights import other_weights
from bertie.checkpoints.tensorflow import folder as google
from bertie.checkpoints.weight_files import WHOLE
from bertie.errors import UserError, nearest

GIVE = "give a run, a checkpoint folder or a hub id"
HUB = re.compile(r"(?:https?:/+)?(?:www\.)?(?:huggingface\.co|hf\.co)(?![\w.-])|hf:/+")
OTHERS = {"datasets": "a data set", "spaces": "a space"}
"""What else the hub has, by the first part of an address."""
PAGES = frozenset({"", "models", "docs", "blog", "papers", "collections", "organizations", "tasks", "learn", "api"})
IN_A_MODEL = ("tree", "blob", "resolve", "raw", "commit", "commits", "discussions")
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json")
LONGEST = 100  # characters of a wrong name in a message


def unusable(source: str, file: str) -> str:
    """Return why the system has no place of a name; empty: it may have. file: the name of a file that could be in it."""
    try:
        Path(source, file).stat()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, ValueError) as error:
        shown = source if len(source) <= LONGEST else f"{source[:LONGEST]}…"
        return f"{shown}: {getattr(error, 'strerror', None) or error}: {GIVE}"
    return ""


def address(source: str) -> str:
    """Return what to give instead of an address; empty: it is none."""
    if found := HUB.match(source):
        first, second, *_ = [*filter(None, re.split(r"[/?#@]", source[found.end() :])), "", ""]
        if first in OTHERS:
            return f"{source} is {OTHERS[first]}, not a model: give the hub id of a model"
        if first in PAGES:
            return f"{source} is an address of no model: give the hub id of one"
        name = f"{first}/{second}" if second and second not in IN_A_MODEL else first
        return f"{source} is an address: give the model's hub id, {name}"
    if source.startswith("file:"):
        return f"{source} is an address: give the path, {unquote(re.sub('^file:(//(localhost)?)?', '', source))}"
    if re.match(r"\w[\w+.-]*://", source):
        return f"{source} is an address: download the model's folder, and give its path"
    return ""


def missing(source: str) -> str:
    """Return what is wrong with a path that does not exist."""
    place = Path(source)
    near = nearest(place.name, [path.name for path in place.parent.glob("*/")])
    return f"{source} does not exist: " + (f"did you mean {place.parent / near}?" if near else GIVE)


def is_file(path: Path) -> str:
    """Return what to give instead of a file."""
    prefix = path.with_name(re.sub(r"\.(index|data-\d+-of-\d+)$", "", path.name))
    if google.find_checkpoint(prefix):
        return f"{path} is a file of a TensorFlow checkpoint: give {prefix}"
    home = path.parent.parent if path.parent.name in ("onnx", "openvino") else path.parent
    if (home / "config.json").is_file():
        return f"{path} is a file: give its folder, {home}"
    return other_weights(path.parent, [path.name]) or f"{path} is a file: {GIVE}"


def lacks_config(place: Path, names: Iterable[str]) -> str:
    """Return what is wrong with a folder that has no config.json.

    Args:
        place: The folder, or its name on the hub.
        names: What is in it, as `other_weights.names_in` returns it.
    """
    names = set(names)
    if weights := [name for name in WHOLE if name in names]:
        return f"{place} holds no config.json beside its {weights[0]}: restore it, or take another checkpoint"
    if "config.toml" in names:
        return f"{place} is a run without a checkpoint yet: {GIVE}"
    if below := _models_below(names):
        count = f"{len(below)} models are below it, such as" if len(below) > 1 else "the model is below it:"
        there = "" if place.is_dir() else ": download the repository, and give the path of this folder"
        return f"{place} holds no config.json; {count} {place / _suggested(place, below)}{there}"
    if other := other_weights(place, names):
        return other
    if not names.isdisjoint(TOKENIZERS):
        return f"{place} holds no config.json, but a tokenizer: {GIVE}"
    return f"{place} holds no config.json: {GIVE}"


def _models_below(names: set[str]) -> list[str]:
    """Return the folders with a model, in the first level below that has any. Numbers in their names are in order."""
    files: dict[str, set[str]] = {}
    for folder, _, file in (name.rpartition("/") for name in names):
        files.setdefault(folder, set()).add(file)
    found = [folder for folder in files if folder and _is_model(files[folder])]
    level = min((folder.count("/") for folder in found), default=0)
    return sorted((each for each in found if each.count("/") == level), key=_with_numbers)


def _with_numbers(name: str) -> list[str | int]:
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def _is_model(files: set[str]) -> bool:
    if "config.json" in files and not files.isdisjoint(WHOLE):
        return True
    return not files.isdisjoint(google.CONFIGS.values()) and any(file.endswith(".index") for file in files)


def _suggested(place: Path, models: list[str]) -> str:
    """Return the best checkpoint according to transformers' Trainer, or else its latest one, or the first model."""
    checkpoints = [model for model in models if re.fullmatch(r"(.*/)?checkpoint-\d+", model)]
    if not checkpoints:
        return models[0]
    with suppress(UserError):
        best = storage.read_json(place / checkpoints[-1] / "trainer_state.json").get("best_model_checkpoint")
        return next((each for each in checkpoints if Path(each).name == Path(str(best)).name), checkpoints[-1])
    return checkpoints[-1]
