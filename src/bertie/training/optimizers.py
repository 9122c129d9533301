"""Optimizers: AdamW, the Adam of BERT's release, LAMB and Muon. As in BERT, biases and LayerNorm have no weight decay.

The union `Optimizer` lists all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn, optim

from bertie.base.config import AboveZero, NotNegative
from bertie.training.muon import Muon
from bertie.training.parameter_groups import check, parameter_groups, replace_unless

# Bias correction divides by 1 − β^step. From this step on, that is exactly 1 in fp32; and adding 1 to the step count is
# still exact in fp32.
NO_BIAS_CORRECTION = 8_000_000.0


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay and bias correction (Loshchilov & Hutter 2019)."""

    kind: Literal["adamw"] = "adamw"
    betas: tuple[float, ...] = (0.9, 0.999)
    """Decay rates per step of the running means of the gradient and of its square."""
    eps: AboveZero = 1e-6
    """Added to the root of the mean square gradient, to avoid division by zero."""
    weight_decay: NotNegative = 0.01
    """Weight decay of matrices. Biases and LayerNorm weights have none."""

    __post_init__ = check

    def build(self, model: nn.Module, layer_decay: float = 1.0, embedding_lr_scale: float = 1.0) -> optim.Optimizer:
        """Create the optimizer for the trainable parameters of a model. The training loop sets its learning rate.

        Args:
            model: The model.
            layer_decay: Factor of the learning rate for each layer below the heads; 1: the same rate everywhere.
            embedding_lr_scale: Factor of the learning rate for embeddings.
        """
        return optim.AdamW(
            parameter_groups(model, self.weight_decay, layer_decay, embedding_lr_scale),
            lr=0.0,
            betas=(self.betas[0], self.betas[1]),
            eps=self.eps,
            fused=True,
        )


@dataclass(frozen=True)
class BertAdam:
    """The optimizer of BERT's release: AdamW without bias correction, which makes early steps larger."""

    kind: Literal["bert_adam"] = "bert_adam"
    betas: tuple[float, ...] = (0.9, 0.999)
    """Decay rates per step of the running means of the gradient and of its square."""
    eps: AboveZero = 1e-6
    """Added to the root of the mean square gradient, to avoid division by zero."""
    weight_decay: NotNegative = 0.01
    """Weight decay of matrices. Biases and LayerNorm weights have none."""

    __post_init__ = check

    def build(self, model: nn.Module, layer_decay: float = 1.0, embedding_lr_scale: float = 1.0) -> optim.Optimizer:
        """Create the optimizer (see `AdamW.build`)."""
        adamw = AdamW(betas=self.betas, eps=self.eps, weight_decay=self.weight_decay)
        optimizer = adamw.build(model, layer_decay, embedding_lr_scale)
        for parameter in (parameter for parameter in model.parameters() if parameter.requires_grad):
            optimizer.state[parameter] = {
                "step": torch.tensor(NO_BIAS_CORRECTION, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        return optimizer


@dataclass(frozen=True)
class Lamb:
    """AdamW with the update of each matrix scaled to the norm of the matrix, for very large batches (You et al. 2020).

    Biases and LayerNorm weights, which have no weight decay, are not scaled either.
    """

    kind: Literal["lamb"] = "lamb"
    betas: tuple[float, ...] = (0.9, 0.999)
    """Decay rates per step of the running means of the gradient and of its square."""
    eps: AboveZero = 1e-6
    """Added to the root of the mean square gradient, to avoid division by zero."""
    weight_decay: NotNegative = 0.01
    """Weight decay of matrices. Biases and LayerNorm weights have none."""

    __post_init__ = check

    def build(self, model: nn.Module, layer_decay: float = 1.0, embedding_lr_scale: float = 1.0) -> optim.Optimizer:
        """Create the optimizer (see `AdamW.build`)."""
        groups = parameter_groups(model, self.weight_decay, layer_decay, embedding_lr_scale)
        groups = [{**group, "scaled": any(p.ndim > 1 for p in group["params"])} for group in groups]
        return _Lamb(groups, {"lr": 0.0, "betas": self.betas, "eps": self.eps})


class _Lamb(optim.Optimizer):
    found_inf: torch.Tensor | None = None  # 1: skip this step, as in torch's fused optimizers

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # noqa: ARG002  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in (parameter for parameter in group["params"] if parameter.grad is not None):
                step, mean, square = self._state(parameter)
                new_step, new_mean = step + 1, mean.lerp(parameter.grad, 1 - beta1)
                new_square = (square * beta2).addcmul_(parameter.grad, parameter.grad, value=1 - beta2)
                root_correction = (1 - beta2**new_step).sqrt()
                update = new_mean / (1 - beta1**new_step) / (new_square.sqrt() / root_correction + group["eps"])
                update += group["weight_decay"] * parameter
                if group["scaled"]:
                    norm, update_norm = parameter.norm(), update.norm()
                    update *= torch.where((norm > 0) & (update_norm > 0), norm / update_norm, 1.0)
                updated = parameter - group["lr"] * update
                for old, new in ((step, new_step), (mean, new_mean), (square, new_square), (parameter, updated)):
                    replace_unless(self.found_inf, old, new)

    def _state(self, parameter: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float64, device=parameter.device)  # β^step in double precision
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state["step"], state["exp_avg"], state["exp_avg_sq"]


Optimizer = AdamW | BertAdam | Lamb | Muon
