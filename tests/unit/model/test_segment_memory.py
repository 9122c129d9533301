"""Transformer-XL and XLNet in segments compute what a loop over the segments computes, with the memory as a constant."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from encoders import built, sequences
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from bertie.base.contracts import Batch, MicroBatch
from bertie.batches.collate import collate
from bertie.model.attention import segment_memory
from bertie.model.attention.relative_attention import relative_dense
from bertie.model.encoder import build_encoder
from bertie.model.encoders import xlnet
from bertie.model.encoders.transformer_xl import TransformerXlConfig
from bertie.model.encoders.xlnet import XlnetConfig
from bertie.model.flops import model_flops
from bertie.model.model import Model
from bertie.model.positions import relative_embeddings
from bertie.objectives import AnyObjective, CausalLM, PermutationLM
from bertie.objectives.label_row import label_row
from bertie.pretraining.initial_weights import new_model
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.training.memory import estimate_memory

OFF = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
CAUSAL = TransformerXlConfig(3, 8, 2, 12, segment_length=4, memory_length=6, vocab_size=40, **OFF)
PERMUTED = XlnetConfig(3, 8, 2, 12, segment_length=4, memory_length=6, vocab_size=40, max_position_embeddings=64, **OFF)
MEMORIES = [(4, 6), (4, 3), (3, 64), (64, 6)]
LENGTHS = (13, 1, 4, 5)


def packed(*texts: np.ndarray, order: np.ndarray | None = None) -> Batch:
    return replace(collate(sequences(*texts), 64), order=order).tensors()


def texts(lengths: tuple[int, ...] = LENGTHS) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.integers(5, 40, length).astype(np.int32) for length in lengths]


def orders(lengths: tuple[int, ...] = LENGTHS) -> list[np.ndarray]:
    """Ranks of which about half are 0, among them the first."""
    rng = np.random.default_rng(2)
    ranks = [rng.permutation(length) for length in lengths]
    return [np.where(rng.random(len(own)) < 0.5, own, 0) * (np.arange(len(own)) > 0) for own in ranks]


class Loop:
    """One segment after the other, with the memory of each layer as a constant; the formulas of the papers, dense."""

    def __init__(self, encoder: Any):
        self.encoder, self.config = encoder, encoder.config
        self.causal = isinstance(self.config, TransformerXlConfig)

    def attended(self, layer: Any, x: Tensor, places: Tensor, known: Tensor, from_: Tensor, seen: Tensor) -> Tensor:
        """Return what rows x at some places gather from known states at the places from_."""
        part, size, heads = layer.attention, self.config.hidden_size, self.config.num_attention_heads
        q, k, v = part.qkv.weight.chunk(3)
        # Embeddings of distances are single precision (tests/unit/model/test_xlnet.py has their formula).
        apart = relative_embeddings((places[:, None] - from_[None, :]).flatten(), size).double()
        r = (apart @ part.distance.weight.T).view(len(places), len(from_), heads, -1)
        asking, keys, values = ((y @ w.T).unflatten(1, (heads, -1)) for y, w in ((x, q), (known, k), (known, v)))
        scores = torch.einsum("qnh,knh->nqk", asking + part.content_bias.view(heads, -1), keys)
        scores = scores + torch.einsum("qnh,qknh->nqk", asking + part.position_bias.view(heads, -1), r)
        # XLNet's term for two tokens of the same segment is the same for all keys here, so that it cancels out.
        weights = (scores / math.sqrt(size / heads)).masked_fill(~seen, -math.inf).softmax(-1)
        return torch.einsum("nqk,knh->qnh", weights, values).flatten(1) @ part.out.weight.T

    def layer(self, layer: Any, x: Tensor, *rest: Tensor) -> Tensor:
        act = F.relu if self.causal else F.gelu
        x = layer.attention_norm(x + self.attended(layer, x, *rest))
        return layer.norm(x + layer.down(act(layer.up(x))))

    def run(self, ids: np.ndarray, order: np.ndarray | None = None) -> Tensor:
        """Return the last hidden states of a text: those of the query stream, if it has an order."""
        config, word = self.config, self.encoder.embeddings.word.weight
        length = config.segment_length
        memory = [word.new_zeros(0, config.hidden_size) for _ in self.encoder.layers]
        results = []
        for start in range(0, len(ids), length):
            own = torch.arange(start, min(start + length, len(ids)))
            rank = torch.zeros(len(own)) if order is None else torch.tensor(order[own.numpy()])
            rank = own if self.causal else rank
            h = word[ids[own.numpy()]] * (math.sqrt(config.hidden_size) if self.causal else 1)
            g = None if order is None else self.encoder.embeddings.mask.weight.expand(len(own), -1)
            for number, layer in enumerate(self.encoder.layers):
                past = memory[number]
                known, places = torch.cat([past, h]), torch.arange(start - len(past), start + len(own))
                remembered = torch.ones(len(own), len(past), dtype=torch.bool)
                seen = torch.cat([remembered, rank[None, :] <= rank[:, None]], 1)
                new = self.layer(layer, h, own, known, places, seen)
                if g is not None:
                    limit = (rank - 1).clamp(min=0)
                    seen = torch.cat([remembered, rank[None, :] <= limit[:, None]], 1)
                    g = self.layer(layer, g, own, known, places, seen)
                memory[number] = known[max(len(known) - config.memory_length, 0) :].detach()
                h = new
            results.append(h if g is None else g)
        return torch.cat(results)


def gradients(encoder: Any, states: Tensor) -> list[Tensor]:
    """Return the gradients of a loss of the states."""
    torch.manual_seed(3)
    loss = F.linear(states, encoder.embeddings.word.weight).log_softmax(-1)[:, ::3].sum()
    weights = list(encoder.parameters())
    found = torch.autograd.grad(loss, weights, allow_unused=True)
    pairs = zip(found, weights, strict=True)
    return [loss.detach(), *(torch.zeros_like(weight) if each is None else each for each, weight in pairs)]


def equal(found: list[Tensor], expected: list[Tensor]) -> None:
    for first, second in zip(found, expected, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-12 * max(float(second.detach().abs().max()), 1.0))


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize(("segment", "memory"), [*MEMORIES, (4, 0)])
def test_transformer_xl_is_a_loop_over_segments(
    segment: int, memory: int, dense: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss and all gradients, with both implementations of attention."""
    if dense:
        monkeypatch.setattr(xlnet, "relative_grouped", relative_dense)
    encoder = built(replace(CAUSAL, segment_length=segment, memory_length=memory)).double()
    given = texts()
    expected = torch.cat([Loop(encoder).run(ids) for ids in given])
    found = encoder(packed(*given)).last
    equal([found], [expected])
    equal(gradients(encoder, found), gradients(encoder, expected))


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(("segment", "memory"), MEMORIES)
def test_xlnet_with_memory_is_a_loop_over_segments(segment: int, memory: int, ordered: bool) -> None:
    """The query stream of all tokens, or without an order the only stream."""
    encoder, given = built(replace(PERMUTED, segment_length=segment, memory_length=memory)).double(), texts()
    ranks = orders() if ordered else [None] * len(given)
    expected = torch.cat([Loop(encoder).run(ids, own) for ids, own in zip(given, ranks, strict=True)])
    batch = packed(*given, order=np.concatenate(orders()).astype(np.int32) if ordered else None)
    found = encoder(batch).last
    equal([found], [expected])
    equal(gradients(encoder, found), gradients(encoder, expected))
    rows = torch.tensor([0, 3, 9, 14, 17, 22])
    equal([encoder(batch, rows).last], [expected[rows]])


