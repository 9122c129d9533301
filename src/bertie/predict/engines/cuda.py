"""The CUDA engine: bf16 on a GPU, with FlashAttention on the packed tokens and compiled layers."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from typing import Literal, cast

import torch
from jaxtyping import Int
from torch import Tensor, nn

from bertie.base.contracts import Batch, Hidden, Ragged
from bertie.base.errors import UsageError
from bertie.model.layers import SelfAttention
from bertie.model.positions import layer_rotations
from bertie.model.transformer import TransformerEncoder, call_layer, run_layers
from bertie.predict.engines.files import Exported


@dataclass(frozen=True)
class CudaEngine:
    """The CUDA engine, see the top of the file."""

    kind: Literal["cuda"] = "cuda"
    precision: Literal["bf16"] = "bf16"

    def require(self) -> None:
        """Raise UsageError if there is no GPU with bf16."""
        if not torch.cuda.is_available() or not torch.cuda.is_bf16_supported(including_emulation=False):
            raise UsageError("the engine cuda needs a GPU that computes in bf16, and there is none: use another engine")

    def build(self, encoder: TransformerEncoder, exported: Exported | None) -> nn.Module:  # noqa: ARG002
        """Copy an encoder in bf16. Its layers are compiled at the first batch."""
        return HalfEncoder(encoder)


class HalfEncoder(nn.Module):
    """A Transformer encoder in bf16, whose layers are compiled for any number of tokens and sequences."""

    def __init__(self, encoder: TransformerEncoder, backend: str = "inductor"):
        """Copy the encoder. Its embeddings are shared, and remain fp32."""
        super().__init__()
        self.config = encoder.config
        self.embeddings = encoder.embeddings
        half = copy.deepcopy(encoder).to(torch.bfloat16)
        for part in half.modules():
            if isinstance(part, SelfAttention):  # a kernel of its own
                part.attend = torch.compiler.disable(part.attend)  # pyright: ignore[reportAttributeAccessIssue]
        self.layers, self.final_norm = half.layers, half.final_norm
        self.call = torch.compile(call_layer, backend=backend, dynamic=True)

    def forward(self, batch: Batch, rows: Int[Tensor, " Q"] | None = None, all_layers: bool = False) -> Hidden:
        """Encode a batch, as `TransformerEncoder.forward` does. All results are fp32."""
        x_TD, rotations = self.embeddings(batch).to(torch.bfloat16), layer_rotations(self.config, batch.position_ids)
        *below, x_QD = run_layers(partial(self._layer, batch.ragged), x_TD, rotations, rows, all_layers)
        x_QD = (x_QD if self.final_norm is None else self.final_norm(x_QD)).float()
        return Hidden(x_QD, (*(x.float() for x in below), x_QD) if all_layers else None)

    def _layer(self, ragged: Ragged, number: int, x_TD: Tensor, rows: Tensor | None, rotation: Tensor | None) -> Tensor:
        return cast(Tensor, self.call(self.layers[number], x_TD, ragged, rows, rotation))

    def uncompiled(self) -> HalfEncoder:
        """Return an encoder with the same layers that does not compile them, so that their attention may be replaced."""
        twin = copy.copy(self)
        twin.call = call_layer  # pyright: ignore[reportAttributeAccessIssue]
        return twin
