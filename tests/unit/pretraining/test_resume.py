"""A run that is stopped twice in a row resumes to the same weights, bit for bit, with and without workers."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.small_recipes import interrupted

import bertie
from bertie.batches.contiguous import DocSentences, FullSentences
from bertie.batches.loader import Position
from bertie.batches.sentence_pairs import SentencePairs
from bertie.batches.sentences import Sentences
from bertie.batches.translations import Translations
from bertie.corpus.prepare import prepare
from bertie.corpus.readers import ReaderOptions
from bertie.corpus.shards import open_shards
from bertie.model.config import TransformerConfig
from bertie.model.encoders.characters import Characters
from bertie.model.encoders.gru import GruConfig
from bertie.model.encoders.lstm import LstmConfig
from bertie.model.encoders.reformer_config import ReformerConfig
from bertie.model.encoders.transformer_xl import TransformerXlConfig
from bertie.objectives import BidirectionalLM, CausalLM, MaskedLM, NextSentence, ReplacedToken, SkipThoughts
from bertie.pretraining.phases import Phase
from bertie.pretraining.recipe import PretrainConfig, PretrainTraining
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.training.optimizers import AdamW
from bertie.training.schedules import LinearDecay

TRAINING = PretrainTraining(
    steps=10, batch_size=8, learning_rate=1e-2, row_tokens=128, precision="fp32", eval_every=3, checkpoint_every=1
)


REFORMER = ReformerConfig(
    *(("local", "lsh"), 64, 4, 64),
    **{"max_position_embeddings": 64, "axial_pos_shape": (8, 8), "axial_pos_embds_dim": (8, 24), "num_hashes": 2},
    **{"local_attn_chunk_length": 8, "lsh_attn_chunk_length": 16, "causal": True},  # pyright: ignore[reportArgumentType]
)
"""With dropout and with new hyperplanes in every step."""


@pytest.fixture(scope="module")
def config(tiny_config: TransformerConfig) -> PretrainConfig:
    """A configuration with dropout and two phases, of which the first needs two epochs."""
    size = replace(tiny_config, vocab_size=0, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    phases = (Phase(0.8), Phase(0.2, max_length=64, batch_size=4))
    return PretrainConfig(
        size, SentencePairs(max_length=32), (MaskedLM(), NextSentence()), AdamW(), LinearDecay(), TRAINING, phases
    )


@pytest.fixture(scope="module")
def few_shards(small_texts: list[str], small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of so little text that the first 8 of 10 steps are more than an epoch."""
    folder = tmp_path_factory.mktemp("few")
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in small_texts[:16]))
    prepare([folder / "text.jsonl"], small_tokenizer, folder / "shards", eval_share=0.3)
    return folder / "shards"


