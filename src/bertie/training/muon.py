"""Muon: gradient descent with momentum, whose updates of matrices are orthogonalized (Jordan et al. 2024).

All singular values of an update become about 1, so that no direction dominates it. The scale of Liu et al. (2025) gives the
update the size that AdamW's has, so both have the same learning rate.

R  rows    C  columns    M  matrices of the same shape
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn, optim

from bertie.base.config import AboveZero, NotNegative, Range
from bertie.base.errors import UsageError
from bertie.model.matrices import HasMatrices
from bertie.training.distributed import SINGLE_PROCESS, Ranks
from bertie.training.parameter_groups import check, parameter_groups, replace_unless

# Coefficients of the iteration x ← a x + b x³ + c x⁵ of the singular values, as published by Jordan et al. Five iterations
# bring values between 0.01 and 1 to between 0.7 and 1.2, which is close enough to 1.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
RMS_OF_ADAM = 0.2  # root mean square of AdamW's updates, in units of the learning rate (Liu et al. 2025, section 2.2)


@dataclass(frozen=True)
class Muon:
    """Muon for the matrices of the encoder's layers, such as each gate of an LSTM or GRU. AdamW for embeddings,
    heads, biases and norms."""

    kind: Literal["muon"] = "muon"
    momentum: Annotated[float, Range(0, 0.9999)] = 0.95
    """Decay rate per step of the running sum of the gradients of matrices."""
    iterations: Annotated[int, Range(1, 20)] = 5
    """Iterations of the orthogonalization."""
    betas: tuple[float, ...] = (0.9, 0.98)
    """AdamW: decay rates per step of the running means of the gradient and of its square."""
    eps: AboveZero = 1e-8
    """AdamW: added to the root of the mean square gradient, to avoid division by zero."""
    weight_decay: NotNegative = 0.1
    """Weight decay of matrices. Biases and LayerNorm weights have none."""

    __post_init__ = check

    def build(self, model: nn.Module, layer_decay: float = 1.0, embedding_lr_scale: float = 1.0) -> optim.Optimizer:
        """Create the optimizer (see `AdamW.build`). Raises UsageError if no layer is trained."""
        parts = _matrices(model)
        adam, muon = list[dict[str, Any]](), list[dict[str, Any]]()
        for group in parameter_groups(model, self.weight_decay, layer_decay, embedding_lr_scale):
            others = [p for p in group["params"] if p not in parts]
            adam += [{**group, "params": others}] if others else []
            for number in sorted(set(parts.values())):
                matrices = [p for p in group["params"] if parts.get(p) == number]
                settings = {
                    "parts": number,
                    "momentum": self.momentum,
                    "iterations": self.iterations,
                    "state": ("exp_avg",),
                }
                muon += [{**group, "params": matrices, **settings}] if matrices else []
        betas = (self.betas[0], self.betas[1])
        rest = optim.AdamW(adam or [{"params": []}], lr=0.0, betas=betas, eps=self.eps, fused=True)
        return _Muon(muon, rest)


def _matrices(model: nn.Module) -> dict[Tensor, int]:
    """Return the matrices of the layers that are trained, with the number of matrices that each stacks.

    Raises:
        UsageError: There are none.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, HasMatrices)]
    parts: dict[Tensor, int] = {}
    for layer in layers:
        parts |= {weight: number for weight, number in layer.matrices().items() if weight.requires_grad}
    if not parts:
        why = "the layers of the encoder are frozen" if layers else "the encoder has no layers, only vectors of words"
        raise UsageError(f'optimizer.kind is "muon", for the matrices of layers, and {why}: set it to "adamw"')
    return parts


class _Muon(optim.Optimizer):
    """Updates its own groups, and lets AdamW update the others. Both share the state and the groups."""

    found_inf: Tensor | None = None  # 1: skip this step, as in torch's fused optimizers
    ranks: Ranks = SINGLE_PROCESS  # those that share the work

    def __init__(self, groups: list[dict[str, Any]], rest: optim.AdamW):
        super().__init__([*groups, *rest.param_groups], {"lr": 0.0})
        self.rest = rest
        rest.state = self.state

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # noqa: ARG002  # pyright: ignore[reportIncompatibleMethodOverride]
        self.rest.found_inf = self.found_inf  # pyright: ignore[reportAttributeAccessIssue]
        self.rest.step()
        for group in (group for group in self.param_groups if "parts" in group):
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            for shape in dict.fromkeys(parameter.shape for parameter in parameters):
                self._update([parameter for parameter in parameters if parameter.shape == shape], group)

    def _update(self, parameters: list[nn.Parameter], group: dict[str, Any]) -> None:
        """Update matrices of the same shape. Each rank orthogonalizes some of the updates, and all have all of them."""
        directions = []
        for parameter in parameters:
            state = self.state[parameter]
            before = state.setdefault("exp_avg", torch.zeros_like(parameter))
            assert parameter.grad is not None
            mean = before.lerp(parameter.grad, 1 - group["momentum"])
            directions.append(parameter.grad.lerp(mean, group["momentum"]))  # as in Nesterov's momentum
            replace_unless(self.found_inf, before, mean)
        stacked = torch.stack(directions).unflatten(1, (group["parts"], -1)).flatten(0, 1)
        scale = RMS_OF_ADAM * max(stacked.shape[1:]) ** 0.5
        share = self.ranks.own_range(len(stacked))
        orthogonal = orthogonalized(stacked[share.start : share.stop], group["iterations"])
        updates = self.ranks.gather_rows(orthogonal, len(stacked)).unflatten(0, (len(parameters), -1)).flatten(1, 2)
        for parameter, update in zip(parameters, updates, strict=True):
            decayed = parameter * (1 - group["lr"] * group["weight_decay"])
            updated = decayed - group["lr"] * scale * update.to(parameter.dtype)
            replace_unless(self.found_inf, parameter, updated)


def orthogonalized(x_MRC: Float[Tensor, "M R C"], iterations: int) -> Float[Tensor, "M R C"]:
    """Return U Vᵀ of the singular value decomposition U S Vᵀ of each matrix, approximately.

    The Newton-Schulz iteration needs only matrix products: in bf16 inside of torch.autocast, as in the model.
    """
    fast = torch.is_autocast_enabled(x_MRC.device.type) and x_MRC.dtype == torch.float32
    wide = x_MRC.shape[1] <= x_MRC.shape[2]
    x = x_MRC if wide else x_MRC.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-30)  # the norm bounds all singular values
    x = x.bfloat16() if fast else x
    a, b, c = COEFFICIENTS
    for _ in range(iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x if wide else x.mT).to(x_MRC.dtype)
