"""The graph of OpenVINO and ONNX Runtime computes what the encoder computes; padded grids hold next to no padding."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from engine_inputs import MODERN, batch_of, encoder_of

from bertie.base.errors import UsageError, UserError
from bertie.inspect.attention import require_transformer
from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder
from bertie.model.encoders.lstm import LstmConfig
from bertie.model.initialization import initialize_weights
from bertie.model.model import Model
from bertie.predict.engines import choose, grids
from bertie.predict.engines.files import EngineName
from bertie.predict.engines.graph import Graph, export
from bertie.predict.engines.grids import GridEncoder
from bertie.tasks.classify import Classify
from bertie.tasks.task import build_head

VARIANTS: dict[str, dict[str, Any]] = {
    "bert": {},
    "pre-norm causal": {"norm_position": "pre", "causal": True},
    "rotary geglu": {"position_embedding": "rotary", "hidden_act": "geglu"},
    "modern": MODERN,
    "relative": {"relative_bias_buckets": 32},
    "shared keys": {"num_key_value_heads": 1, "norm": "rms", "use_bias": False, "position_embedding": "rotary"},
    "alibi tanh": {"position_embedding": "alibi", "hidden_act": "gelu_tanh"},
    "no segments": {"type_vocab_size": 0, "embedding_size": 16},
}


@pytest.mark.parametrize("variant", list(VARIANTS))
@torch.inference_mode()
def test_a_graph_computes_what_the_encoder_computes(variant: str, tiny_config: TransformerConfig) -> None:
    encoder = encoder_of(replace(tiny_config, **VARIANTS[variant]))
    graph = Graph(Model(encoder, {}))

    def run(*arrays: np.ndarray) -> np.ndarray:
        [states] = graph(*(torch.from_numpy(array) for array in arrays))
        return states.numpy()

    batch = batch_of(63, 60, 30, 30, 29, 28, 7, 1)
    expected = encoder(batch).last
    found = GridEncoder(encoder, run)
    torch.testing.assert_close(found(batch).last, expected, atol=2e-5, rtol=1e-4)
    rows = batch.ragged.cu_seqlens[:-1]
    torch.testing.assert_close(found(batch, rows).last, expected[rows], atol=2e-5, rtol=1e-4)
    layers = found(batch, all_layers=True).layers
    assert layers is not None
    assert len(layers) == 3


@torch.inference_mode()
def test_a_causal_head_is_exported_for_any_number_of_sequences(tiny_config: TransformerConfig) -> None:
    """It reads the last token of each. The two layers are one, repeated."""
    encoder = encoder_of(replace(tiny_config, causal=True, num_hidden_groups=1))
    task = Classify(labels=("a", "b"))
    head = build_head(task, encoder.config, encoder.config.hidden_size)
    initialize_weights(head, 0.2)
    graph = Graph(Model(encoder, {"classify": head}).eval())
    exported = export(graph).module()
    for lengths in ((5,), (4, 7, 2)):
        batch = batch_of(*lengths)
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        grid = torch.zeros(2, *mask.shape, dtype=torch.int64)
        grid[0][mask], grid[1][mask] = batch.input_ids, batch.token_type_ids
        _, found = exported(attention_mask=mask.long(), input_ids=grid[0], token_type_ids=grid[1])
        rows = batch.ragged.cu_seqlens[1:] - 1
        torch.testing.assert_close(found, head.logits(encoder(batch, rows).last), atol=2e-5, rtol=1e-4)


@torch.inference_mode()
def test_sequences_with_positions_of_their_own_are_not_given_to_the_library(tiny_config: TransformerConfig) -> None:
    def run(*_: np.ndarray) -> np.ndarray:
        raise AssertionError

    encoder = encoder_of(tiny_config)
    batch = batch_of(9, 4)
    moved = replace(batch, position_ids=batch.position_ids + 1)
    torch.testing.assert_close(GridEncoder(encoder, run)(moved).last, encoder(moved).last)


def test_grids_of_sorted_sequences_have_no_padding() -> None:
    lengths = np.sort(np.random.default_rng(0).gamma(3, 9, 4000).astype(int) + 3)[::-1]
    slices = list(grids.groups(lengths))
    assert slices[0].start == 0
    assert all(a.stop == b.start for a, b in itertools.pairwise(slices))
    assert slices[-1].stop == len(lengths)
    cells = sum((own.stop - own.start) * int(lengths[own].max()) for own in slices)
    assert cells < 1.02 * lengths.sum()
    assert len(slices) < 120


def test_grids_are_bounded() -> None:
    assert list(grids.groups(np.array([], int))) == []
    assert list(grids.groups(np.array([5000, 10, 10]))) == [slice(0, 1), slice(1, 3)]
    assert list(grids.groups(np.array([10, 30, 10]))) == [slice(0, 1), slice(1, 2), slice(2, 3)]
    assert all(own.stop - own.start <= 32 for own in grids.groups(np.full(100, 64)))


def test_other_encoders_are_refused() -> None:
    config = LstmConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, cell_size=16)
    with pytest.raises(UsageError, match="lstm cannot be exported as a graph"):
        Graph(Model(build_encoder(config), {}))


def test_disentangled_attention_is_refused_by_engines_and_export(tiny_config: TransformerConfig) -> None:
    encoder = build_encoder(replace(tiny_config, disentangled_distances=16, position_embedding="none"))
    with pytest.raises(UsageError, match="disentangled attention cannot be exported as a graph: use the engine plain"):
        Graph(Model(encoder, {}))
    for name in {*get_args(EngineName)} - {"auto", "plain"}:
        with pytest.raises(
            UsageError, match=f"{name} runs only Transformers, but this model is disentangled: use the engine plain"
        ):
            choose.use(Model(encoder, {}), name, None)
    assert choose.use(Model(encoder, {}), "auto", None) == "plain"
    with pytest.raises(UserError, match="disentangled, whose heads cannot be inspected"):
        require_transformer(encoder)