@pytest.fixture(scope="module")
def few_translated(
    small_texts: list[str], small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Shards of the same text in two languages, of which the second has the words from right to left."""
    folder = tmp_path_factory.mktemp("few_translated")
    records = [{"xa": text, "xb": " ".join(text.split()[::-1])} for text in small_texts[:16]]
    (folder / "text.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    options = ReaderOptions(languages=("xa", "xb"))
    prepare([folder / "text.jsonl"], small_tokenizer, folder / "shards", eval_share=0.3, reader_options=options)
    return folder / "shards"


@pytest.fixture(scope="module")
def undisturbed(config: PretrainConfig, few_shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    bertie.pretrain(config, few_shards, run, threads=1)
    return run


def metrics(run: Path) -> list[dict[str, Any]]:
    timing = ("seconds", "tokens_per_second", "utilization")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in timing} for line in lines]


def second_epoch_start(config: PretrainConfig, shards: Path) -> int:
    """Return the first step of the second epoch."""
    steps = config.resolved_phases[0].loader(open_shards(shards), config.seed).steps(Position())
    return next(number for number, step in enumerate(steps) if step.position.epoch == 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_run_stopped_at_many_steps_resumes_to_the_same_bytes(
    config: PretrainConfig,
    few_shards: Path,
    undisturbed: Path,
    tmp_path: Path,
    workers: int,
) -> None:
    """After the first step, before an evaluation, at the end of an epoch and of a phase, also twice in a row."""
    epoch_end, phase_end = second_epoch_start(config, few_shards), 8
    assert 2 < epoch_end < phase_end  # otherwise the run would not reach it
    run, settings = tmp_path / "run", replace(config, training=replace(TRAINING, workers=workers))
    for step in (1, 2, epoch_end, phase_end):
        with interrupted(lambda counters, step=step: counters.step == step):
            bertie.pretrain(settings, few_shards, run, threads=1)
        assert not multiprocessing.active_children()  # the workers have ended
    bertie.pretrain(settings, few_shards, run, threads=1)
    assert metrics(run) == metrics(undisturbed)
    for name in ("model.safetensors", "checkpoints/step-00000010/training_state/optimizer.safetensors"):
        assert (run / name).read_bytes() == (undisturbed / name).read_bytes()


CHARACTERS = Characters(filters=(4, 4, 8), character_size=4, max_characters=12)
CHANGES: dict[str, Callable[[TransformerConfig], dict[str, Any]]] = {
    "full_sentences": lambda _: {"layout": FullSentences(max_length=32), "objectives": (MaskedLM(),)},
    "doc_sentences": lambda _: {"layout": DocSentences(max_length=32), "objectives": (MaskedLM(),)},
    "swapped": lambda _: {"layout": SentencePairs(max_length=32, negatives="swapped")},
    "shared": lambda model: {"model": replace(model, num_hidden_groups=1, embedding_size=24)},
    "electra": lambda _: {"objectives": (MaskedLM(), ReplacedToken(generator_size=0.5))},
    "growing": lambda model: {
        "model": replace(model, norm_position="modern", position_embedding="rotary", type_vocab_size=0),
        "layout": DocSentences(max_length=32),
        "objectives": (MaskedLM(negatives=100),),
        "phases": (Phase(0.8, layers=1), Phase(0.2)),
    },
    "static": lambda _: {"training": replace(TRAINING, static_epochs=1)},
    "memory": lambda _: {
        "model": TransformerXlConfig(2, 32, 2, 64, segment_length=8, memory_length=12),
        "layout": DocSentences(max_length=32),
        "objectives": (CausalLM(),),
    },
    "reformer": lambda _: {"model": REFORMER, "layout": DocSentences(max_length=32), "objectives": (CausalLM(),)},
    "characters": lambda _: {
        "model": LstmConfig(2, 16, 12, max_position_embeddings=64, input=CHARACTERS),
        "layout": DocSentences(max_length=32),
        "objectives": (BidirectionalLM(),),
    },
    "sentences": lambda _: {
        "model": GruConfig(16, 12, max_position_embeddings=64),
        "layout": Sentences(max_length=32),
        "objectives": (SkipThoughts(),),
        "training": replace(TRAINING, batch_size=12),
    },
    "translations": lambda model: {
        "model": replace(model, language_embeddings=True),
        "layout": Translations(max_length=32),
        "objectives": (MaskedLM(),),
        "training": replace(TRAINING, batch_size=20),  # the corpus is three times as long
    },
}


@pytest.mark.parametrize("kind", CHANGES)
def test_every_layout_and_special_layers_resume_to_the_same_bytes(
    config: PretrainConfig,
    few_shards: Path,
    few_translated: Path,
    tmp_path: Path,
    kind: str,
) -> None:
    shards = few_translated if kind == "translations" else few_shards
    changed, run = replace(config, **CHANGES[kind](config.model)), tmp_path / "run"
    step = second_epoch_start(changed, shards) + 1
    assert step < 8
    changed = replace(changed, training=replace(changed.training, checkpoint_every=step))
    bertie.pretrain(changed, shards, tmp_path / "undisturbed", threads=1)
    with interrupted(lambda counters: counters.step == step):
        bertie.pretrain(changed, shards, run, threads=1)
    bertie.pretrain(changed, shards, run, threads=1)
    assert metrics(run) == metrics(tmp_path / "undisturbed")
    assert (run / "model.safetensors").read_bytes() == (tmp_path / "undisturbed" / "model.safetensors").read_bytes()
