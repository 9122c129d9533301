"""The torch engine computes what the encoder computes, for every configuration, batch and choice of rows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_inputs import MODERN, batch_of, encoder_of

import bertie
from bertie.base.contracts import Batch
from bertie.model.config import TransformerConfig
from bertie.model.transformer import TransformerEncoder
from bertie.predict.engines import calibration, cpu, parts, torch_engine
from bertie.predict.engines.linears import (
    Act,
    ActivationRange,
    Int8Linear,
    PlainLinear,
    Weights,
    accept_deprecation,
    quantize,
    quantize_in_steps,
)

needs_bf16 = pytest.mark.skipif(not cpu.has(cpu.BF16), reason="needs a processor with bf16 instructions")
needs_int8 = pytest.mark.skipif(not cpu.has(cpu.INT8), reason="needs a processor with int8 instructions")
VARIANTS: dict[str, dict[str, Any]] = {
    "bert": {},
    "pre-norm": {"norm_position": "pre"},
    "tanh": {"hidden_act": "gelu_tanh"},
    "relu": {"hidden_act": "relu"},
    "geglu": {"hidden_act": "geglu"},
    "swiglu, no biases": {"hidden_act": "swiglu", "use_bias": False},
    "rotary": {"position_embedding": "rotary"},
    "modern": MODERN,
    "alibi": {"position_embedding": "alibi"},
    "relative": {"relative_bias_buckets": 32, "position_embedding": "none"},
    "causal": {"causal": True, "norm_position": "pre"},
    "causal alibi": {"causal": True, "position_embedding": "alibi"},
    "electra": {"embedding_size": 16},
    "shared": {"num_hidden_groups": 1},
    "shared keys": {"num_key_value_heads": 1, "norm": "rms", "use_bias": False, "position_embedding": "rotary"},
}


def check(packed: torch_engine.PackedEncoder, encoder: TransformerEncoder, batch: Batch, *choices: list[int]) -> None:
    """Compare the states of all layers, and the last ones of chosen rows."""
    found, expected = packed(batch, all_layers=True), encoder(batch, all_layers=True)
    assert found.layers is not None
    torch.testing.assert_close(found.layers, expected.layers, atol=2e-5, rtol=1e-4)
    for rows in map(torch.tensor, choices):
        torch.testing.assert_close(packed(batch, rows).last, expected.last[rows], atol=2e-5, rtol=1e-4)
    assert float(expected.last.std()) > 0.1


@pytest.mark.parametrize("variant", list(VARIANTS))
@torch.inference_mode()
def test_fp32_equals_the_encoder(variant: str, tiny_config: TransformerConfig) -> None:
    encoder, batch = encoder_of(replace(tiny_config, **VARIANTS[variant])), batch_of(7, 30, 30, 30, 12, 1, 63)
    packed, firsts = torch_engine.fp32(encoder), batch.ragged.cu_seqlens[:-1].tolist()
    check(packed, encoder, batch, firsts, [0, 3, 6, 8, 9, 10, 172], [40], [*range(173)])
    first, second = packed.packed
    assert (first.qkv is second.qkv) == (variant == "shared")  # the memory of one


@torch.inference_mode()
def test_batches_of_several_parts(tiny_config: TransformerConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_TOKENS", 40)
    encoder = encoder_of(tiny_config)
    batch = batch_of(60, 20, 20, 9, 9, 9, 9, 9, 33)
    rows = torch.tensor([0, 59, 60, 81, 100, 177])
    expected = encoder(batch).last
    split = list(parts.parts_of(batch.ragged.lengths.numpy(), None))
    assert [part.tokens.stop - part.tokens.start for part in split] == [60, 40, 36, 9, 33]
    packed = torch_engine.fp32(encoder)
    torch.testing.assert_close(packed(batch).last, expected, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(packed(batch, rows).last, expected[rows], atol=2e-5, rtol=1e-4)
    assert packed(batch, rows[:0]).last.shape == (0, 32)


class _Overwriting:
    """A product that adds its result to the residual in place, as that of int8 does."""

    def __init__(self, weights: Weights):
        self.plain = PlainLinear(weights)

    def __call__(self, x_TI: torch.Tensor, act: Act = "none") -> torch.Tensor:
        return self.plain(x_TI, act)

    def add(self, x_TI: torch.Tensor, residual_TO: torch.Tensor) -> torch.Tensor:
        return residual_TO.add_(self.plain(x_TI))


@pytest.mark.parametrize("variant", ["bert", "modern"])
@torch.inference_mode()
def test_hidden_states_are_kept_from_products_that_overwrite(variant: str, tiny_config: TransformerConfig) -> None:
    encoder, batch = encoder_of(replace(tiny_config, **VARIANTS[variant])), batch_of(16, 32)  # no padding
    packed = torch_engine.PackedEncoder(encoder, lambda _, weights: _Overwriting(weights), torch.float32)
    check(packed, encoder, batch, [0, 3, 40])


def test_rows_have_few_sizes() -> None:
    sizes = [parts.rows_for(count) for count in range(1, parts.PART_TOKENS + 1)]
    assert all(size >= count for count, size in enumerate(sizes, 1))
    assert len(set(sizes)) < 50
    assert max(size - count for count, size in enumerate(sizes, 1)) < 64


@needs_bf16
@torch.inference_mode()
def test_bf16_is_close_to_the_encoder(tiny_config: TransformerConfig) -> None:
    encoder = encoder_of(tiny_config)
    batch = batch_of(7, 30, 30, 63)
    found, expected = torch_engine.bf16(encoder)(batch).last, encoder(batch).last
    assert found.dtype == torch.float32
    assert float(torch.nn.functional.cosine_similarity(found, expected).min()) > 0.999
    assert not torch.equal(found, expected)


def int8(encoder: TransformerEncoder, *batches: Batch) -> tuple[torch_engine.PackedEncoder, dict[str, torch.Tensor]]:
    def run(observed: torch.nn.Module) -> None:
        for batch in batches:
            observed(batch)

    measured = calibration.measure(encoder, run)
    return torch_engine.int8(encoder, measured), measured


@needs_int8
@pytest.mark.parametrize("variant", ["bert", "pre-norm", "geglu", "rotary", "modern"])
@torch.inference_mode()
def test_int8_is_close_to_the_encoder(variant: str, tiny_config: TransformerConfig) -> None:
    encoder = encoder_of(replace(tiny_config, **VARIANTS[variant]))
    packed, measured = int8(encoder, batch_of(50, 40, 30))
    names = [key for key in measured if key.endswith(".range")]
    assert sorted(names) == sorted(f"{i}.{place}.range" for i in range(2) for place in ("qkv", "out", "up", "down"))
    batch = batch_of(7, 30, 30, 63)
    found, expected = packed(batch).last, encoder(batch).last
    assert float(torch.nn.functional.cosine_similarity(found, expected).mean()) > 0.98
    assert float(torch.nn.functional.cosine_similarity(found, expected.roll(1, 0)).mean()) < 0.9


@needs_int8
@torch.inference_mode()
def test_int8_does_not_depend_on_the_other_sequences(tiny_config: TransformerConfig) -> None:
    packed, _ = int8(encoder_of(tiny_config), batch_of(50, 40, 30))
    both, alone = batch_of(30, 63), batch_of(30)
    torch.testing.assert_close(packed(both).last[:30], packed(alone).last, atol=1e-5, rtol=1e-5)


@needs_int8
@torch.inference_mode()
def test_int8_linear_is_exact_for_representable_numbers() -> None:
    torch.manual_seed(0)
    accept_deprecation()
    x_TI = torch.randint(-100, 101, (20, 32)).float()
    matrix = torch.randint(-127, 128, (48, 32)).float()
    matrix[:, 0] = 127  # so that the scale of each output is 1
    bias = torch.randn(48)
    linear = Int8Linear(Weights(matrix, bias), ActivationRange(-127.0, 128.0), torch.float32)
    expected = x_TI @ matrix.T + bias
    torch.testing.assert_close(linear(x_TI), expected, atol=1e-2, rtol=1e-5)
    torch.testing.assert_close(linear.add(x_TI, torch.ones(20, 48)), expected + 1, atol=1e-2, rtol=1e-5)
    torch.testing.assert_close(linear(x_TI, "relu"), expected.relu(), atol=1e-2, rtol=1e-5)


@needs_int8
@torch.inference_mode()
def test_smoothing_keeps_what_a_large_dimension_would_hide() -> None:
    torch.manual_seed(0)
    accept_deprecation()
    x_TI, matrix = torch.randn(400, 32), torch.randn(16, 32)
    x_TI[:, 3] *= 50
    matrix[:, 3] /= 50
    expected, errors = x_TI @ matrix.T, {}
    for place in ("qkv", "out"):  # with smoothing, and without
        found = calibration._measure(f"0.{place}", calibration.Seen(Weights(matrix, None), [x_TI]))
        smooth_I = found.get(f"0.{place}.smooth")
        weights = Weights(matrix if smooth_I is None else matrix * smooth_I, None)
        linear = Int8Linear(
            weights, ActivationRange(*found[f"0.{place}.range"].tolist()), torch.float32, smooth_I=smooth_I
        )
        errors[place] = float((linear(x_TI) - expected).square().mean())
    assert errors["qkv"] < 0.1 * errors["out"]


def test_a_range_leaves_out_what_costs_more_than_it_brings() -> None:
    accept_deprecation()
    torch.manual_seed(0)
    rows, weights = torch.randn(2000, 16), Weights(torch.randn(8, 16), None)
    rows[7, 3] = 8  # once in 32,000 values
    clamped = calibration._measure("0.down", calibration.Seen(weights, [rows]))["0.down.range"]
    assert 3 < float(clamped[1]) < 8


def test_both_ways_to_quantize_are_equal() -> None:
    accept_deprecation()
    x = torch.cat([torch.randn(5000) * 3, torch.tensor([-100.0, 100.0, 0.0])])
    span = ActivationRange(-4.0, 7.3)
    found = quantize(x, span)
    assert found.dtype == torch.uint8
    assert int((found.int() - quantize_in_steps(x, span).int()).abs().max()) <= 1  # at ties
    assert float((found == quantize_in_steps(x, span)).float().mean()) > 0.999
    assert found[-1] == span.zero
    assert (int(found[-3]), int(found[-2])) == (0, 255)


@pytest.mark.parametrize("values", [(0.0, 0.0), (-3.0, 0.0), (0.0, 5.0)])
def test_zero_is_representable(values: tuple[float, float]) -> None:
    span = ActivationRange(*values)
    assert 0 <= span.zero <= 255
    assert int(quantize_in_steps(torch.zeros(1), span)[0]) == span.zero


@pytest.mark.parametrize("engine", ["torch", pytest.param("torch-bf16", marks=needs_bf16)])
def test_several_threads_get_the_results_of_one(engine: Any, pretrained: Path, small_texts: list[str]) -> None:
    model = bertie.load(pretrained, threads=1, engine=engine)
    parts = [small_texts[i::4][:25] for i in range(4)]
    expected = [model.embed(part) for part in parts]

    def work(part: list[str]) -> list[np.ndarray]:
        torch.set_num_threads(1)
        return [model.embed(part) for _ in range(5)]

    with ThreadPoolExecutor(4) as pool:
        for found, vectors in zip(pool.map(work, parts), expected, strict=True):
            np.testing.assert_array_equal(found, [vectors] * 5)


def test_all_that_a_model_does_works_with_the_engine(pretrained: Path, small_texts: list[str]) -> None:
    plain, fast = (bertie.load(pretrained, threads=1, engine=engine) for engine in (None, "torch"))  # type: ignore[arg-type]
    assert (plain.engine, fast.engine) == ("plain", "torch")
    texts = [text.split(". ")[0] for text in small_texts[:6]]
    for ours, theirs in zip(fast.hidden_states(texts), plain.hidden_states(texts), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
    np.testing.assert_allclose(fast.pseudo_log_likelihood(texts), plain.pseudo_log_likelihood(texts), rtol=1e-4)
    pairs = list(zip(texts[:3], texts[3:], strict=True))
    np.testing.assert_allclose(fast.next_sentence(pairs), plain.next_sentence(pairs), atol=1e-4)
    masked = texts[0].replace(texts[0].split()[2], "[MASK]", 1)
    assert [p.token for p in fast.fill_mask(masked)[0]] == [p.token for p in plain.fill_mask(masked)[0]]
    ours, theirs = (model.word_vectors(texts) for model in (fast, plain))
    np.testing.assert_allclose(ours[0].vectors, theirs[0].vectors, atol=1e-4)
