"""All steps with a byte-level BPE vocabulary: train, prepare, pre-train, fine-tune, predict, embed."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

import bertie
from bertie.checkpoints.folder import write_model
from bertie.finetuning.recipe import FinetuneConfig, FinetuneTraining
from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder
from bertie.model.model import Model
from bertie.objectives import MaskedLM, NextSentence
from bertie.objectives.heads import build_heads
from bertie.tasks.classify import Classify
from bertie.tasks.span import Span
from bertie.tasks.tag import Tag
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.training.optimizers import AdamW
from bertie.training.schedules import LinearDecay

WORDS = [
    "the",
    "cat",
    "dog",
    "sat",
    "ran",
    "on",
    "under",
    "mat",
    "house",
    "tree",
    "wasn't",
    "very",
    "big",
    "small",
    "😀",
    "über",
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("bpe")
    rng = random.Random(0)
    (folder / "t.txt").write_text("\n".join(" ".join(rng.choices(WORDS, k=8)) for _ in range(300)))
    return bertie.train_tokenizer(folder / "t.txt", folder / "tok", algorithm="bpe", vocab_size=290)


def test_finetuned_models_predict_and_embed(tokenizer: Tokenizer, tmp_path: Path) -> None:
    config = TransformerConfig(
        num_hidden_layers=1, hidden_size=32, num_attention_heads=2, intermediate_size=32, vocab_size=tokenizer.size,
        max_position_embeddings=64,
    )  # fmt: skip
    encoder = build_encoder(config)
    (tmp_path / "start").mkdir()
    model = Model(encoder, build_heads((MaskedLM(), NextSentence()), encoder))
    write_model(tmp_path / "start", model, tokenizer)
    pairs = [{"text": "the cat", "text_pair": WORDS[i], "label": "ab"[i % 2]} for i in range(12)]
    tags = [{"tokens": ["the", "cat", "sat😀"], "labels": ["O", "B-X", "O"]}] * 8
    questions = [
        {
            "id": str(i),
            "question": "who",
            "context": f"the cat {i} sat",
            "answers": {"text": ["cat"], "answer_start": [4]},
        }
        for i in range(8)
    ]
    base = FinetuneConfig(
        task=Classify(),
        max_length=16,
        training=FinetuneTraining(epochs=1, batch_size=4),
        optimizer=AdamW(),
        schedule=LinearDecay(),
    )
    for task, rows in ((Classify(), pairs), (Tag(), tags), (Span(), questions)):
        found = bertie.finetune(
            replace(base, task=task), rows, tmp_path / "start", tmp_path / task.kind, dev=rows, threads=1
        )
        assert found.losses
    assert bertie.load(tmp_path / "classify").predict([("the cat", "sat")])
    assert bertie.load(tmp_path / "start").embed(["the cat"]).shape == (1, 32)
    assert len(bertie.load(tmp_path / "start").fill_mask("the <mask> sat")[0]) == 5
