from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bertie.base.contracts import Batch, MicroBatch, Sequence, Targets
from bertie.batches.collate import collate, filler
from bertie.model import transformer
from bertie.model.attention.attention import AttentionKind
from bertie.model.config import TransformerConfig
from bertie.model.encoder import Encoder, build_encoder
from bertie.model.heads.heads import PooledHead
from bertie.model.heads.vocabulary_heads import MaskedLMHead
from bertie.model.initialization import initialize_weights
from bertie.model.layers import Layer
from bertie.model.model import Model
from bertie.objectives import MaskedLM, NextSentence
from bertie.objectives.objective import Labeling

LENGTHS = [7, 1, 20, 64, 2, 33]
OBJECTIVES = (MaskedLM(), NextSentence())


def sequences(lengths: list[int] = LENGTHS) -> list[Sequence]:
    rng = np.random.default_rng(1)
    result = []
    for n in lengths:
        ids = rng.integers(0, 500, n).astype(np.int32)
        segments = (np.arange(n) > n // 2).astype(np.int32)
        result.append(Sequence(ids, segments, np.ones(n, bool), pair_label=int(rng.integers(0, 2))))
    return result


def new_encoder(
    config: TransformerConfig, attention: AttentionKind = "automatic", standard_deviation: float = 0.1
) -> Encoder:
    """An encoder with larger weights than BERT's initial ones, so that attention is far from uniform."""
    torch.manual_seed(0)
    encoder = build_encoder(config, attention)  # type: ignore[arg-type]
    initialize_weights(encoder, standard_deviation)
    return encoder.eval()


def new_model(config: TransformerConfig) -> Model:
    encoder = new_encoder(config)
    model = Model(encoder, {o.kind: o.head(encoder) for o in OBJECTIVES})
    initialize_weights(model, 0.1)
    return model.eval()


def packed(sequences: list[Sequence]) -> Batch:
    return collate(sequences, 64).tensors()


def random_targets(batch: Batch) -> dict[str, Targets]:
    rng = np.random.default_rng(2)
    index = np.sort(rng.choice(len(batch.input_ids), 25, replace=False))
    weight = (rng.random(25) < 0.8).astype(np.float32)
    mlm = Targets(index, rng.integers(0, 500, 25), weight)
    return {"mlm": mlm, "nsp": NextSentence().label(batch, Labeling(None, rng)).targets}  # type: ignore[arg-type]


@pytest.mark.parametrize("layers", [1, 2])
def test_query_rows_equal_those_rows_of_the_last_layer(tiny_config: TransformerConfig, layers: int) -> None:
    encoder = new_encoder(replace(tiny_config, num_hidden_layers=layers)).double()
    batch = packed(sequences())
    all_rows = encoder(batch).last
    for wanted in ([0, 3, 8, 9, 27, 28, 126], [126], [7], list(range(127)), batch.ragged.cu_seqlens[:-1].tolist()):
        rows = torch.tensor(wanted)
        torch.testing.assert_close(encoder(batch, rows).last, all_rows[rows])


def test_query_rows_do_not_change_losses_and_gradients(tiny_config: TransformerConfig) -> None:
    """With MicroBatch.of, the last layer runs only at the targets. Running it everywhere gives the same result."""
    model = new_model(tiny_config).double()
    batch = collate([*sequences(), *filler(5, 0, 64)], 64)
    targets = random_targets(batch)
    only_targets = MicroBatch.of(batch, targets)
    assert len(only_targets.rows) < 0.3 * len(batch.input_ids)
    everywhere = MicroBatch(batch, targets, np.arange(len(batch.input_ids)))
    gradients = []
    losses = []
    for micro in (only_targets, everywhere):
        found = model(micro.tensors())
        losses.append({name: (loss.total.item(), loss.count.item(), loss.hits.item()) for name, loss in found.items()})
        objective = torch.stack([loss.total for loss in found.values()]).sum()
        gradients.append(torch.autograd.grad(objective, list(model.parameters())))
    for name in targets:
        assert losses[0][name] == pytest.approx(losses[1][name])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("window", [0, 4, 64])
def test_words_of_the_first_layer_are_computed_once_and_give_the_same(
    tiny_config: TransformerConfig, monkeypatch: pytest.MonkeyPatch, layers: int, window: int
) -> None:
    changes = {"type_vocab_size": 0, "position_embedding": "rotary", "local_attention": window}
    encoder = new_encoder(replace(tiny_config, num_hidden_layers=layers, **changes)).double().train()  # type: ignore[arg-type]
    batch, rows = packed(sequences()), torch.arange(0, 127, 3)
    batch = replace(batch, input_ids=batch.input_ids % 40)
    found: list[list[torch.Tensor]] = []
    seen: list[int] = []
    encoder.get_submodule("layers.0.attention.qkv").register_forward_hook(
        lambda _, inputs, __: seen.append(len(inputs[0]))
    )
    for _ in range(2):
        output = encoder(batch, rows).last
        found.append([output, *torch.autograd.grad(output.square().sum(), list(encoder.parameters()))])
        monkeypatch.setattr(transformer, "distinct_words", lambda *_: None)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
    if layers == 2:  # the last layer has queries of some rows only
        assert seen == [len(batch.input_ids.unique()), 127]


def test_all_layers_are_returned_on_request(tiny_config: TransformerConfig) -> None:
    encoder = new_encoder(tiny_config)
    batch = packed(sequences())
    hidden = encoder(batch, all_layers=True)
    assert hidden.layers is not None
    assert len(hidden.layers) == 3
    torch.testing.assert_close(hidden.layers[0], encoder.embeddings(batch))
    torch.testing.assert_close(hidden.layers[1], encoder.layers[0](hidden.layers[0], batch.ragged))
    assert hidden.layers[2] is hidden.last
    assert encoder(batch).layers is None


def test_a_layer_computes_the_formula_of_the_paper(tiny_config: TransformerConfig) -> None:
    layer = Layer(tiny_config, "dense", 0)
    initialize_weights(layer, 0.1)
    layer = layer.double().eval()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(9, 32, dtype=torch.float64, generator=generator)
    for norm in (layer.attention_norm, layer.norm):
        nn.init.normal_(norm.weight, 1.0, 0.3, generator=generator)
        nn.init.normal_(norm.bias, 0.0, 0.3, generator=generator)
    ragged = packed(sequences([9])).ragged

    def norm(x: torch.Tensor, by: nn.LayerNorm) -> torch.Tensor:
        spread = (x.var(-1, unbiased=False, keepdim=True) + 1e-12).sqrt()
        return (x - x.mean(-1, keepdim=True)) / spread * by.weight + by.bias

    q, k, v = (x @ layer.attention.qkv.weight.T + layer.attention.qkv.bias).chunk(3, dim=-1)
    heads = []
    for n in range(4):
        part = slice(8 * n, 8 * n + 8)
        heads.append(torch.softmax(q[:, part] @ k[:, part].T / math.sqrt(8), -1) @ v[:, part])
    mixed = norm(
        x + F.linear(torch.cat(heads, -1), layer.attention.out.weight, layer.attention.out.bias), layer.attention_norm
    )
    up = F.linear(mixed, layer.up.weight, layer.up.bias)
    gelu = up * 0.5 * (1 + torch.erf(up / math.sqrt(2)))
    expected = norm(mixed + F.linear(gelu, layer.down.weight, layer.down.bias), layer.norm)
    torch.testing.assert_close(layer(x, ragged), expected)


def test_heads_compute_their_formulas(tiny_config: TransformerConfig) -> None:
    model = new_model(tiny_config)
    hidden = model.encoder(packed(sequences()))
    mlm, nsp = model.heads["mlm"], model.heads["nsp"]
    assert isinstance(mlm, MaskedLMHead)
    assert isinstance(nsp, PooledHead)
    with torch.no_grad():
        mlm.bias.copy_(torch.arange(500) / 100)
    x = hidden.last[[4, 9]]
    transformed = mlm.norm(F.gelu(mlm.dense(x)))
    expected = transformed @ model.encoder.embeddings.word.weight.T + mlm.bias
    torch.testing.assert_close(mlm.logits(x), expected)
    torch.testing.assert_close(nsp.logits(x), nsp.out(torch.tanh(nsp.pooler(x))))


def test_initial_weights_are_truncated_normal(tiny_config: TransformerConfig) -> None:
    config = replace(tiny_config, hidden_size=128, intermediate_size=512, vocab_size=2000)
    torch.manual_seed(0)
    encoder = build_encoder(config)
    model = Model(encoder, {o.kind: o.head(encoder) for o in OBJECTIVES})
    initialize_weights(model, 0.02)
    matrices = 0
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            assert torch.equal(parameter, torch.full_like(parameter, float("norm.weight" in name))), name
            continue
        matrices += 1
        assert parameter.abs().max() <= 0.04, name
        noise = 5 * 0.02 / math.sqrt(parameter.numel())
        assert abs(parameter.mean()) < noise, name
        # Truncation at two standard deviations reduces the standard deviation to 0.8796 of its value.
        assert parameter.std().item() == pytest.approx(0.8796 * 0.02, abs=noise), name
    assert matrices == 3 + 2 * 4 + 1 + 2


def test_initial_weights_without_truncation() -> None:
    layer = torch.nn.Linear(1000, 100)
    torch.manual_seed(0)
    initialize_weights(layer, 0.02, truncation=math.inf)
    assert layer.weight.abs().max() > 0.08
    assert layer.weight.std().item() == pytest.approx(0.02, rel=0.01)
    assert not layer.bias.any()
