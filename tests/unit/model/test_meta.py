from __future__ import annotations

import pytest
from torch import nn

from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder
from bertie.model.initialization import no_weights


def test_shapes_are_those_of_a_model_with_weights(tiny_config: TransformerConfig):
    with no_weights():
        shapes = build_encoder(tiny_config).state_dict()
    weights = build_encoder(tiny_config).state_dict()
    assert {weight.device.type for weight in shapes.values()} == {"meta"}
    assert [(name, w.shape) for name, w in shapes.items()] == [(name, w.shape) for name, w in weights.items()]


def test_nothing_random_is_computed(monkeypatch: pytest.MonkeyPatch):
    """On the meta device, this would load torch's compiler."""

    def forbidden(*_: object) -> None:
        raise AssertionError("random numbers without a use")

    monkeypatch.setattr(nn.init, "_no_grad_normal_", forbidden)
    with no_weights():
        nn.Embedding(3, 4)
    with pytest.raises(AssertionError, match="random numbers"):
        nn.Embedding(3, 4)
