from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch

from bertie.model.pooling import Pooling, pool

NAIVE = {
    "mean": lambda rows: rows.mean(0),
    "cls": lambda rows: rows[0],
    "max": lambda rows: rows.max(0),
    "mean_sqrt_len_tokens": lambda rows: rows.sum(0) / len(rows) ** 0.5,
    "weightedmean": lambda rows: np.average(rows, 0, np.arange(1, len(rows) + 1)),
    "lasttoken": lambda rows: rows[-1],
}


@pytest.mark.parametrize("pooling", get_args(Pooling))
def test_pooling_agrees_with_a_simple_implementation(pooling: Pooling) -> None:
    sizes = [3, 1, 7, 2]
    x_PD = torch.randn(sum(sizes), 5, generator=torch.Generator().manual_seed(0)) - 3  # so that maxima are negative
    group_P = torch.arange(4).repeat_interleave(torch.tensor(sizes))
    found = pool(pooling, x_PD, group_P, 4).numpy()
    parts = np.split(x_PD.numpy(), np.cumsum(sizes)[:-1])
    np.testing.assert_allclose(found, np.stack([NAIVE[pooling](part) for part in parts]), atol=1e-6)


def test_rows_that_are_left_out_count_in_the_weights() -> None:
    x_PD = torch.tensor([[1.0], [2.0], [5.0]])
    found = pool("weightedmean", x_PD, torch.tensor([0, 0, 1]), 2, torch.tensor([2, 0]))
    np.testing.assert_allclose(found, [[(3 * 1 + 4 * 2) / 7], [5]])
