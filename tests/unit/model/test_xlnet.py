from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from encoders import built, sequences
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from bertie.base import runtime
from bertie.base.contracts import Batch, MicroBatch, Sequence
from bertie.batches.collate import collate
from bertie.model.encoders.xlnet import XlnetConfig, XlnetEncoder
from bertie.model.flops import model_flops
from bertie.objectives import PermutationLM
from bertie.objectives.objective import Labeling
from bertie.pretraining.initial_weights import new_model
from bertie.tokenizers.tokenizer import Tokenizer

CONFIG = XlnetConfig(
    2, 8, 2, 12, vocab_size=40, max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
)
IDS, SEGMENTS, ORDER = [2, 9, 4, 7, 3, 5, 3], [0, 0, 0, 0, 0, 1, 1], [0, 2, 0, 3, 0, 1, 0]


def packed(*texts: tuple[list[int], list[int], list[int] | None]) -> Batch:
    """Return a batch from the ids, segments and order of each sequence."""
    made = [Sequence(np.array(i, np.int32), np.array(s, np.int32), np.ones(len(i), bool)) for i, s, _ in texts]
    orders = [order for _, _, order in texts if order is not None]
    return replace(collate(made, 64), order=np.concatenate(orders) if orders else None).tensors()


class ByHand:
    """The formulas of the paper (section 2.3 and appendix A.2), for a single sequence, one token and one head after another."""

    def __init__(self, encoder: XlnetEncoder, ids: list[int], segments: list[int], order: list[int]):
        self.encoder, self.ids, self.segments, self.order = encoder, ids, segments, order
        self.size, self.heads = encoder.config.hidden_size, encoder.config.num_attention_heads

    def distance(self, apart: int) -> Tensor:
        waves = [apart / 10_000 ** (2 * i / self.size) for i in range(self.size // 2)]
        return torch.tensor([math.sin(w) for w in waves] + [math.cos(w) for w in waves], dtype=torch.float64)

    def gathered(self, layer: int, x: Tensor, i: int, seen: list[int], h: list[Tensor]) -> Tensor:
        part = self.encoder.layers[layer].attention
        q, k, v = part.qkv.weight.chunk(3)
        heads = []
        for n in range(self.heads):
            rows = slice(n * self.size // self.heads, (n + 1) * self.size // self.heads)
            query, scores = q[rows] @ x, []
            for j in seen:
                segment = part.segment.weight[int(self.segments[i] != self.segments[j])][rows]
                score = (query + part.content_bias[rows]) @ (k[rows] @ h[j])
                score = score + (query + part.position_bias[rows]) @ (part.distance.weight[rows] @ self.distance(i - j))
                score = score + (query + part.segment_bias[rows]) @ segment
                scores.append(score / math.sqrt(self.size / self.heads))
            weights = torch.stack(scores).softmax(0)
            heads.append(sum(w * (v[rows] @ h[j]) for w, j in zip(weights, seen, strict=True)))
        return part.out.weight @ torch.cat(heads)

    def layer(self, layer: int, x: Tensor, i: int, seen: list[int], h: list[Tensor]) -> Tensor:
        part = self.encoder.layers[layer]
        x = part.attention_norm(x + self.gathered(layer, x, i, seen, h))
        return part.norm(x + part.down(F.gelu(part.up(x))))

    def both_streams(self, layers: int) -> tuple[list[Tensor], dict[int, Tensor]]:
        """Return the content stream of every token, and the query stream of those that are predicted."""
        every, order = range(len(self.ids)), self.order
        h = [self.encoder.embeddings.word.weight[i] for i in self.ids]
        g = {i: self.encoder.embeddings.mask.weight[0] for i in every if order[i] > 0}
        for n in range(layers):
            content = [
                self.layer(n, h[i], i, [j for j in every if order[j] == 0 or order[j] < order[i] or j == i], h)
                for i in every
            ]
            g = {i: self.layer(n, x, i, [j for j in every if order[j] < order[i]], h) for i, x in g.items()}
            h = content
        return h, g


def test_the_streams_compute_the_formulas_of_the_paper() -> None:
    encoder, other = built(CONFIG).double(), ([8, 6, 3], [0, 0, 0], [0, 1, 0])
    batch = packed(other, (IDS, SEGMENTS, ORDER), other)
    rows = torch.tensor([1, 3 + 1, 3 + 3, 3 + 5])
    _, expected = ByHand(encoder, IDS, SEGMENTS, ORDER).both_streams(2)
    torch.testing.assert_close(encoder(batch, rows).last[1:], torch.stack([expected[i] for i in (1, 3, 5)]))
    torch.testing.assert_close(encoder(batch).last[rows], encoder(batch, rows).last)


def test_without_an_order_every_token_sees_all_others() -> None:
    encoder = built(CONFIG).double()
    batch = packed(([8, 6, 3], [0, 0, 0], None), (IDS, SEGMENTS, None))
    hidden = encoder(batch, all_layers=True)
    assert hidden.layers is not None
    for number, states in enumerate(hidden.layers):
        expected, _ = ByHand(encoder, IDS, SEGMENTS, [0] * 7).both_streams(number)
        torch.testing.assert_close(states[3:], torch.stack(expected))
    torch.testing.assert_close(hidden.last, hidden.layers[-1])
    rows = torch.tensor([0, 4, 9])
    torch.testing.assert_close(encoder(batch, rows).last, hidden.last[rows])


@pytest.mark.parametrize("changed", range(7))
def test_a_prediction_depends_only_on_the_context_and_on_earlier_predictions(changed: int) -> None:
    """Tokens that must not matter do not change a single bit, however many layers there are."""
    encoder = built(replace(CONFIG, num_hidden_layers=4))
    rows = torch.tensor([1, 3, 5])
    before = encoder(packed((IDS, SEGMENTS, ORDER)), rows).last
    ids = [30 if i == changed else token for i, token in enumerate(IDS)]
    after = encoder(packed((ids, SEGMENTS, ORDER)), rows).last
    for row, old, new in zip(rows.tolist(), before, after, strict=True):
        assert torch.equal(old, new) == (ORDER[changed] >= ORDER[row])


def test_rows_that_are_not_predicted_see_the_context() -> None:
    """Placeholders of the objective have such rows. Their states are finite, and their weight in the loss is 0."""
    encoder = built(CONFIG)
    rows = torch.arange(7)
    first = encoder(packed((IDS, SEGMENTS, ORDER)), rows).last
    changed = [30 if rank else token for rank, token in zip(ORDER, IDS, strict=True)]
    second = encoder(packed((changed, SEGMENTS, ORDER)), rows).last
    context = torch.tensor(ORDER) == 0
    assert torch.isfinite(first).all()
    assert torch.equal(first[context], second[context])


def test_mixed_precision_is_close_to_single_precision() -> None:
    encoder, batch, rows = built(CONFIG), packed((IDS, SEGMENTS, ORDER)), torch.tensor([1, 3, 5])
    exact = encoder(batch, rows).last
    with runtime.autocast("bf16", torch.device("cpu")):
        half = encoder(batch, rows).last
    torch.testing.assert_close(half.float(), exact, atol=0.1, rtol=0.1)
    half.float().square().sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


def micro_batch(tokenizer: Tokenizer, ordered: bool) -> MicroBatch:
    ids = np.random.default_rng(0).integers(60, 500, (8, 64)).astype(np.int32)
    ids[:, 0] = tokenizer.cls_id
    batch, targets, _ = PermutationLM(masking="tokens").label(
        collate(sequences(*ids), 64), Labeling(tokenizer, np.random.default_rng(0))
    )
    return MicroBatch.of(batch if ordered else replace(batch, order=None), {"plm": targets})


@pytest.mark.parametrize("ordered", [True, False])
def test_flops_agree_with_torchs_counter(small_tokenizer: Tokenizer, ordered: bool) -> None:
    """Apart from products with distances that lie between no query and key, which are about as many as those that count."""
    config = replace(CONFIG, num_hidden_layers=3, hidden_size=64, intermediate_size=256, vocab_size=500)
    micro = micro_batch(small_tokenizer, ordered)
    model = new_model(config, (PermutationLM(),), 0)
    with FlopCounterMode(display=False) as counter:
        model(micro.tensors())["plm"].total.backward()
    queries = np.bincount(micro.rows // 64)
    pairs = (3 - 1) * (8 * 64**2 + ordered * 64 * queries.sum()) + 64 * queries.sum()
    assert counter.get_total_flops() - 6 * 64 * pairs == pytest.approx(model_flops(model, micro), rel=0.03)
