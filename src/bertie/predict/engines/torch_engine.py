"""The torch engine: packed weights on a CPU, in fp32, bf16 or int8, with no other library."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from bertie.contracts import Batch, Hidden
from bertie.errors import UsageError
from bertie.model.attention_pattern import pattern_of
from bertie.model.config import TransformerConfig
from bertie.model.layers import Layer
from bertie.model.positions import layer_angles
from bertie.model.transformer import TransformerEncoder
from bertie.predict.engines import cpu
from bertie.predict.engines.files import Exported
from bertie.predict.engines.layers import PackedLayer, padded, parts_of, rows_for
from bertie.predict.engines.linears import (
    Int8Linear,
    Linear,
    OneDnnLinear,
    PlainLinear,
    Range,
    Weights,
    accept_deprecation,
    has_onednn,
)

Make = Callable[[str, Weights], Linear]
"""Builds the linear layer of a name ("0.qkv") and its weights."""
Adjust = Callable[[str, Weights], Weights]
"""Changes the weights of a layer of this name."""
See = Callable[[int, Tensor], None]
"""Receives the number of a layer, and the attention probabilities of consecutive sequences of equal length, fp32 [S, N, L, L]."""


@dataclass(frozen=True)
class TorchEngine:
    """The torch engine, see the top of the file."""

    kind: Literal["torch"] = "torch"
    precision: Literal["fp32", "bf16", "int8"] = "fp32"

    def require(self) -> None:
        """Raise UsageError if the machine lacks the instructions for the precision."""
        name = "torch" if self.precision == "fp32" else f"torch-{self.precision}"
        cpu.require(name, self.precision)
        if self.precision != "fp32" and not has_onednn():
            raise UsageError(
                f"the engine {name} needs a torch with oneDNN, which this one has not: use the engine torch"
            )

    def build(self, encoder: TransformerEncoder, exported: Exported | None) -> nn.Module:
        """Pack an encoder. exported: where int8 finds what was measured."""
        match self.precision:
            case "fp32":
                return fp32(encoder)
            case "bf16":
                return bf16(encoder)
        assert exported is not None
        return int8(encoder, exported.activations)


class PackedEncoder(nn.Module):
    """A Transformer encoder for inference. It has the methods and attributes of an encoder, except `layers`."""

    def __init__(self, encoder: TransformerEncoder, make: Make, stream: torch.dtype, adjust: Adjust | None = None):
        """Pack the weights of an encoder.

        Args:
            encoder: The encoder. Its embeddings are shared, its layers are not used later.
            make: Builds the linear layers.
            stream: Type of the hidden states between layers.
            adjust: Changes the weights before the linear layers are built. None: it does not.
        """
        super().__init__()
        self.config: TransformerConfig = encoder.config
        self.embeddings = encoder.embeddings
        self.final_norm = encoder.final_norm
        self.stream = stream
        count = len(encoder.layers)
        self.packed = [
            _pack(layer, encoder.config, str(i), make, stream, adjust, i == count - 1)
            for i, layer in enumerate(encoder.layers)
        ]

    def forward(self, batch: Batch, rows: Int[Tensor, " Q"] | None = None, all_layers: bool = False) -> Hidden:
        """Encode a batch, as `TransformerEncoder.forward` does. All results are fp32."""
        x_TD = self.embeddings(batch)
        angles = layer_angles(self.config, batch.position_ids)
        lengths = batch.ragged.lengths.numpy()
        outputs: list[list[Tensor]] = []
        for part in parts_of(lengths, None if rows is None else rows.numpy()):
            own_TD = x_TD[part.tokens]
            count = rows_for(len(own_TD))
            own = [None if each is None else padded(each[part.tokens], count) for each in angles]
            x_PD, kept = padded(own_TD.to(self.stream), count), [own_TD]
            for layer, own_angles in zip(self.packed[:-1], own, strict=False):
                x_PD = layer(x_PD, part, own_angles)
                if all_layers:
                    kept.append(x_PD[: len(own_TD)].float())
            x_QD = self.packed[-1].last(x_PD, part, own[-1]).float()
            outputs.append([*kept, x_QD if self.final_norm is None else self.final_norm(x_QD)])
        if not outputs:  # no query row
            return Hidden(x_TD.new_zeros(0, self.config.hidden_size))
        layers = outputs[0] if len(outputs) == 1 else [torch.cat(states) for states in zip(*outputs, strict=True)]
        return Hidden(layers[-1], tuple(layers) if all_layers else None)

    def observed(self, see: See) -> PackedEncoder:
        """Return an encoder with the same weights that shows its attention. It needs every token as a query row.

        Each layer shows the sequences in the order of the batch, in one or more calls of `see`.
        """
        twin = copy.copy(self)
        twin.packed = [replace(each, mix=partial(_mix_visibly, partial(see, i))) for i, each in enumerate(self.packed)]
        return twin


def _mix_visibly(
    see: Callable[[Tensor], None], q_SNLH: Tensor, k_SNLH: Tensor, v_SNLH: Tensor, *, attn_mask: Tensor | None
) -> Float[Tensor, "S N L H"]:
    """Compute attention by the formula, and show the probabilities."""
    scores = q_SNLH.float() @ k_SNLH.float().transpose(2, 3) / math.sqrt(q_SNLH.shape[-1])
    probabilities = (scores if attn_mask is None else scores + attn_mask.float()).softmax(-1)
    see(probabilities)
    return probabilities.to(v_SNLH.dtype) @ v_SNLH


def _pack(
    layer: nn.Module,
    config: TransformerConfig,
    name: str,
    make: Make,
    stream: torch.dtype,
    adjust: Adjust | None,
    last: bool,
) -> PackedLayer:
    assert isinstance(layer, Layer)
    size = config.hidden_size
    linears = {"qkv": layer.attention.qkv, "out": layer.attention.out, "up": layer.up, "down": layer.down}
    weights = {place: Weights(each.weight.detach(), _bias(each)) for place, each in linears.items()}
    if adjust is not None:
        weights = {place: adjust(f"{name}.{place}", each) for place, each in weights.items()}
    qkv = weights["qkv"]
    halves = [None if qkv.bias is None else qkv.bias[rows] for rows in (slice(size), slice(size, None))]
    query = make(f"{name}.qkv", Weights(qkv.matrix[:size], halves[0])) if last else None
    key_value = make(f"{name}.qkv", Weights(qkv.matrix[size:], halves[1])) if last else None
    out, up, down = (make(f"{name}.{place}", weights[place]) for place in ("out", "up", "down"))
    norms = _cast(layer.attention_norm, stream), _cast(layer.norm, stream)
    return PackedLayer(
        config, pattern_of(config, int(name)), make(f"{name}.qkv", qkv), query, key_value, out, up, down, *norms
    )


def _bias(linear: nn.Linear) -> Tensor | None:
    return None if linear.bias is None else linear.bias.detach()


def _cast(norm: nn.Module, dtype: torch.dtype) -> nn.LayerNorm | None:
    """Return a copy of another type. None: there is no normalization."""
    if not isinstance(norm, nn.LayerNorm):
        return None
    cast = nn.LayerNorm(list(norm.normalized_shape), norm.eps, bias=norm.bias is not None, dtype=dtype)
    cast.load_state_dict(norm.state_dict())
    return cast.requires_grad_(False)


def fp32(encoder: TransformerEncoder) -> PackedEncoder:
    """Pack an encoder in fp32. Its results differ from the encoder's by rounding."""

    def make(_: str, weights: Weights) -> Linear:
        return OneDnnLinear(weights, torch.float32) if has_onednn() else PlainLinear(weights)

    return PackedEncoder(encoder, make, torch.float32)


