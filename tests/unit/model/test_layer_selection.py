from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import Tensor

from bertie.base.errors import UsageError
from bertie.model.config import TransformerConfig
from bertie.model.heads import layer_selection
from bertie.model.heads.layer_selection import Fixed, ScalarMix


def config(layers: int) -> TransformerConfig:
    return TransformerConfig(
        num_hidden_layers=layers, hidden_size=6, num_attention_heads=2, intermediate_size=8, vocab_size=9
    )


def states(layers: int) -> tuple[Tensor, ...]:
    torch.manual_seed(layers)
    return tuple(torch.randn(5, 6) for _ in range(layers + 1))


@pytest.mark.parametrize("layers", [4, 7])
def test_every_selection_computes_its_formula(layers: int) -> None:
    s = states(layers)
    expected = {
        "embeddings": s[0],
        "second_to_last": s[layers - 1],
        "last": s[layers],
        "sum_last_4": s[layers] + s[layers - 1] + s[layers - 2] + s[layers - 3],
        "concat_last_4": torch.cat([s[layers - 3], s[layers - 2], s[layers - 1], s[layers]], 1),
        "sum_all": sum(s[2:], s[1]),
    }
    assert set(expected) == set(get_args(Fixed))
    for name in get_args(Fixed):
        found = layer_selection.select_layers(name, s)
        torch.testing.assert_close(found, expected[name])
        assert found.shape == (5, layer_selection.selected_width(name, config(layers)))


@pytest.mark.parametrize(
    ("name", "needed"), [("second_to_last", 2), ("sum_last_4", 4), ("concat_last_4", 4), ("last", 1)]
)
def test_too_few_layers_are_refused(name: Fixed, needed: int) -> None:
    layer_selection.select_layers(name, states(needed))
    assert layer_selection.selected_width(name, config(needed))
    if needed > 1:
        message = f"layers {name} needs {needed} layers, but the model has {needed - 1}"
        with pytest.raises(UsageError, match=message):
            layer_selection.select_layers(name, states(needed - 1))
        with pytest.raises(UsageError, match=message):
            layer_selection.selected_width(name, config(needed - 1))


def test_a_scalar_mix_is_initially_the_mean_and_trains_all_weights() -> None:
    s = states(3)
    mix = ScalarMix(config(3))
    torch.testing.assert_close(mix(s), torch.stack(s).mean(0))
    assert layer_selection.selected_width("scalar_mix", config(3)) == 6
    with torch.no_grad():
        mix.weight.copy_(torch.tensor([0.0, 1.0, -1.0, 2.0]))
        mix.gamma.fill_(3.0)
    share = torch.tensor([0.0, 1.0, -1.0, 2.0]).softmax(0)
    torch.testing.assert_close(mix(s), 3 * sum((w * x for w, x in zip(share[1:], s[1:], strict=True)), share[0] * s[0]))
    mix(s).square().sum().backward()
    assert mix.weight.grad is not None
    assert (mix.weight.grad != 0).all()
    assert mix.gamma.grad is not None
    assert mix.gamma.grad != 0
