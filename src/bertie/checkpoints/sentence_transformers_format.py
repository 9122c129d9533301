"""The files beside a model of sentence vectors by which sentence-transformers loads the folder as it is: written and read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from bertie import storage
from bertie.errors import UserError
from bertie.model.config import BertConfig
from bertie.model.pooling import Pooling

_POOLING: dict[Pooling, str] = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens"}
FILES = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "1_Pooling/config.json")


@dataclass(frozen=True)
class SentenceEmbedding:
    """How a model's vectors are made of its last layer; normalize: to length 1."""

    pooling: Pooling
    normalize: bool


def write(folder: Path, config: BertConfig, task: dict[str, Any]) -> None:
    """task: with its pooling, and the longest text in tokens as max_length."""
    modules, lengths, similarity, pooling = FILES
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling")]
    storage.write_json(
        folder / modules,
        [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (kind, path) in enumerate(kinds)
        ],
    )
    most = task.get("max_length", config.max_position_embeddings)
    storage.write_json(folder / lengths, {"max_seq_length": most, "do_lower_case": False})
    storage.write_json(
        folder / similarity, {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    )
    (folder / pooling).parent.mkdir(exist_ok=True)
    chosen = {f"pooling_mode_{mode}": mode == _POOLING[task["pooling"]] for mode in _POOLING.values()}
    storage.write_json(folder / pooling, {"word_embedding_dimension": config.hidden_size, **chosen})


def read(folder: Path) -> SentenceEmbedding | None:
    """None where the folder has no such files. Errors: UserError where they name what bertie has not, or are damaged."""
    modules = folder / FILES[0]
    if not modules.is_file():
        return None
    listed = storage.read_json_list(modules)
    kinds = [str(entry.get("type")).rsplit(".", 1)[-1] if isinstance(entry, dict) else "" for entry in listed]
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        raise _other(modules, " → ".join(kinds) or "nothing")
    place = folder / str(listed[1].get("path")) / "config.json"
    found = storage.read_json(place)
    modes = [name.removeprefix("pooling_mode_") for name, value in found.items() if value is True and "mode_" in name]
    named = found.get("pooling_mode", modes)  # from their version 6 on one name, before that a true or false for each
    names = {**{mode: mode for mode in get_args(Pooling)}, **{theirs: ours for ours, theirs in _POOLING.items()}}
    chosen = named if isinstance(named, list) else [named]
    if len(chosen) != 1 or not isinstance(chosen[0], str) or chosen[0] not in names:
        raise _other(place, f"pooling {' and '.join(map(str, chosen)) or 'none'}")
    return SentenceEmbedding(names[chosen[0]], "Normalize" in kinds)


def max_sequence_length(folder: Path) -> int | None:
    """The longest text in tokens that the files allow; None where they do not say. Errors: UserError for what is no length.

    From their version 6 on it stands with the tokenizer.
    """
    places = {folder / FILES[1]: "max_seq_length", folder / "tokenizer_config.json": "model_max_length"}
    for path, name in places.items() if (folder / FILES[0]).is_file() else ():
        length = storage.read_json(path).get(name) if path.is_file() else None
        if length is not None and (type(length) is not int or length < 4):
            raise UserError(f"{path}: {name} is {length!r}: give at least 4 tokens")
        if length:
            return length
    return None


def _other(path: Path, found: str) -> UserError:
    return UserError(
        f"{path} asks for {found}, which bertie has not: name a pooling (mean, cls or max) to do without it"
    )
