"""Find the folder of a model: a folder, the newest checkpoint of a run, or a download from the hub."""

from __future__ import annotations

import re
from pathlib import Path

from bertie.checkpoints import no_model, sentence_transformers_format
from bertie.checkpoints.sentence_transformers_reader import (
    require_no_module,
    require_transformer,
    transformer_folder,
)
from bertie.checkpoints.tensorflow import folder as google
from bertie.checkpoints.weight_files import ADAPTER, PICKLED_PATTERNS, SAFETENSORS_PATTERNS, WHOLE, weights_file
from bertie.errors import UsageError

TASK_FILE = "task.json"
MODEL_FILES = (
    *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("vocab.txt", "vocab.json", "merges.txt"),
)
TASK_FILES = (TASK_FILE, *sentence_transformers_format.FILES)  # only in folders of fine-tuned models


def find_model_folder(source: str | Path) -> Path:
    """Return the folder with config.json: `source` itself, a run's newest checkpoint, or a downloaded hub model; for a
    TensorFlow checkpoint the prefix of its files, which is no folder.

    Raises:
        UsageError: There is no such folder, or the download failed.
        UserError: Its modules.json is damaged, or begins with what bertie does not read.
    """
    folder = Path(source)
    if source == "" or (problem := no_model.address(str(source))):
        raise UsageError(problem if source else f"the name of the model is empty: {no_model.GIVE}")
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
    # Also in a finished run, whose checkpoints are other models.
    if weights := [name for name in WHOLE if (folder / name).is_file()]:
        problem = f"holds no config.json beside its {weights[0]}"
        raise UsageError(f"{source} {problem}: restore it, or take another checkpoint")
    if steps := list_checkpoints(folder):
        return steps[-1]
    if folder.exists():
        raise UsageError(no_model.lacks_config(folder) if folder.is_dir() else no_model.is_file(folder))
    beside = folder.parent.is_dir() and "/" in str(source)
    if beside or str(source).count("/") > 1 or str(source).startswith((".", "/", "~")):
        raise UsageError(no_model.missing(folder))
    return _from_hub(str(source))


def list_checkpoints(run: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first. Folders with other names than step-NNNNNNNN do not count."""
    found = [path for path in (run / "checkpoints").glob("step-*") if re.fullmatch(r"step-\d{8,}", path.name)]
    return sorted(found, key=lambda path: int(path.name[5:]))


def _from_hub(name: str) -> Path:
    import huggingface_hub

    def download(*patterns: str) -> Path:
        wanted = [*MODEL_FILES, *TASK_FILES, "README.md", *patterns]
        of_modules = [f"{sentence_transformers_format.IN_MODULES}/{pattern}" for pattern in wanted]
        found = Path(huggingface_hub.snapshot_download(name, allow_patterns=wanted + of_modules))
        return transformer_folder(found) or found

    try:
        folder = download(*SAFETENSORS_PATTERNS)
        if any((folder / name).is_file() for name in WHOLE):
            return folder
        return download(*PICKLED_PATTERNS)  # only models without safetensors, which transformers prefers
    except Exception as error:  # the hub's client raises errors of its own, of its HTTP library and of the system
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UsageError(f"{name} is not a folder, and the download from the hub failed: {reason}") from error
