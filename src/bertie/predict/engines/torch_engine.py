"""The torch engine: packed weights on a CPU, in fp32, bf16 or int8, with no other library."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from bertie.base.contracts import Batch, Hidden
from bertie.base.errors import UsageError
from bertie.model.activation import activation
from bertie.model.config import GATED, TransformerConfig
from bertie.model.layers import Layer, LayerParts, layer_output
from bertie.model.positions import layer_rotations
from bertie.model.transformer import TransformerEncoder, run_layers
from bertie.predict.engines import cpu
from bertie.predict.engines.files import Exported, engine_name
from bertie.predict.engines.linears import (
    ActivationRange,
    FusedLinear,
    Int8Linear,
    OneDnnLinear,
    PlainLinear,
    Weights,
    accept_deprecation,
    has_onednn,
)
from bertie.predict.engines.parts import BatchPart, Kernel, PartAttention, padded, parts_of, rows_for

Make = Callable[[str, Weights], FusedLinear]
"""Builds the linear layer of a name ("0.qkv", with the number of its weights) and its weights."""
SeePacked = Callable[[int, Tensor], None]
"""Receives the number of a layer, and the attention probabilities of consecutive sequences of equal length, fp32 [S, N, L, L]."""


@dataclass(frozen=True)
class TorchEngine:
    """The torch engine, see the top of the file."""

    kind: Literal["torch"] = "torch"
    precision: Literal["fp32", "bf16", "int8"] = "fp32"

    def require(self) -> None:
        """Raise UsageError if the machine lacks the instructions for the precision."""
        name = engine_name(self.kind, self.precision)
        cpu.require(name, self.precision)
        if self.precision != "fp32" and not has_onednn():
            raise UsageError(
                f"the engine {name} needs a torch with oneDNN, which this one has not: use the engine torch"
            )

    def build(self, encoder: TransformerEncoder, exported: Exported | None) -> nn.Module:
        """Pack an encoder. exported: where int8 finds what was measured."""
        if self.precision == "int8":
            assert exported is not None
            return int8(encoder, exported.activations)
        return (bf16 if self.precision == "bf16" else fp32)(encoder)


class PackedEncoder(nn.Module):
    """A Transformer encoder for inference. It has the methods and attributes of an encoder, except `layers`."""

    def __init__(self, encoder: TransformerEncoder, make: Make, stream: torch.dtype):
        """Pack the weights of an encoder.

        Args:
            encoder: The encoder. Its embeddings are shared, its layers are not used later.
            make: Builds the linear layers.
            stream: Type of the hidden states between layers.
        """
        super().__init__()
        self.config: TransformerConfig = encoder.config
        self.embeddings = encoder.embeddings
        self.final_norm = encoder.final_norm
        self.stream = stream
        self.kernels: list[Kernel] = [F.scaled_dot_product_attention for _ in encoder.layers]
        *_, last = layers = [cast(Layer, layer) for layer in encoder.layers]
        distinct = enumerate(dict.fromkeys(layers))  # layers may be one module
        parts = {layer: _pack(layer, str(i), make, stream, layer is last) for i, layer in distinct}
        self.packed = [parts[layer] for layer in layers]

    def forward(self, batch: Batch, rows: Int[Tensor, " Q"] | None = None, all_layers: bool = False) -> Hidden:
        """Encode a batch, as `TransformerEncoder.forward` does. All results are fp32."""
        x_TD = self.embeddings(batch)
        rotations = layer_rotations(self.config, batch.position_ids)
        lengths = batch.ragged.lengths.numpy()
        outputs: list[list[Tensor]] = []
        for part in parts_of(lengths, None if rows is None else rows.numpy()):
            own_TD = x_TD[part.tokens]
            size, asked = len(own_TD), part.rows
            count = rows_for(size)
            if asked is not None:  # more rows, whose results are dropped
                size = len(asked)
                asked = F.pad(asked, (0, rows_for(size) - size))
            part_rotations = [
                None if rotation is None else padded(rotation[part.tokens], count) for rotation in rotations
            ]
            layer = partial(self._layer, part, all_layers)
            states = run_layers(layer, padded(own_TD.to(self.stream), count), part_rotations, asked, all_layers)
            below = [own_TD, *(x_PD[:size].float() for x_PD in states[1:-1])] if all_layers else []
            x_QD = states[-1][:size].float()
            outputs.append([*below, x_QD if self.final_norm is None else self.final_norm(x_QD)])
        if not outputs:  # no query row
            return Hidden(x_TD.new_zeros(0, self.config.hidden_size))
        layers = outputs[0] if len(outputs) == 1 else [torch.cat(states) for states in zip(*outputs, strict=True)]
        return Hidden(layers[-1], tuple(layers) if all_layers else None)

    def _layer(
        self, part: BatchPart, keep: bool, number: int, x_PD: Tensor, rows: Tensor | None, rotation: Tensor | None
    ) -> Tensor:
        """Compute a layer. keep: do not overwrite its input."""
        parts = self.packed[number]
        mix = PartAttention(part, parts.pattern, self.kernels[number])
        return layer_output(parts, mix, x_PD.clone() if keep else x_PD, rows, rotation)

    def observed(self, see: SeePacked) -> PackedEncoder:
        """Return an encoder with the same weights that shows its attention. It needs every token as a query row.

        Each layer shows the sequences in the order of the batch, in one or more calls of `see`.
        """
        twin = copy.copy(self)
        twin.kernels = [partial(_mix_visibly, partial(see, i)) for i in range(len(self.packed))]
        return twin


def _mix_visibly(
    see: Callable[[Tensor], None], q_SNLH: Tensor, k_SNLH: Tensor, v_SNLH: Tensor, *, attn_mask: Tensor | None
) -> Float[Tensor, "S N L H"]:
    """Compute attention by the formula, and show the probabilities."""
    scores = q_SNLH.float() @ k_SNLH.float().transpose(2, 3) / math.sqrt(q_SNLH.shape[-1])
    probabilities = (scores if attn_mask is None else scores + attn_mask.float()).softmax(-1)
    see(probabilities)
    return probabilities.to(v_SNLH.dtype) @ v_SNLH


def _pack(layer: Layer, name: str, make: Make, stream: torch.dtype, last: bool) -> LayerParts:
    """Return a layer with other products. name: its number. last: whether it may compute some rows only."""
    attention, act = layer.attention, layer.act
    size, split = attention.qkv.in_features, None
    if last:
        query, key_value = (
            make(f"{name}.qkv", _weights(attention.qkv, rows)) for rows in (slice(size), slice(size, None))
        )
        split = (query, key_value)
    linears = {"qkv": attention.qkv, "out": attention.out, "up": layer.up, "down": layer.down}
    qkv, out, up, down = (make(f"{name}.{place}", _weights(linear)) for place, linear in linears.items())
    return LayerParts(
        norm_first=layer.norm_first,
        pattern=attention.pattern,
        heads=attention.heads,
        key_value_heads=attention.key_value_heads,
        attention_norm=_cast(layer.attention_norm, stream),
        norm=_cast(layer.norm, stream),
        qkv=qkv,
        split=split,
        add_attention=out.add,
        widen=lambda x_PD: activation(act, up(x_PD)) if act in GATED else up(x_PD, act),
        add_narrowed=down.add,
    )


def _cast(norm: nn.Module, dtype: torch.dtype) -> nn.Module:
    return copy.deepcopy(norm).to(dtype).requires_grad_(False)


def _weights(linear: nn.Linear, rows: slice = slice(None)) -> Weights:
    return Weights(linear.weight.detach()[rows], None if linear.bias is None else linear.bias.detach()[rows])


def _packed_once(pack: Callable[[Weights], FusedLinear]) -> Make:
    """Build linear layers whose weights several layers may share. The names of the layers do not matter."""
    packed: dict[tuple[int, torch.Size], FusedLinear] = {}

    def make(_: str, weights: Weights) -> FusedLinear:
        key = weights.matrix.data_ptr(), weights.matrix.shape
        if key not in packed:
            packed[key] = pack(weights)
        return packed[key]

    return make


def fp32(encoder: TransformerEncoder) -> PackedEncoder:
    """Pack an encoder in fp32. Its results differ from the encoder's by rounding."""
    pack = partial(OneDnnLinear, dtype=torch.float32) if has_onednn() else PlainLinear
    return PackedEncoder(encoder, _packed_once(pack), torch.float32)


