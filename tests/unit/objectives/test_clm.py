from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from bertie.base.contracts import Sequence, Targets
from bertie.batches.collate import collate, filler
from bertie.corpus.shards import open_shards
from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder
from bertie.model.encoders.lstm import BidirectionalLMHead
from bertie.model.heads.vocabulary_heads import VocabularyHead
from bertie.model.losses.chunked_loss import chunked_vocabulary_loss
from bertie.model.losses.losses import cross_entropy
from bertie.model.model import Model
from bertie.objectives.bilm import BidirectionalLM
from bertie.objectives.clm import CausalLM
from bertie.objectives.initialization import COOCCURRENCE_NORM
from bertie.objectives.objective import Labeling
from bertie.tokenizers.tokenizer import Tokenizer


def sequence(ids: list[int]) -> Sequence:
    return Sequence(np.array(ids, np.int32), np.zeros(len(ids), np.int32), np.ones(len(ids), bool))


def test_every_token_predicts_the_next_one_of_its_sequence(small_tokenizer: Tokenizer) -> None:
    batch = collate([sequence([2, 7, 8, 3]), sequence([2, 9, 3]), *filler(3, small_tokenizer.pad_id, 64)], 64)
    after, targets, _ = CausalLM().label(batch, Labeling(small_tokenizer, np.random.default_rng(0)))
    assert after is batch
    assert targets.index.tolist() == list(range(10))
    found = [(int(i), int(label)) for i, label, weight in zip(*vars(targets).values(), strict=True) if weight]
    assert found == [(0, 7), (1, 8), (2, 3), (4, 9), (5, 3)]


@pytest.mark.parametrize("chunk", [1, 7 * 50, 23 * 50])
@pytest.mark.parametrize("cached", [1, 3 * 50, 1 << 19])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_chunked_loss_agrees_with_cross_entropy(
    chunk: int, cached: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertie.model.losses.chunked_loss.CHUNK_LOGITS", chunk)
    monkeypatch.setattr("bertie.model.losses.chunked_loss.MIN_ROWS", 1)
    monkeypatch.setattr("bertie.model.losses.loss_slope.CHUNK", cached)
    torch.manual_seed(0)
    x = torch.randn(23, 8, dtype=dtype, requires_grad=True)
    matrix = torch.randn(50, 8, dtype=dtype, requires_grad=True)
    bias = torch.randn(50, dtype=dtype, requires_grad=True)
    targets = Targets(torch.arange(23), torch.randint(50, (23,)), torch.rand(23).round(decimals=1))
    for own in (None, bias):
        found = chunked_vocabulary_loss(x, matrix, targets, own)
        expected = cross_entropy(F.linear(x, matrix, own), targets)
        torch.testing.assert_close(found.total, expected.total.to(dtype))
        torch.testing.assert_close(found.hits, expected.hits.to(dtype))
        inputs = (x, matrix) if own is None else (x, matrix, own)
        gradients = [torch.autograd.grad(3 * loss.total, inputs) for loss in (found, expected)]
        torch.testing.assert_close(*gradients)
        with torch.no_grad():
            torch.testing.assert_close(chunked_vocabulary_loss(x, matrix, targets, own).total, found.total.detach())


def test_the_chunked_loss_computes_in_half_precision_under_autocast() -> None:
    torch.manual_seed(0)
    x, matrix = torch.randn(23, 8, requires_grad=True), torch.randn(50, 8, requires_grad=True)
    targets = Targets(torch.arange(23), torch.randint(50, (23,)), torch.ones(23))
    exact = torch.autograd.grad(chunked_vocabulary_loss(x, matrix, targets).total, (x, matrix))
    with torch.autocast("cpu", torch.bfloat16):
        loss = chunked_vocabulary_loss(x, matrix, targets)
    assert loss.total.dtype == torch.float32
    for found, expected in zip(torch.autograd.grad(loss.total, (x, matrix)), exact, strict=True):
        assert found.dtype == torch.float32
        assert (found - expected).norm() < 0.02 * expected.norm()


def test_an_evaluation_computes_the_logits_and_no_gradients() -> None:
    x, matrix = torch.randn(23, 8), torch.randn(50, 8, requires_grad=True)
    targets = Targets(torch.arange(23), torch.arange(23), torch.ones(23))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        chunked_vocabulary_loss(x, matrix, targets)
    assert counter.get_total_flops() == 2 * 23 * 8 * 50


def test_the_chunked_loss_has_shapes_without_data() -> None:
    """The estimate of memory computes on torch's meta device."""
    x, matrix = (torch.empty(size, 8, device="meta", requires_grad=True) for size in (23, 50))
    targets = Targets(*(torch.empty(23, dtype=dtype, device="meta") for dtype in (torch.long, torch.long, torch.float)))
    chunked_vocabulary_loss(x, matrix, targets).total.backward()
    assert x.grad is not None


@pytest.mark.parametrize(
    "objective", [CausalLM(initialization="cooccurrence"), BidirectionalLM(initialization="cooccurrence")]
)
def test_word_embeddings_start_from_cooccurrences(objective: CausalLM | BidirectionalLM, small_shards: Path) -> None:
    shards, encoder = open_shards(small_shards), build_encoder(TransformerConfig(1, 16, 2, 16, vocab_size=500))
    embeddings = encoder.embeddings.word
    before = embeddings.weight.norm(dim=1).mean()
    head = VocabularyHead(embeddings) if isinstance(objective, CausalLM) else BidirectionalLMHead(embeddings)
    model = Model(encoder, {objective.kind: head})
    objective.initialize(model, shards)
    seen = torch.from_numpy(shards.train.frequencies(500)) > 0
    norms = embeddings.weight.norm(dim=1)[seen]
    torch.testing.assert_close(norms, (COOCCURRENCE_NORM * before).expand_as(norms))
    replace(objective, initialization="random").initialize(model, shards)
    assert torch.equal(embeddings.weight.norm(dim=1)[seen], norms)
