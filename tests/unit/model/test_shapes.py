"""The tests of this folder check the shapes in annotations: without --jaxtyping-packages, wrong ones would pass."""

from __future__ import annotations

import jaxtyping
import pytest
import torch

from bertie.model.activation import activation


def test_a_wrong_shape_is_refused() -> None:
    with pytest.raises(jaxtyping.TypeCheckError, match="x_TF"):
        activation("gelu", torch.ones(2, 3, 4))