def test_the_last_layer_runs_at_some_rows_and_all_layers_are_returned() -> None:
    encoder, batch = built(CAUSAL).double(), packed(*texts())
    hidden, rows = encoder(batch, all_layers=True), torch.tensor([0, 3, 12, 13, 18, 22])
    assert hidden.layers is not None
    equal([encoder(batch, rows).last, hidden.layers[-1]], [hidden.last[rows], hidden.last])
    fewer = build_encoder(replace(CAUSAL, num_hidden_layers=2)).double()
    fewer.load_state_dict({name: w for name, w in encoder.state_dict().items() if not name.startswith("layers.2.")})
    equal([hidden.layers[2]], [fewer(batch).last])


@pytest.mark.parametrize("config", [CAUSAL, PERMUTED])
def test_a_long_text_is_computed_in_parts(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without gradients, few segments at once: memory for the attention of a whole book would be too large."""
    encoder, lengths = built(config).double(), (*LENGTHS, 22)
    order = None if config is CAUSAL else np.concatenate(orders(lengths)).astype(np.int32)
    batch, rows = packed(*texts(lengths), order=order), torch.tensor([0, 3, 12, 13, 30, 44])
    expected = encoder(batch).last, encoder(batch, rows).last
    monkeypatch.setattr(segment_memory, "PART_TOKENS", 9)
    with torch.no_grad():
        segments = segment_memory.segments_of(batch.ragged, len(batch.input_ids), 4, 6)
        assert len(list(segment_memory.parts_of(segments))) > 5
        equal([encoder(batch).last, encoder(batch, rows).last], [*expected])


@pytest.mark.parametrize(("segment", "memory"), [*MEMORIES, (4, 0)])
def test_reading_on_is_reading_at_once(segment: int, memory: int) -> None:
    """Token by token, or many at a time, several texts together. Only what later tokens see is kept."""
    encoder, given = built(replace(CAUSAL, segment_length=segment, memory_length=memory)).double(), texts((30, 17))
    expected = encoder(packed(*given)).last.split([30, 17])
    for sizes in ([1] * 17, [5, 1, 3, 8], [17]):
        readings, found, at = [encoder.begin(), encoder.begin()], [[], []], 0
        for size in sizes:
            part = [ids[at : at + size] for ids in given]
            states, readings = encoder.read_on(packed(*part), readings)
            for own, new in zip(found, states.split([size, size]), strict=True):
                own.append(new)
            at += size
            assert all(len(kv) <= memory + segment - 1 for reading in readings for kv in reading.layers)
        equal([torch.cat(own) for own in found], [states[:17] for states in expected])
    states, _ = encoder.read_on(packed(given[0][17:]), readings[:1])  # the first text goes on alone
    equal([states], [expected[0][17:]])


def test_a_token_sees_its_segment_the_memory_and_no_other_text() -> None:
    """Through several layers, it also knows of older text, but never of the text that follows."""
    encoder = built(replace(CAUSAL, num_hidden_layers=1)).double()
    [ids] = texts((22,))
    before = encoder(packed(ids)).last
    for changed in range(22):
        other = ids.copy()
        other[changed] = 39 if ids[changed] != 39 else 38
        after = encoder(packed(*texts((7,)), other)).last[7:]
        differs = [not torch.allclose(a, b, atol=1e-12) for a, b in zip(before, after, strict=True)]
        assert differs == [changed <= i and changed >= i // 4 * 4 - 6 for i in range(22)]


def micro_batch(objective: AnyObjective, tokenizer: Tokenizer) -> MicroBatch:
    rng = np.random.default_rng(0)
    made = [np.append(tokenizer.cls_id, rng.integers(60, 500, n)).astype(np.int32) for n in (254, 254, 100)]
    batch = collate(sequences(*made), 256)
    return MicroBatch.of(*label_row(batch, (objective,), tokenizer, 0))


def large(config: Any) -> tuple[Any, AnyObjective]:
    sizes = {"hidden_size": 64, "intermediate_size": 256, "vocab_size": 500, "max_position_embeddings": 256}
    sizes |= {"segment_length": 32, "memory_length": 32}
    return replace(config, **sizes), CausalLM() if config is CAUSAL else PermutationLM(masking="tokens")


@pytest.mark.parametrize("config", [CAUSAL, PERMUTED])
def test_flops_agree_with_torchs_counter(config: Any, small_tokenizer: Tokenizer) -> None:
    """Apart from the second projection of the memory, and from products with distances between no query and key."""
    config, objective = large(config)
    micro = micro_batch(objective, small_tokenizer)
    model = new_model(config, (objective,), 0)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(micro.tensors())
    # A query of 32 has about 63 keys, and products with all 127 distances.
    rows = 2 * len(micro.batch.input_ids) + (1 if config is CAUSAL else 3) * len(micro.rows)
    assert counter.get_total_flops() - 2 * 64 * 64 * rows == pytest.approx(model_flops(model, micro) / 3, rel=0.06)


@pytest.mark.parametrize("config", [CAUSAL, PERMUTED])
def test_memory_is_estimated_without_running(config: Any, small_tokenizer: Tokenizer) -> None:
    """The meta device has no number of segments: an upper bound."""
    config, objective = large(config)
    micro = micro_batch(objective, small_tokenizer)

    def build(size: Any) -> Model:
        return new_model(size, (objective,), 0)

    model, saved = build(config), dict[int, Tensor]()
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}

    def record(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        model(micro.tensors())
    expected = sum(tensor.untyped_storage().nbytes() for key, tensor in saved.items() if key not in own)
    assert expected < estimate_memory(build, config, micro, recompute=False).activations < 4 * expected