def bf16(encoder: TransformerEncoder) -> PackedEncoder:
    """Pack an encoder in bf16. Sums in matrix products, softmax and layer normalization remain fp32."""
    return PackedEncoder(encoder, lambda _, weights: OneDnnLinear(weights, torch.bfloat16), torch.bfloat16)


def int8(encoder: TransformerEncoder, measured: dict[str, Tensor]) -> PackedEncoder:
    """Pack an encoder in int8. The hidden states between the layers remain fp32, attention is bf16 if that is native.

    Args:
        encoder: The encoder.
        measured: What `calibration.measure` returned.
    """
    accept_deprecation()
    attention = torch.bfloat16 if cpu.has(cpu.BF16) else torch.float32

    def span(name: str) -> Range:
        low, high = measured[f"{name}.range"].tolist()
        return Range(low, high)

    def make(name: str, weights: Weights) -> Linear:
        outputs = span(name.replace(".up", ".down")) if name.endswith(".up") and not encoder.config.gated else None
        return Int8Linear(weights, span(name), attention, outputs, measured.get(f"{name}.smooth"))

    def adjust(name: str, weights: Weights) -> Weights:
        smooth = measured.get(f"{name}.smooth")
        return weights if smooth is None else Weights(weights.matrix * smooth, weights.bias)

    return PackedEncoder(encoder, make, torch.float32, adjust)