def bf16(encoder: TransformerEncoder) -> PackedEncoder:
    """Pack an encoder in bf16. Sums in matrix products, softmax and layer normalization remain fp32."""
    return PackedEncoder(encoder, _packed_once(partial(OneDnnLinear, dtype=torch.bfloat16)), torch.bfloat16)


def int8(encoder: TransformerEncoder, measured: dict[str, Tensor]) -> PackedEncoder:
    """Pack an encoder in int8. The hidden states between the layers remain fp32, attention is bf16 if that is native.

    Args:
        encoder: The encoder.
        measured: What `calibration.measure` returned.
    """
    accept_deprecation()
    attention = torch.bfloat16 if cpu.has(cpu.BF16) else torch.float32

    def span(name: str) -> ActivationRange:
        low, high = measured[f"{name}.range"].tolist()
        return ActivationRange(low, high)

    def make(name: str, weights: Weights) -> FusedLinear:
        outputs = span(name.replace(".up", ".down")) if name.endswith(".up") and not encoder.config.gated else None
        smooth = measured.get(f"{name}.smooth")
        scaled = weights if smooth is None else weights._replace(matrix=weights.matrix * smooth)
        return Int8Linear(scaled, span(name), attention, outputs, smooth)

    return PackedEncoder(encoder, make, torch.float32)
