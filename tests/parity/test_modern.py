"""A run of the modern recipe is a ModernBERT: transformers computes the same from its folder, padded or not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import bertie
from bertie import config as configuration
from bertie.batches.collate import collate
from bertie.contracts import Sequence
from bertie.pretraining.recipe import PretrainConfig

transformers = pytest.importorskip("transformers", reason="needs the package transformers")
pytestmark = pytest.mark.usefixtures("one_thread")
LENGTHS = (90, 17, 300, 4)  # one is longer than the local window of 128 tokens


def test_logits_are_those_of_transformers(small_shards: Path, tmp_path: Path) -> None:
    recipe = configuration.load(PretrainConfig, "modern-mini", "pretrain")
    training = replace(recipe.training, steps=10, precision="fp32", eval_every=0, checkpoint_every=0)
    bertie.pretrain(replace(recipe, training=training), small_shards, tmp_path / "run", threads=1)
    model = bertie.load(tmp_path / "run").model
    theirs, info = transformers.AutoModelForMaskedLM.from_pretrained(
        tmp_path / "run", output_loading_info=True, attn_implementation="eager"
    )
    assert type(theirs) is transformers.ModernBertForMaskedLM
    assert not any(info[name] for name in ("missing_keys", "mismatched_keys", "unexpected_keys"))

    rng = np.random.default_rng(0)
    texts = [torch.from_numpy(rng.integers(5, 500, length)) for length in LENGTHS]
    sequences = [Sequence(ids.int().numpy(), np.zeros(len(ids), np.int32), np.ones(len(ids), bool)) for ids in texts]
    input_ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    with torch.inference_mode():
        ours = model.heads["mlm"].logits(model.encoder(collate(sequences, sum(LENGTHS)).tensors()).last)  # type: ignore[operator]
        padded = theirs.eval()(input_ids=input_ids, attention_mask=mask.long()).logits[mask]
        alone = torch.cat([theirs(input_ids=ids[None]).logits[0] for ids in texts])
    assert ours.std() > 0.5
    for logits in (padded, alone):
        torch.testing.assert_close(ours, logits, atol=1e-4, rtol=0)
