"""The BiLSTM over packed sequences, beside torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from bertie.base.contracts import Ragged
from bertie.model.bilstm import BiLstm

LENGTHS = [2, 0, 5, 1, 3]


def twins(layers: int) -> tuple[BiLstm, nn.LSTM]:
    """Return a BiLSTM and torch's with the same weights."""
    torch.manual_seed(0)
    theirs, ours = nn.LSTM(4, 3, layers, bidirectional=True), BiLstm(4, 3, layers)
    for number in range(layers):
        for direction, suffix in ((ours.ahead[number], ""), (ours.back[number], "_reverse")):
            for name, parameter in direction.named_parameters():
                parameter.data.copy_(getattr(theirs, name.replace("_l0", f"_l{number}") + suffix))
    return ours, theirs


def ragged(lengths: list[int]) -> Ragged:
    return Ragged(torch.tensor([0, *lengths]).cumsum(0), 8)


def read_by_theirs(theirs: nn.LSTM, x: Tensor) -> Tensor:
    return torch.cat([theirs(part)[0] for part in x.split(LENGTHS) if len(part)])


@pytest.mark.parametrize("layers", [1, 2])
def test_output_and_gradients_are_those_of_torchs_lstm(layers: int) -> None:
    ours, theirs = twins(layers)
    x = torch.randn(sum(LENGTHS), 4, requires_grad=True)
    weight = torch.randn(sum(LENGTHS), 6)
    found, expected = ours(x, ragged(LENGTHS)), read_by_theirs(theirs, x)
    torch.testing.assert_close(found, expected)
    parameters = [ours.ahead[0].weight_ih_l0, ours.back[-1].weight_hh_l0]
    own = torch.autograd.grad((found * weight).sum(), [x, *parameters])
    last = f"weight_hh_l{layers - 1}_reverse"
    others = torch.autograd.grad((expected * weight).sum(), [x, theirs.weight_ih_l0, getattr(theirs, last)])
    for one, other in zip(own, others, strict=True):
        torch.testing.assert_close(one, other)
