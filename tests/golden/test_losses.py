"""Golden losses: the losses of the first 20 steps must equal the recorded ones.

These tests fail if a change affects the order of the data, the masks, the model, an optimizer or the meaning of a seed. If
the change is intended:

1. Delete the .txt file in this folder.
2. Run the test. It writes the file again and fails.
3. Run the test again, and explain in the commit message why the losses changed.

The runs use the synthetic corpus, one thread and fp32, without dropout. The tolerance of 2e-4 allows for the different
rounding of other machines.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bertie
from bertie.batches.contiguous import DocSentences
from bertie.batches.sentence_pairs import SentencePairs
from bertie.batches.sentences import Sentences
from bertie.batches.translations import Translations
from bertie.finetuning.recipe import FinetuneConfig, FinetuneTraining
from bertie.model.config import TransformerConfig
from bertie.model.encoders.characters import Characters, Subwords, TokenInput
from bertie.model.encoders.gru import GruConfig
from bertie.model.encoders.lstm import LstmConfig
from bertie.model.encoders.reformer_config import ReformerConfig
from bertie.model.encoders.xlnet import XlnetConfig
from bertie.objectives import (
    BidirectionalLM,
    CausalLM,
    Distillation,
    MaskedLM,
    NextSentence,
    PermutationLM,
    ReplacedToken,
    SkipThoughts,
    SpanBoundary,
)
from bertie.pretraining.recipe import PretrainConfig, PretrainTraining
from bertie.tasks.classify import Classify
from bertie.training.optimizers import AdamW, BertAdam
from bertie.training.schedules import LinearDecay

HERE = Path(__file__).parent
TOLERANCE = 2e-4


def compare(name: str, rows: list[dict[str, float]]) -> None:
    """Compare losses with the file of that name, which has a header and one line per step."""
    path = HERE / f"{name}.txt"
    columns = list(rows[0])
    if not path.is_file():
        lines = [" ".join(columns), *(" ".join(f"{row[column]:.6g}" for column in columns) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
        pytest.fail(f"{path} was missing and has been written: check it and run the test again")
    header, *lines = path.read_text().splitlines()
    assert header.split() == columns
    assert len(lines) == len(rows)
    for step, (line, row) in enumerate(zip(lines, rows, strict=True), 1):
        expected = dict(zip(columns, map(float, line.split()), strict=True))
        assert row == pytest.approx(expected, rel=TOLERANCE), f"step {step}"


@pytest.fixture(scope="module")
def pretraining(tiny_config: TransformerConfig) -> PretrainConfig:
    training = PretrainTraining(20, 16, 3e-3, row_tokens=256, precision="fp32", max_eval_tokens=1)
    objectives = (MaskedLM(initialization="unigram"), NextSentence())
    return PretrainConfig(
        tiny_config,
        SentencePairs(max_length=48),
        objectives,
        AdamW(betas=(0.9, 0.98)),
        LinearDecay(warmup=0.1),
        training,
    )


def losses(run: Path, names: tuple[str, ...]) -> list[dict[str, float]]:
    records: list[dict[str, Any]] = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: record[name] for name in names} for record in records if record["split"] == "train"]


def test_losses_of_pretraining(pretraining: PretrainConfig, small_shards: Path, tmp_path: Path) -> None:
    bertie.pretrain(pretraining, small_shards, tmp_path / "run", threads=1)
    compare("pretrain", losses(tmp_path / "run", ("mlm_loss", "nsp_loss", "grad_norm")))


def test_losses_of_pretraining_with_the_recipe_of_the_paper(
    pretraining: PretrainConfig, small_shards: Path, tmp_path: Path
) -> None:
    config = replace(pretraining, optimizer=BertAdam(), objectives=(MaskedLM(), NextSentence()), seed=1)
    bertie.pretrain(config, small_shards, tmp_path / "run", threads=1)
    compare("pretrain_paper", losses(tmp_path / "run", ("mlm_loss", "nsp_loss", "grad_norm")))


def test_losses_of_causal_language_modeling(pretraining: PretrainConfig, small_shards: Path, tmp_path: Path) -> None:
    model = replace(pretraining.model, causal=True, norm_position="pre", hidden_act="gelu_tanh", type_vocab_size=0)
    config = replace(pretraining, model=model, layout=DocSentences(max_length=48), objectives=(CausalLM(),))
    bertie.pretrain(config, small_shards, tmp_path / "run", threads=1)
    compare("pretrain_clm", losses(tmp_path / "run", ("clm_loss", "grad_norm")))


def test_losses_of_sentence_order_prediction(pretraining: PretrainConfig, small_shards: Path, tmp_path: Path) -> None:
    config = replace(pretraining, layout=SentencePairs(max_length=48, negatives="swapped"))
    bertie.pretrain(config, small_shards, tmp_path / "run", threads=1)
    compare("pretrain_sop", losses(tmp_path / "run", ("mlm_loss", "nsp_loss", "grad_norm")))


def test_losses_of_whole_word_masking(pretraining: PretrainConfig, small_shards: Path, tmp_path: Path) -> None:
    config = replace(pretraining, objectives=(MaskedLM(masking="words"), NextSentence()))
    bertie.pretrain(config, small_shards, tmp_path / "run", threads=1)
    compare("pretrain_words", losses(tmp_path / "run", ("mlm_loss", "nsp_loss", "grad_norm")))


def test_losses_of_spans_with_the_span_boundary_objective(
    pretraining: PretrainConfig, small_shards: Path, tmp_path: Path
) -> None:
    config = replace(pretraining, objectives=(MaskedLM(masking="spans"), SpanBoundary(), NextSentence()))
    bertie.pretrain(config, small_shards, tmp_path / "run", threads=1)
    compare("pretrain_spans", losses(tmp_path / "run", ("mlm_loss", "sbo_loss", "nsp_loss", "grad_norm")))


def test_losses_of_replaced_token_detection(pretraining: PretrainConfig, small_shards: Path, tmp_path: Path) -> None:
    model = replace(pretraining.model, embedding_size=24, pooler_act="gelu")
    config = replace(pretraining, model=model, objectives=(MaskedLM(random_replace_prob=0.0), ReplacedToken()))
    bertie.pretrain(config, small_shards, tmp_path / "run", threads=1)
    compare("pretrain_rtd", losses(tmp_path / "run", ("mlm_loss", "rtd_loss", "grad_norm")))


@pytest.mark.parametrize(
    ("name", "vectors"),
    [
        ("pretrain_bilm", Subwords()),
        ("pretrain_characters", Characters(filters=(4, 4, 8, 16), character_size=8, max_characters=12)),
    ],
)
def test_losses_of_elmo(
    name: str, vectors: TokenInput, pretraining: PretrainConfig, small_shards: Path, tmp_path: Path
) -> None:
    model = LstmConfig(2, 32, 24, max_position_embeddings=64, hidden_dropout_prob=0.0, input=vectors)
    layout = DocSentences(max_length=48)
    config = replace(pretraining, model=model, layout=layout, objectives=(BidirectionalLM(),))
    bertie.pretrain(config, small_shards, tmp_path / "run", threads=1)
    compare(name, losses(tmp_path / "run", ("bilm_loss", "grad_norm")))


def test_losses_of_distillation(
    pretraining: PretrainConfig, pretrained: Path, small_shards: Path, tmp_path: Path
) -> None:
    """The teacher has large random weights."""
    model = replace(pretraining.model, num_hidden_layers=1, type_vocab_size=0, pooler_act="relu")
    distil = Distillation(teacher=str(pretrained), initialization="random")
    config = replace(pretraining, model=model, objectives=(MaskedLM(weight=2.0), distil))
    bertie.pretrain(config, small_shards, tmp_path / "run", threads=1)
    compare("pretrain_distil", losses(tmp_path / "run", ("mlm_loss", "distil_loss", "grad_norm")))


def test_losses_of_translation_language_modeling(
    pretraining: PretrainConfig, translated_shards: Path, tmp_path: Path
) -> None:
    model = replace(pretraining.model, type_vocab_size=0, language_embeddings=True, mlm_transform=False)
    layout, objectives = Translations(max_length=48), (MaskedLM(initialization="unigram"),)
    config = replace(pretraining, model=model, layout=layout, objectives=objectives)
    bertie.pretrain(config, translated_shards, tmp_path / "run", threads=1)
    compare("pretrain_translations", losses(tmp_path / "run", ("mlm_loss", "grad_norm")))


def test_losses_of_permutation_language_modeling(
    pretraining: PretrainConfig, small_shards: Path, tmp_path: Path
) -> None:
    model = XlnetConfig(
        2, 32, 4, 64, max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    config = replace(pretraining, model=model, objectives=(PermutationLM(),))
    bertie.pretrain(config, small_shards, tmp_path / "run", threads=1)
    compare("pretrain_plm", losses(tmp_path / "run", ("plm_loss", "grad_norm")))


def test_losses_of_skip_thoughts(pretraining: PretrainConfig, small_shards: Path, tmp_path: Path) -> None:
    model = GruConfig(24, 16, max_position_embeddings=64, hidden_dropout_prob=0.0)
    config = replace(pretraining, model=model, layout=Sentences(max_length=48), objectives=(SkipThoughts(),))
    bertie.pretrain(config, small_shards, tmp_path / "run", threads=1)
    compare("pretrain_skip", losses(tmp_path / "run", ("skip_loss", "grad_norm")))


@pytest.mark.parametrize(("name", "causal"), [("pretrain_reformer", True), ("pretrain_reformer_mlm", False)])
def test_losses_of_a_reformer(
    name: str, causal: bool, pretraining: PretrainConfig, small_shards: Path, tmp_path: Path
) -> None:
    """Reversible layers, and chunks that are shorter than the sequences."""
    model = ReformerConfig(
        *(("local", "lsh"), 64, 4, 64),
        max_position_embeddings=64,
        axial_pos_shape=(8, 8),
        axial_pos_embds_dim=(8, 24),
        num_hashes=2,
        local_attn_chunk_length=8,
        lsh_attn_chunk_length=16,
        causal=causal,
        feed_forward_chunk=100,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    objectives = (CausalLM(),) if causal else (MaskedLM(),)
    config = replace(pretraining, model=model, layout=DocSentences(max_length=48), objectives=objectives)
    bertie.pretrain(config, small_shards, tmp_path / "run", threads=1)
    compare(name, losses(tmp_path / "run", (f"{objectives[0].kind}_loss", "grad_norm")))


def test_losses_of_fine_tuning(
    pretraining: PretrainConfig, small_shards: Path, small_texts: list[str], tmp_path: Path
) -> None:
    short = replace(pretraining, training=replace(pretraining.training, steps=1))
    bertie.pretrain(short, small_shards, tmp_path / "start", threads=1)
    rows = [
        {"text": text[:60], "text_pair": text[60:110], "label": ("short", "long")[len(text) > 600]}
        for text in small_texts[:100]
    ]
    training = FinetuneTraining(steps=20, batch_size=16, learning_rate=2e-3, precision="fp32")
    config = FinetuneConfig(
        Classify(),
        AdamW(),
        LinearDecay(warmup=0.1),
        training,
        max_length=40,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    found = bertie.finetune(config, rows[:80], tmp_path / "start", dev=rows[80:], threads=1)
    compare("classify", [{"loss": loss} for loss in found.losses])
