"""The files beside a model of sentence vectors by which sentence-transformers loads the folder as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertie import storage
from bertie.model.config import BertConfig

_POOLING = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens"}
FILES = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "1_Pooling/config.json")


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
