"""A run of the modern recipe is a ModernBERT: transformers computes the same from its folder, padded or not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import bertie
from bertie.base import config as configuration
from bertie.checkpoints.folder import write_model
from bertie.model.config import TransformerConfig
from bertie.model.initialization import initialize_weights
from bertie.predict.vectors import head_outputs
from bertie.pretraining.initial_weights import new_model
from bertie.pretraining.recipe import PretrainConfig
from bertie.tokenizers.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers", reason="needs the package transformers")


def test_logits_are_those_of_transformers(small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    recipe = configuration.load(PretrainConfig, "modern-mini", "pretrain")
    assert isinstance(recipe.model, TransformerConfig)
    config = replace(recipe.model, vocab_size=small_tokenizer.size)
    model = new_model(config, recipe.objectives, 0)
    initialize_weights(model, 0.2)
    write_model(tmp_path, model, small_tokenizer, max_length=512)
    loaded = bertie.load(tmp_path, threads=1)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert type(theirs) is transformers.ModernBertForMaskedLM
    found = bertie.verify(tmp_path, "transformers")
    assert found.problem == ""
    compared = {each.what: each.cases for each in found.comparisons}
    assert compared["last hidden states of texts"] > 10  # one is longer than the local window of 128 tokens
    assert compared["outputs of the head (masked LM)"] > 5

    texts = ["the ka du " * 60, "a text", "the longer text of more words"]
    inputs = transformers.AutoTokenizer.from_pretrained(tmp_path)(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        padded = theirs(**inputs).logits
    sequences = loaded.text_sequences(texts, "")
    assert len(sequences[0]) > 128
    ours = head_outputs(loaded.model, "mlm", sequences)
    assert ours[0].std() > 0.1
    for logits, row in zip(ours, padded, strict=True):
        np.testing.assert_allclose(logits, row[: len(logits)].numpy(), atol=1e-4 * float(row.abs().max()))


def test_a_model_that_reads_both_ways_is_a_modernbert_and_its_decoder(
    small_shards: Path, small_texts: list[str], tmp_path: Path
) -> None:
    objectives = [{"kind": "mlm", "share": 0.75}, {"kind": "clm", "share": 0.25}]
    training = {"steps": 2, "eval_every": 0, "precision": "fp32"}
    recipe = {"extends": "modern-mini", "objectives": objectives, "training": training}
    bertie.pretrain(recipe, small_shards, tmp_path / "run", threads=1)
    text = " ".join(small_texts[:3])[:600]
    for name, auto, kind in (("masked", "AutoModelForMaskedLM", "mlm"), ("causal", "AutoModelForCausalLM", "clm")):
        folder = tmp_path / "run" / name
        ours = bertie.load(folder, threads=1)
        theirs = getattr(transformers, auto).from_pretrained(folder, attn_implementation="eager").eval()
        inputs = transformers.AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
        with torch.inference_mode():
            logits = theirs(**inputs).logits[0].numpy()
        [found] = head_outputs(ours.model, kind, ours.text_sequences([text], ""))
        assert len(found) > 130
        np.testing.assert_allclose(found, logits, atol=1e-4 * float(abs(logits).max()))
