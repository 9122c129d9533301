"""Files of sentence-transformers in a model folder, which make it load there directly: writing and reading them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from bertie import storage
from bertie.errors import UserError
from bertie.model.encoder import EncoderConfig
from bertie.model.heads import PoolingHead
from bertie.model.model import Model
from bertie.model.pooling import Pooling

_POOLING: dict[Pooling, str] = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens"}
FILES = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "1_Pooling/config.json")


@dataclass(frozen=True)
class SentenceEmbedding:
    """How the model computes text vectors from its last layer."""

    pooling: Pooling
    normalize: bool
    """Whether the vectors are normalized to length 1."""


def embedding_of(model: Model) -> SentenceEmbedding | None:
    """Return how the head of a model computes text vectors; None if it has no such head."""
    heads = (head for head in model.heads.values() if isinstance(head, PoolingHead))
    return next((SentenceEmbedding(head.pooling, normalize=False) for head in heads), None)


def write(folder: Path, config: EncoderConfig, how: SentenceEmbedding, max_length: int) -> None:
    """Write the files.

    The configuration of the pooling has the keys of all versions: TEI and sentence-transformers up to 5 read a boolean for
    each mode, sentence-transformers from 6 on and vLLM a name.

    Args:
        folder: Model folder.
        config: Configuration of the encoder.
        how: How text vectors are computed.
        max_length: Maximum length of a text in tokens.
    """
    modules, lengths, similarity, pooling = FILES
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), *([("Normalize", "2_Normalize")] if how.normalize else [])]
    storage.write_json(
        folder / modules,
        [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (kind, path) in enumerate(kinds)
        ],
    )
    storage.write_json(folder / lengths, {"max_seq_length": max_length, "do_lower_case": False})
    storage.write_json(
        folder / similarity, {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    )
    for _, path in kinds[1:]:
        (folder / path).mkdir(exist_ok=True)
    chosen = {f"pooling_mode_{mode}": mode == _POOLING[how.pooling] for mode in _POOLING.values()}
    sizes = {"word_embedding_dimension": config.hidden_size, "embedding_dimension": config.hidden_size}
    storage.write_json(folder / pooling, {**sizes, **chosen, "pooling_mode": how.pooling, "include_prompt": True})


def read(folder: Path) -> SentenceEmbedding | None:
    """Read the files. Returns None if the folder has none.

    Raises:
        UserError: The files are damaged, or name modules that bertie does not support.
    """
    modules = folder / FILES[0]
    if not modules.is_file():
        return None
    entries = storage.read_json_list(modules)
    kinds = [str(entry.get("type")).rsplit(".", 1)[-1] if isinstance(entry, dict) else "" for entry in entries]
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        raise _unsupported(modules, " → ".join(kinds) or "nothing")
    path = folder / str(entries[1].get("path")) / "config.json"
    values = storage.read_json(path)
    modes = [name.removeprefix("pooling_mode_") for name, value in values.items() if value is True and "mode_" in name]
    # sentence-transformers 6 writes one name. Earlier versions write true or false for each mode.
    mode = values.get("pooling_mode", modes)
    names = {**{mode: mode for mode in get_args(Pooling)}, **{theirs: ours for ours, theirs in _POOLING.items()}}
    modes = mode if isinstance(mode, list) else [mode]
    if len(modes) != 1 or not isinstance(modes[0], str) or modes[0] not in names:
        raise _unsupported(path, f"pooling {' and '.join(map(str, modes)) or 'none'}")
    return SentenceEmbedding(names[modes[0]], "Normalize" in kinds)


def max_sequence_length(folder: Path) -> int | None:
    """Return the maximum length of a text in tokens, or None if the files do not limit it.

    Versions of sentence-transformers from 6 on write it into the tokenizer's configuration.

    Raises:
        UserError: The value is not a valid length.
    """
    keys = {folder / FILES[1]: "max_seq_length", folder / "tokenizer_config.json": "model_max_length"}
    for path, name in keys.items() if (folder / FILES[0]).is_file() else ():
        length = storage.read_json(path).get(name) if path.is_file() else None
        if length is not None and (type(length) is not int or length < 4):
            raise UserError(f"{path}: {name} is {length!r}: give at least 4 tokens")
        if length:
            return length
    return None


def _unsupported(path: Path, found: str) -> UserError:
    return UserError(
        f"{path} asks for {found}, which bertie does not support: name a pooling (mean, cls or max) to do without it"
    )
