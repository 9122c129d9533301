"""Optimizers: the published one, and today's. Decay spares biases and norms, as in BERT."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from bertie.errors import UsageError, require_range

_LAYER = re.compile(r"encoder\.layers\.(\d+)\.")
# Bias correction divides by 1 − β^step. From here on that is exactly 1 in fp32, and fp32 still counts in ones.
NO_BIAS_CORRECTION = 8_000_000.0


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019), bias correction included."""

    kind: Literal["adamw"] = "adamw"
    betas: tuple[float, ...] = (0.9, 0.999)
    """How much stays, a step, of the mean gradient and of its mean square."""
    eps: float = 1e-6
    """Added to the root of the mean square."""
    weight_decay: float = 0.01
    """Of matrices; biases and norms are spared."""

    def __post_init__(self) -> None:
        _check(self)

    def build(self, model: nn.Module, layer_decay: float = 1.0) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            _groups(model, self.weight_decay, layer_decay),
            lr=0.0,
            betas=(self.betas[0], self.betas[1]),
            eps=self.eps,
            fused=True,
        )


@dataclass(frozen=True)
class BertAdam:
    """The optimizer of BERT's release: AdamW without bias correction, so early steps are larger."""

    kind: Literal["bert_adam"] = "bert_adam"
    betas: tuple[float, ...] = (0.9, 0.999)
    """How much stays, a step, of the mean gradient and of its mean square."""
    eps: float = 1e-6
    """Added to the root of the mean square."""
    weight_decay: float = 0.01
    """Of matrices; biases and norms are spared."""

    def __post_init__(self) -> None:
        _check(self)

    def build(self, model: nn.Module, layer_decay: float = 1.0) -> torch.optim.Optimizer:
        same = AdamW(betas=self.betas, eps=self.eps, weight_decay=self.weight_decay)
        optimizer = same.build(model, layer_decay)
        for parameter in (parameter for parameter in model.parameters() if parameter.requires_grad):
            optimizer.state[parameter] = {
                "step": torch.tensor(NO_BIAS_CORRECTION, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        return optimizer


@dataclass(frozen=True)
class Lamb:
    """AdamW whose update of each matrix is scaled to the matrix's own length, for very large batches (You et al. 2020).

    What is not decayed (biases and norms) is not scaled either.
    """

    kind: Literal["lamb"] = "lamb"
    betas: tuple[float, ...] = (0.9, 0.999)
    """How much stays, a step, of the mean gradient and of its mean square."""
    eps: float = 1e-6
    """Added to the root of the mean square."""
    weight_decay: float = 0.01
    """Of matrices; biases and norms are spared."""

    def __post_init__(self) -> None:
        _check(self)

    def build(self, model: nn.Module, layer_decay: float = 1.0) -> torch.optim.Optimizer:
        groups = _groups(model, self.weight_decay, layer_decay)
        groups = [{**group, "scaled": any(p.ndim > 1 for p in group["params"])} for group in groups]
        return _Lamb(groups, {"lr": 0.0, "betas": self.betas, "eps": self.eps})


class _Lamb(torch.optim.Optimizer):
    found_inf: torch.Tensor | None = None  # 1: this step's gradients are no numbers (as torch's own are told it)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # noqa: ARG002  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in (parameter for parameter in group["params"] if parameter.grad is not None):
                step, mean, square = self._state(parameter)
                new_step, new_mean = step + 1, mean.lerp(parameter.grad, 1 - first)
                new_square = (square * second).addcmul_(parameter.grad, parameter.grad, value=1 - second)
                scale = (1 - second**new_step).sqrt()
                update = new_mean / (1 - first**new_step) / (new_square.sqrt() / scale + group["eps"])
                update += group["weight_decay"] * parameter
                if group["scaled"]:
                    own, length = parameter.norm(), update.norm()
                    update *= torch.where((own > 0) & (length > 0), own / length, 1.0)
                moved = parameter - group["lr"] * update
                for old, new in ((step, new_step), (mean, new_mean), (square, new_square), (parameter, moved)):
                    old.copy_(new if self.found_inf is None else torch.where(self.found_inf > 0, old, new))

    def _state(self, parameter: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float64, device=parameter.device)  # β^step in full
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state["step"], state["exp_avg"], state["exp_avg_sq"]


Optimizer = AdamW | BertAdam | Lamb


def _check(optimizer: Optimizer) -> None:
    require_range("optimizer", optimizer, "weight_decay", low=0)
    require_range("optimizer", optimizer, "eps", low=0, above=True)
    if len(optimizer.betas) != 2 or not all(0 <= beta < 1 for beta in optimizer.betas):
        raise UsageError(
            f"optimizer.betas is {list(optimizer.betas)}: give two numbers, each at least 0 and less than 1"
        )


def _groups(model: nn.Module, weight_decay: float, layer_decay: float) -> list[dict[str, Any]]:
    """Of what is trained. share: what the learning rate is multiplied with, layer_decay to the power of the layers above."""
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    depth = {name: 0 if layer_decay == 1 else _depth(name, model) for name in trained}
    groups = []
    for above in sorted(set(depth.values())):
        parameters = [parameter for name, parameter in trained.items() if depth[name] == above]
        decayed = [p for p in parameters if p.ndim > 1]  # matrices; biases and norms are vectors
        spared = [p for p in parameters if p.ndim <= 1]
        share = layer_decay**above
        groups.append({"params": decayed, "weight_decay": weight_decay, "share": share})
        groups.append({"params": spared, "weight_decay": 0.0, "share": share})
    return [group for group in groups if group["params"]]


def _depth(name: str, model: nn.Module) -> int:
    """How far below the heads a parameter lies: they 0, the last layer 1, …, the embeddings as many as all that and 1."""
    layers = {match[1] for key, _ in model.named_parameters() if (match := _LAYER.match(key))}
    if match := _LAYER.match(name):
        return len(layers) - int(match[1])
    return len(layers) + 1 if name.startswith("encoder.") else 0
