"""The settings that make another Transformer of BERT's: positions, norm placement, causality, activations, biases."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bertie.base.contracts import Batch, Hidden, Sequence, Targets
from bertie.batches.collate import collate
from bertie.model.attention.window import alibi_slopes
from bertie.model.config import TransformerConfig
from bertie.model.encoder import Encoder, build_encoder
from bertie.model.heads.vocabulary_heads import MaskedLMHead
from bertie.model.initialization import initialize_weights
from bertie.model.positions import layer_rotations, rotary_angles, rotate, rotation

BASE = TransformerConfig(3, 16, 4, 24, vocab_size=50, max_position_embeddings=20)
SWITCHES = [
    {"position_embedding": "sinusoidal"},
    {"position_embedding": "rotary"},
    {"position_embedding": "alibi"},
    {"relative_bias_buckets": 16},
    {"position_embedding": "none"},
    {"type_vocab_size": 0},
    {"embedding_size": 8},
    {"num_hidden_groups": 2},
    {"norm_position": "pre"},
    {"causal": True},
    {"use_bias": False},
    {"hidden_act": "relu"},
    {"hidden_act": "geglu"},
    {"hidden_act": "swiglu"},
    {"position_embedding": "rotary", "norm_position": "pre", "hidden_act": "geglu", "use_bias": False},
    {"position_embedding": "alibi", "causal": True, "norm_position": "pre"},
    {"norm_position": "modern", "local_attention": 2, "position_embedding": "rotary", "hidden_act": "geglu"},
    {"local_attention": 2, "global_attention_every": 3},
    {"num_key_value_heads": 2},
    {"norm": "rms"},
    {"disentangled_distances": 8, "disentangled_buckets": 4, "position_embedding": "none", "conv_kernel_size": 3},
]


def built(**changes: object) -> Encoder:
    encoder = build_encoder(replace(BASE, **changes))
    torch.manual_seed(0)
    initialize_weights(encoder, 0.3)
    for name, parameter in encoder.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    return encoder.eval()


def sequence(ids: list[int]) -> Sequence:
    ones = np.zeros(len(ids), np.int32)
    ones[len(ids) // 2 :] = 1
    return Sequence(np.array(ids, np.int32), ones, np.ones(len(ids), bool))


def batch(*sequences: list[int]) -> Batch:
    return collate([sequence(ids) for ids in sequences], 20).tensors()


@pytest.mark.parametrize("changes", SWITCHES, ids=str)
def test_rows_and_layers_agree_with_the_whole_output(changes: dict[str, object]) -> None:
    encoder, packed = built(**changes), batch([1, 2, 3, 4, 5], [6, 7], [8, 9, 10, 11])
    whole = encoder(packed, all_layers=True)
    rows = torch.tensor([0, 3, 6, 10])
    torch.testing.assert_close(encoder(packed, rows).last, whole.last[rows])
    assert whole.layers is not None
    assert len(whole.layers) == 4
    torch.testing.assert_close(whole.layers[-1], whole.last)


@pytest.mark.parametrize("changes", SWITCHES, ids=str)
def test_sequences_do_not_see_each_other(changes: dict[str, object]) -> None:
    encoder = built(**changes)
    alone = torch.cat([encoder(batch(ids)).last for ids in ([1, 2, 3, 4, 5], [6, 7])])
    torch.testing.assert_close(encoder(batch([1, 2, 3, 4, 5], [6, 7])).last, alone)


@pytest.mark.parametrize("changes", SWITCHES, ids=str)
def test_every_parameter_has_a_gradient_and_every_switch_an_effect(changes: dict[str, object]) -> None:
    encoder, packed = built(**changes), batch([1, 2, 3, 4, 5, 6], [6, 7])
    encoder(packed).last.square().sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    assert not torch.allclose(encoder(packed).last, built()(packed).last)


def test_the_head_of_masked_lm_may_have_a_matrix_of_its_own() -> None:
    encoder = built(mlm_matrix="own", mlm_transform=False)
    head = MaskedLMHead(encoder.config, encoder.embeddings.word)
    assert head.out is not None
    x = torch.randn(3, 16)
    torch.testing.assert_close(head.logits(x), x @ head.out.weight.T)
    assert [*head.state_dict()] == ["out.weight"]
    head(Hidden(x), Targets(torch.arange(2), torch.tensor([1, 2]), torch.ones(2))).total.backward()
    assert head.out.weight.grad is not None
    assert encoder.embeddings.word.weight.grad is None


def test_attention_heads_share_keys_and_values() -> None:
    encoder, packed = built(num_key_value_heads=2), batch([1, 2, 3], [4, 5])
    every = built()
    state = encoder.state_dict()
    for name in [name for name in state if "qkv" in name]:
        q, k, v = state[name].split([16, 8, 8])
        k, v = (x.unflatten(0, (2, 4)).repeat_interleave(2, 0).flatten(0, 1) for x in (k, v))
        state[name] = torch.cat([q, k, v])
    every.load_state_dict(state)
    torch.testing.assert_close(encoder(packed).last, every(packed).last)
    assert replace(BASE, num_key_value_heads=4).num_key_value_heads == 0


@pytest.mark.parametrize("changes", [change for change in SWITCHES if change.get("causal")], ids=str)
def test_a_causal_encoder_never_sees_later_tokens(changes: dict[str, object]) -> None:
    encoder = built(**changes)
    before, after = encoder(batch([1, 2, 3, 4, 5])).last, encoder(batch([1, 2, 3, 9, 8])).last
    assert torch.equal(before[:3], after[:3])
    assert not torch.allclose(before[3], after[3])


def test_without_positions_and_segments_the_order_of_tokens_has_no_effect() -> None:
    encoder = built(position_embedding="none", type_vocab_size=0)
    torch.testing.assert_close(encoder(batch([1, 2, 3])).last, encoder(batch([3, 2, 1])).last.flip(0))


def test_rotary_scores_depend_on_the_distance_only() -> None:
    q, k = torch.randn(2, 1, 1, 8)
    score = {
        (i, j): (
            rotate(q, rotation(rotary_angles(torch.tensor([i]), 8, 10_000.0)))
            * rotate(k, rotation(rotary_angles(torch.tensor([j]), 8, 10_000.0)))
        ).sum()
        for i, j in ((0, 3), (7, 10), (3, 0))
    }
    torch.testing.assert_close(score[0, 3], score[7, 10])
    assert not torch.allclose(score[0, 3], score[3, 0])


def test_cosines_and_sines_are_computed_once_for_each_base() -> None:
    size = replace(BASE, position_embedding="rotary", num_hidden_layers=4, local_attention=4, rotary_base=160_000.0)
    positions = torch.tensor([0, 1, 2, 0, 1])
    whole, local, same, last = layer_rotations(size, positions)
    assert whole is last
    assert local is same
    for found, base in ((whole, size.rotary_base), (local, size.local_rotary_base)):
        angles = rotary_angles(positions, size.hidden_size // size.num_attention_heads, base)
        assert found is not None
        assert torch.equal(found, torch.cat([angles.cos(), angles.sin()], 1))


def test_slopes_of_alibi_are_those_of_the_paper() -> None:
    assert alibi_slopes(8) == [2**-i for i in range(1, 9)]
    assert alibi_slopes(6) == [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]


@pytest.mark.parametrize(("name", "function"), [("geglu", F.gelu), ("swiglu", F.silu)])
def test_gated_activations_are_the_formula(name: str, function: object) -> None:
    from bertie.model.activation import activation

    x = torch.randn(5, 8)
    torch.testing.assert_close(activation(name, x), function(x[:, :4]) * x[:, 4:])  # type: ignore[operator]


def test_local_layers_see_a_window_and_global_layers_everything() -> None:
    config = {
        "local_attention": 6,
        "global_attention_every": 2,
        "position_embedding": "rotary",
        "norm_position": "modern",
    }
    ids = [5, 6, 7, 8, 9, 10, 11, 12]
    encoder = built(**config, num_hidden_layers=3)
    layers = list(encoder.layers)
    x = torch.randn(8, 16)
    changed = x.clone()
    changed[4] += 1
    ragged = batch(ids).ragged
    for number, layer in enumerate(layers):
        moved = (layer(x, ragged) - layer(changed, ragged)).abs().sum(1) > 0
        expected = [place >= 1 or number != 1 for place in range(8)]  # the window is 3 to each side
        assert moved.tolist() == expected
