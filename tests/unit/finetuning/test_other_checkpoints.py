"""Fine-tuning from checkpoints of other programs: their longest sequence, and Google's TensorFlow files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.small_recipes import fine_tuning

import bertie
from bertie.base.errors import UsageError
from bertie.checkpoints.huggingface import from_config_json
from bertie.checkpoints.read import read_checkpoint
from bertie.checkpoints.tensorflow.folder import write_model
from bertie.finetuning.data import load_task_data
from bertie.tokenizers.tokenizer import Tokenizer

CONFIG = fine_tuning(1)
Rows = list[dict[str, str]]


@pytest.mark.parametrize("kind", ["roberta", "xlm-roberta", "camembert", "mpnet"])
def test_the_longest_sequence_obeys_the_positions(kind: str, rows: Rows, start: Path) -> None:
    """Positions of these families start at 2, so there are two more of them than a text may have tokens."""
    own = read_checkpoint(start)
    values = {
        "vocab_size": own.config.vocab_size,
        "max_position_embeddings": 34,
        "hidden_size": 8,
        "hidden_act": "gelu",
    }
    values |= {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "pad_token_id": 1}
    _, config, _ = from_config_json(values | {"model_type": kind}, "config.json")
    checkpoint = replace(own, config=config)
    data = load_task_data(replace(CONFIG, max_length=32), rows[:40], rows[40:], checkpoint)
    assert max(map(len, data.train_sequences)) <= 32
    with pytest.raises(UsageError, match="max_length is 33: the model reads 4 to 32 tokens"):
        load_task_data(replace(CONFIG, max_length=33), rows[:40], rows[40:], checkpoint)


def test_the_longest_sequence_obeys_the_tokenizer(rows: Rows, start: Path) -> None:
    own = read_checkpoint(start)
    checkpoint = replace(own, tokenizer=replace(own.tokenizer, longest=16))
    load_task_data(replace(CONFIG, max_length=16), rows[:40], rows[40:], checkpoint)
    with pytest.raises(UsageError, match=r"max_length is 17, and .*tokenizer_config\.json: model_max_length is 16"):
        load_task_data(replace(CONFIG, max_length=17), rows[:40], rows[40:], checkpoint)


def test_fine_tuning_from_googles_files_is_that_from_the_same_weights(rows: Rows, start: Path, tmp_path: Path) -> None:
    folder = tmp_path / "google"
    folder.mkdir()
    write_model(folder, bertie.load(start).model, Tokenizer.load(start), ())
    for name in ("vocab.txt", "tokenizer_config.json"):
        (folder / name).write_bytes((start / name).read_bytes())
    assert (folder / "bert_config.json").is_file()
    runs = [bertie.finetune(CONFIG, rows[:16], place, None, dev=rows[16:24], threads=1) for place in (start, folder)]
    assert runs[0].losses == runs[1].losses
    assert runs[0].scores == runs[1].scores
