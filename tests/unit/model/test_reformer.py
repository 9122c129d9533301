from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from encoders import built, sequences
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from bertie.base.contracts import Batch, MicroBatch, Sequence
from bertie.batches.collate import collate
from bertie.model.attention import lsh_attention
from bertie.model.encoder import with_dropout
from bertie.model.encoders import reformer
from bertie.model.encoders.reformer import ReformerEncoder
from bertie.model.encoders.reformer_config import ReformerConfig, idle_settings
from bertie.model.flops import model_flops
from bertie.objectives import CausalLM
from bertie.objectives.objective import Labeling
from bertie.pretraining.initial_weights import new_model
from bertie.tokenizers.tokenizer import Tokenizer

CONFIG = ReformerConfig(
    *(("local", "lsh", "local", "lsh"), 32, 2, 24),
    vocab_size=40,
    max_position_embeddings=64,
    axial_pos_shape=(8, 8),
    axial_pos_embds_dim=(4, 12),
    local_attn_chunk_length=4,
    lsh_attn_chunk_length=8,
    num_hashes=2,
    num_buckets=(4, 2),
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
LENGTHS = (3, 20, 40)


def made(*lengths: int) -> list[Sequence]:
    rng = np.random.default_rng(0)
    ids = [rng.integers(5, 40, n).astype(np.int32) for n in lengths]
    return sequences(*ids)


def gradients(encoder: ReformerEncoder, batch: Batch, all_layers: bool) -> list[Tensor]:
    encoder.zero_grad()
    torch.manual_seed(3)
    last = encoder(batch, all_layers=all_layers).last
    (last.sin() * torch.arange(last.numel()).view_as(last) / last.numel()).sum().backward()
    return [parameter.grad.clone() for parameter in encoder.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("new_hyperplanes", [True, False])
def test_gradients_of_reversible_layers_are_those_of_stored_ones(dropout: float, new_hyperplanes: bool) -> None:
    changes: dict[str, Any] = {"new_hyperplanes": new_hyperplanes, "feed_forward_chunk": 25}
    encoder = built(with_dropout(replace(CONFIG, **changes), dropout, dropout)).double().train()  # type: ignore[arg-type]
    batch = collate(made(*LENGTHS), 64).tensors()
    stored, found = (gradients(encoder, batch, all_layers) for all_layers in (True, False))
    assert len(found) == len(list(encoder.parameters()))
    for ours, expected in zip(found, stored, strict=True):
        assert expected.abs().max() > 1e-6
        torch.testing.assert_close(ours, expected, atol=1e-9, rtol=0)


def test_the_backward_pass_reuses_the_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = lsh_attention.hash_buckets
    monkeypatch.setattr(reformer, "hash_buckets", lambda *given: calls.append(given) or original(*given))
    encoder = built(CONFIG).train()
    encoder(collate(made(*LENGTHS), 64).tensors()).last.sum().backward()
    assert len(calls) == CONFIG.attn_layers.count("lsh")


def test_hyperplanes_are_new_in_every_training_step_and_fixed_in_prediction() -> None:
    for new in (True, False):
        encoder, batch = built(replace(CONFIG, new_hyperplanes=new)), collate(made(*LENGTHS), 64).tensors()
        first, second = (encoder(batch).last.detach() for _ in range(2))
        assert torch.equal(first, second)
        encoder.train()
        torch.manual_seed(1)
        first, second = (encoder(batch).last.detach() for _ in range(2))
        assert torch.equal(first, second) is not new
        torch.manual_seed(1)
        assert torch.equal(encoder(batch).last.detach(), first)


def test_sequences_do_not_depend_on_the_batch() -> None:
    encoder = built(CONFIG).double()
    together = encoder(collate(made(*LENGTHS), 64).tensors()).last.split(LENGTHS)
    for sequence, states in zip(made(*LENGTHS), together, strict=True):
        torch.testing.assert_close(encoder(collate([sequence], 64).tensors()).last, states, atol=1e-9, rtol=0)


def test_rows_and_all_layers() -> None:
    encoder, batch = built(CONFIG), collate(made(*LENGTHS), 64).tensors()
    with torch.no_grad():
        whole = encoder(batch, all_layers=True)
        rows = torch.tensor([0, 4, 30])
        torch.testing.assert_close(encoder(batch, rows).last, whole.last[rows])
    assert whole.layers is not None
    assert len(whole.layers) == 5
    assert torch.equal(whole.layers[-1], whole.last)
    embedded = encoder.embeddings(batch)
    assert torch.equal(whole.layers[0], torch.cat([embedded, embedded], 1))


def test_a_causal_sequence_of_one_chunk_sees_no_later_token() -> None:
    encoder, [sequence] = built(replace(CONFIG, causal=True, lsh_attn_chunk_length=64, num_buckets=())), made(64)
    changed = replace(sequence, input_ids=np.concatenate([sequence.input_ids[:50], sequence.input_ids[:14]]))
    first, second = (encoder(collate([each], 64).tensors()).last for each in (sequence, changed))
    torch.testing.assert_close(first[:50], second[:50], atol=1e-5, rtol=0)
    assert (first[50:] - second[50:]).abs().max() > 0.1


def test_the_number_of_buckets_follows_the_length() -> None:
    """Twice as many as chunks, in two factors if they are more than twice the length of a chunk."""
    axial = idle_settings(("local", "lsh"), "learned")
    long = replace(CONFIG, position_embedding="learned", num_buckets=(), lsh_attn_chunk_length=64, **axial)
    for length, buckets in ((64, (2,)), (4096, (128,)), (16384, (16, 32)), (65536, (32, 64))):
        assert replace(long, max_position_embeddings=length).buckets == buckets


def test_the_operations_are_those_that_torch_counts(small_tokenizer: Tokenizer) -> None:
    """Without empty slots, and with hyperplanes that torch does not count in its own way."""
    size = replace(CONFIG, vocab_size=small_tokenizer.size, causal=True, num_buckets=(4,))
    model = new_model(size, (CausalLM(),), 0)
    row = collate(made(64, 32), 64)
    labeled = CausalLM().label(row, Labeling(small_tokenizer, np.random.default_rng(0)))
    micro = MicroBatch.of(labeled.batch, {"clm": labeled.targets})
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(micro.tensors())
    assert model_flops(model, micro) / 3 == pytest.approx(counter.get_total_flops(), rel=0.01)
