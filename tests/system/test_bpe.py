"""Span and embed with a byte-level BPE vocabulary. tests/unit and tests/parity have the other steps with one."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import bertie
from bertie.checkpoints.folder import write_model
from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder
from bertie.model.model import Model

WORDS = "the cat dog sat ran on under mat house tree wasn't very big small 😀 über"


def test_a_fine_tuned_model_answers_and_embeds(tiny_config: TransformerConfig, tmp_path: Path) -> None:
    rng = random.Random(0)
    (tmp_path / "t.txt").write_text("\n".join(" ".join(rng.choices(WORDS.split(), k=8)) for _ in range(300)), "utf-8")
    tokenizer = bertie.train_tokenizer(tmp_path / "t.txt", tmp_path / "tok", algorithm="bpe", vocab_size=290)
    (tmp_path / "start").mkdir()
    write_model(tmp_path / "start", Model(build_encoder(replace(tiny_config, vocab_size=290)), {}), tokenizer)
    contexts = [f"über {i} 😀 sat" for i in range(8)]
    rows = [{"question": "who", "context": context, "answers": ["😀"]} for context in contexts]
    settings = {"extends": "span", "max_length": 24, "training": {"epochs": 1, "batch_size": 4}}
    bertie.finetune(settings, rows, tmp_path / "start", tmp_path / "run", dev=rows, threads=1)
    model = bertie.load(tmp_path / "run", threads=1)
    for found, context in zip(model.predict([("who", context) for context in contexts]), contexts, strict=True):
        assert found.answer in context
    assert model.embed(contexts).shape == (8, tiny_config.hidden_size)
