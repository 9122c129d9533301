"""One model that fills masks and reads from the left: each sequence belongs to one objective, and has its direction."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.small_recipes import pretraining

import bertie
from bertie.base.contracts import FILLER
from bertie.base.errors import UsageError
from bertie.batches.contiguous import DocSentences
from bertie.batches.loader import Position
from bertie.corpus.shards import open_shards
from bertie.model.attention.attention import IMPLEMENTATIONS
from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder
from bertie.model.heads.vocabulary_heads import MaskedLMHead
from bertie.objectives import CausalLM, MaskedLM, MaskedNextToken, NextSentence, SpanBoundary
from bertie.objectives.label_row import label_row
from bertie.predict.generation import Generation
from bertie.predict.likelihood import perplexity
from bertie.pretraining.recipe import PretrainConfig

HYBRID = (MaskedLM(share=0.75, mlm_probability=0.3), CausalLM(share=0.25))


@pytest.fixture
def config(tiny_config: TransformerConfig) -> PretrainConfig:
    size = replace(tiny_config, norm_position="modern", position_embedding="rotary", type_vocab_size=0)
    return pretraining(size, DocSentences(max_length=32), HYBRID, steps=60, eval_every=30, max_eval_tokens=2000)


def test_each_sequence_has_one_objective_and_its_direction(config: PretrainConfig, small_shards: Path) -> None:
    shards = open_shards(small_shards)
    plan = next(config.resolved_phases[0].loader(shards, 0).steps(Position()))
    causal, sequences = 0, 0
    for number, row in enumerate(plan.all_rows):
        batch, targets = label_row(row, HYBRID, shards.tokenizer, 0, 1, number)
        owner = np.repeat(np.arange(len(row.ragged.lengths)), row.ragged.lengths)
        flags = batch.ragged.causal
        assert flags is not None
        assert not flags[owner[targets["mlm"].index]].any()
        assert flags[owner[targets["clm"].index]].all()
        np.testing.assert_array_equal(batch.input_ids[flags[owner]], row.input_ids[flags[owner]])
        np.testing.assert_array_equal(targets["clm"].label, row.input_ids[targets["clm"].index + 1])
        real = row.example != FILLER
        assert len(targets["clm"].index) == (row.ragged.lengths[real & flags] - 1).sum()
        causal, sequences = causal + flags[real].sum(), sequences + real.sum()
    assert 0.1 < causal / sequences < 0.4


@pytest.mark.parametrize("attention", ["automatic", "grouped", "looped", "dense", "eager"])
def test_states_are_those_of_a_model_of_each_direction(
    config: PretrainConfig, small_shards: Path, attention: Any
) -> None:
    shards = open_shards(small_shards)
    plan = next(config.resolved_phases[0].loader(shards, 0).steps(Position()))
    batch, _ = label_row(plan.all_rows[0], HYBRID, shards.tokenizer, 0, 1)
    assert attention in IMPLEMENTATIONS
    for changes in ({"norm_position": "post", "position_embedding": "learned"}, {"local_attention": 8}):
        torch.manual_seed(0)
        size = replace(config.model, vocab_size=shards.tokenizer.size, **changes)
        encoder = build_encoder(size, attention).eval()
        tensors = batch.tensors()
        found = encoder(tensors).last
        owner = torch.as_tensor(np.repeat(np.array(batch.ragged.causal), batch.ragged.lengths))
        for causal in (False, True):
            one = build_encoder(replace(size, causal=causal), attention).eval()
            one.load_state_dict(encoder.state_dict())
            plain = replace(tensors, ragged=replace(tensors.ragged, causal=None))
            torch.testing.assert_close(found[owner == causal], one(plain).last[owner == causal], atol=2e-5, rtol=1e-4)
            rows = torch.arange(0, len(owner), 3)
            torch.testing.assert_close(encoder(tensors, rows).last, found[rows], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("masked", [HYBRID[0], MaskedNextToken(share=0.75)])
def test_a_hybrid_learns_both(
    config: PretrainConfig, small_shards: Path, small_texts: list[str], tmp_path: Path, masked: Any
) -> None:
    recipe = replace(config, objectives=(masked, HYBRID[1]))
    last = bertie.pretrain(recipe, small_shards, tmp_path / "run", threads=1)["eval"]
    shards = open_shards(small_shards)
    unigrams = shards.unigram_loss
    assert last[f"{masked.kind}_loss"] < unigrams + 0.3
    assert last["clm_loss"] < unigrams + 0.3
    model = bertie.load(tmp_path / "run", threads=1)
    texts = [" ".join(text.split()[:20]) for text in small_texts[:5]]
    both, left = model.pseudo_log_likelihood(texts), model.pseudo_log_likelihood(texts, from_left=True)
    assert (abs(both - left) > 0.01).all()
    token_model = model.token_model(from_left=True)
    assert token_model.kind == "clm"
    assert isinstance(token_model.head, MaskedLMHead)
    assert perplexity(left.sum(), sum(map(len, shards.tokenizer.encode(texts)))) < np.exp(unigrams + 1)
    # The first token does not see the others, so that what follows does not change its likelihood.
    scores: list[Any] = list(model.score_tokens(["the ban", "the kopa"], from_left=True))
    assert scores[0].log_probabilities[0] == pytest.approx(scores[1].log_probabilities[0], abs=1e-6)
    assert model.generate("the ban", Generation(length=4))[0].startswith("the ban")
    for name, expected in (("masked", both), ("causal", left)):
        alone = bertie.load(tmp_path / "run" / name, threads=1)
        assert alone.model.encoder.config.causal == (name == "causal")
        np.testing.assert_allclose(alone.pseudo_log_likelihood(texts), expected, rtol=1e-5)


def test_wrong_shares_are_refused(config: PretrainConfig) -> None:
    with pytest.raises(UsageError, match=r"shares of the objectives sum to 0.5"):
        replace(config, objectives=(MaskedLM(share=0.25), CausalLM(share=0.25)))
    with pytest.raises(UsageError, match=r"needs model.causal true, or a share below 1"):
        replace(config, objectives=(CausalLM(),))
    with pytest.raises(UsageError, match=r"clm\.share needs model\.norm_position modern"):
        replace(config, model=replace(config.model, norm_position="post"))
    with pytest.raises(UsageError, match="some have a share, and others read all sequences"):
        replace(config, objectives=(MaskedLM(share=0.75, masking="spans"), HYBRID[1], SpanBoundary()))
    with pytest.raises(UsageError, match=r"does not work with objectives.nsp"):
        replace(config, objectives=(*HYBRID, NextSentence()))
