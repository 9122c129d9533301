"""The probabilities that analyses see, and gates of heads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch

from bertie.base.contracts import Batch, Hidden, Sequence
from bertie.batches.collate import collate
from bertie.inspect.attention import (
    Group,
    attention_in,
    below_known,
    gated,
    observed,
    read_attention,
    shows_attention,
)
from bertie.model.config import TransformerConfig
from bertie.model.encoder import Encoder, build_encoder
from bertie.model.model import Model
from bertie.model.transformer import TransformerEncoder
from bertie.predict.engines import cpu, torch_engine
from bertie.predict.engines.cuda import HalfEncoder
from bertie.predict.predictor import Predictor
from bertie.tokenizers import truncation

TEXTS = ["the bobin", "a long one: the gat gatun in the fet fatun", "the sh the", "go"]


def test_probabilities_of_a_group_sum_to_one_and_are_zero_in_the_padding(predictor: Predictor) -> None:
    sequences = truncation.encode(predictor.tokenizer, TEXTS, None, max_length=32)
    seen: dict[tuple[int, int], torch.Tensor] = {}
    states: list[int] = []

    def see(group: Group, layer: int, probabilities: torch.Tensor) -> None:
        rows = group.valid[:, None].expand(probabilities.shape[:-1])
        torch.testing.assert_close(probabilities.sum(-1), rows.float())
        assert not probabilities[~group.valid[:, None, None].expand_as(probabilities)].any()
        for s, index in enumerate(group.indices):
            assert group.sequences[s] is sequences[index]
            ids = group.input_ids[s]
            np.testing.assert_array_equal(ids[ids >= 0].numpy(), sequences[index].input_ids)
            seen[index, layer] = probabilities[s].clone()

    def see_hidden(_: Group, hidden: Hidden) -> None:
        states.append(len(hidden.layers or ()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertie.inspect.attention.BATCH_TOKENS", 24)
        read_attention(predictor.model, sequences, see, see_hidden)
    assert set(seen) == {(index, layer) for index in range(4) for layer in range(2)}
    assert len(states) > 1
    assert set(states) == {3}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("position", ["learned", "rotary", "alibi"])
def test_looking_does_not_change_the_hidden_states(tiny_config: TransformerConfig, causal: bool, position: str) -> None:
    torch.manual_seed(0)
    settings = {**vars(tiny_config), "causal": causal, "position_embedding": position}
    encoder = build_encoder(TransformerConfig(**settings))
    assert isinstance(encoder, TransformerEncoder)
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    batch = _batch([5, 9, 1])
    later: list[bool] = []

    def see(_: int, probabilities: torch.Tensor) -> None:
        later.append(bool(probabilities.triu(1).any()))

    with torch.inference_mode():
        before = encoder(batch).last
        with observed(encoder, see):
            during = encoder(batch).last
        after = encoder(batch).last
    torch.testing.assert_close(during, before, atol=1e-5, rtol=1e-5)
    assert torch.equal(before, after)
    assert later == [not causal] * 2


def test_a_gate_of_zero_removes_a_head(tiny_config: TransformerConfig) -> None:
    torch.manual_seed(0)
    encoder = build_encoder(tiny_config)
    assert isinstance(encoder, TransformerEncoder)
    batch, gates = _batch([5, 9, 1]), torch.ones(2, 4)
    with torch.inference_mode():
        whole = encoder(batch).last
        with gated(encoder, gates):
            assert torch.equal(encoder(batch).last, whole)
        gates[1, 2] = 0
        with gated(encoder, gates):
            masked = encoder(batch).last
        encoder.layers[1].attention.out.weight[:, 16:24] = 0  # the columns that read head 3 of layer 2
        torch.testing.assert_close(encoder(batch).last, masked)
    assert not torch.allclose(masked, whole)


@pytest.mark.parametrize("half", [False, True])
def test_a_layer_may_repeat(tiny_config: TransformerConfig, half: bool) -> None:
    torch.manual_seed(0)
    encoder, copied = (build_encoder(replace(tiny_config, num_hidden_groups=groups)) for groups in (1, 0))
    assert isinstance(encoder, TransformerEncoder)
    assert isinstance(copied, TransformerEncoder)
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    copied.embeddings = encoder.embeddings
    copied.layers[0].load_state_dict(encoder.layers[0].state_dict())
    copied.layers[1].load_state_dict(encoder.layers[0].state_dict())
    batch, gates = _batch([5, 9, 1]), torch.tensor([[1.0, 1, 0, 1], [0, 1, 1, 1]])
    results: list[list[torch.Tensor]] = []
    with torch.inference_mode():
        for each in (encoder, copied):
            shown = HalfEncoder(each, backend="eager").uncompiled() if half else each
            seen: dict[int, torch.Tensor] = {}
            with observed(shown, lambda layer, p, seen=seen: seen.update({layer: p.clone()})):
                states = shown(batch, all_layers=True).layers
            assert states is not None
            with gated(each, gates):
                masked = each(batch).last
            with below_known(each, [states[0], states[1].roll(1, 0)]):
                above = each(batch).last
            results.append([seen[0], seen[1], *states, masked, above])
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)
    assert not torch.equal(results[0][-1], results[0][-3])


def _sequences(lengths: list[int]) -> list[Sequence]:
    rng = np.random.default_rng(0)
    return [
        Sequence(rng.integers(5, 500, n).astype(np.int32), np.zeros(n, np.int32), np.ones(n, bool)) for n in lengths
    ]


def _batch(lengths: list[int]) -> Batch:
    return collate(_sequences(lengths), max(lengths)).tensors()


def own_attention(encoder: TransformerEncoder, sequences: list[Sequence]) -> list[np.ndarray]:
    """The probabilities of each sequence alone, by the formula."""
    found = []
    for sequence in sequences:
        layers: list[torch.Tensor] = []
        with observed(encoder, lambda _, probabilities, layers=layers: layers.append(probabilities[0].clone())):
            encoder(collate([sequence], len(sequence)).tensors())
        found.append(torch.stack(layers).numpy())
    return found


NEEDS_BF16 = pytest.mark.skipif(not cpu.has(cpu.BF16), reason="needs a processor with bf16 instructions")


@pytest.mark.parametrize("engine", ["plain", "torch", pytest.param("torch-bf16", marks=NEEDS_BF16), "cuda"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"causal": True}, {"position_embedding": "alibi"}, {"position_embedding": "rotary", "norm_position": "pre"}],
    ids=lambda settings: " ".join(settings) or "bert",
)
def test_every_torch_engine_shows_its_attention(
    tiny_config: TransformerConfig, settings: dict[str, Any], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    encoder = build_encoder(TransformerConfig(**{**vars(tiny_config), **settings}))
    assert isinstance(encoder, TransformerEncoder)
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.3 if parameter.ndim > 1 else 0.01)
    lengths = [5, 9, 9, 1, 12]
    sequences = _sequences(lengths)
    with torch.inference_mode():
        expected = own_attention(encoder, sequences)
    built = {
        "plain": lambda: encoder,
        "torch": lambda: torch_engine.fp32(encoder),
        "torch-bf16": lambda: torch_engine.bf16(encoder),
        "cuda": lambda: HalfEncoder(encoder, backend="eager"),
    }[engine]()
    monkeypatch.setattr("bertie.predict.engines.parts.PART_TOKENS", 16)  # several parts
    assert shows_attention(built)
    model = Model(encoder, {})
    model.encoder = cast(Encoder, built)
    found = attention_in(model, sequences)
    for mine, other, length in zip(found, expected, lengths, strict=True):
        assert mine.shape == (2, 4, length, length)
        assert mine.dtype == np.float32
        np.testing.assert_allclose(mine, other, atol=1e-5 if engine in ("plain", "torch") else 0.05)
        np.testing.assert_allclose(mine.sum(-1), 1, atol=1e-5 if engine != "cuda" else 0.02)
    with torch.inference_mode():  # and the encoder is as it was
        np.testing.assert_array_equal(own_attention(encoder, sequences)[1], expected[1])
