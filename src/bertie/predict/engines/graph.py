"""A model as one graph with padded inputs, as ONNX and OpenVINO need it: encoder and heads.

S  sequences    L  length of the longest one    T  S × L    N  heads    H  head size    D  hidden size
C  outputs of a head    V  vocabulary entries
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from bertie.contracts import Batch, Ragged
from bertie.errors import UsageError
from bertie.model.activation import activation
from bertie.model.attention_pattern import Pattern
from bertie.model.config import TransformerConfig
from bertie.model.heads import ConditionalSpanHead
from bertie.model.layers import Layer
from bertie.model.model import Model
from bertie.model.positions import rotary_angles, rotate
from bertie.model.transformer import TransformerEncoder

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
STATES = "last_hidden_state"
POOLED = ("classify", "regress", "choose", "nsp")
"""Heads that read one token of a sequence. The others read all tokens."""
NOT_EXPORTED = frozenset({"embed", "sbo"})
"""Heads without an output of their own for a text."""


class Graph(nn.Module):
    """Encoder and heads on a padded grid. The outputs are the last hidden states, then what each head computes.

    Padding is at the end of a sequence. Its hidden states have no meaning.
    """

    def __init__(self, model: Model, heads: bool = True):
        """Share the weights of a model.

        Raises:
            UsageError: The model is no Transformer, or one with language embeddings.
        """
        super().__init__()
        encoder = model.encoder
        if not isinstance(encoder, TransformerEncoder) or encoder.config.language_embeddings:
            kind = (
                "a model with language embeddings" if isinstance(encoder, TransformerEncoder) else encoder.config.kind
            )
            raise UsageError(f"{kind} cannot be exported as a graph: use the engine plain")
        self.encoder = encoder
        self.config: TransformerConfig = encoder.config
        self.heads = nn.ModuleDict({kind: model.heads[kind] for kind in exported_heads(model)} if heads else {})

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs, in order. A model without segments has no `token_type_ids`."""
        return INPUTS if self.config.type_vocab_size > 1 else INPUTS[:2]

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs, in order."""
        return [STATES, *(name for kind in self.heads for name in output_names(kind, len(self.heads)))]

    def forward(
        self,
        input_ids: Int[Tensor, "S L"],
        attention_mask: Int[Tensor, "S L"],
        token_type_ids: Int[Tensor, "S L"] | None = None,
    ) -> tuple[Tensor, ...]:
        """Compute all outputs. attention_mask: 1 for a token, 0 for padding."""
        token_type_ids = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        positions = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        x_SLD = self._embed(input_ids, token_type_ids, positions)
        seen = _seen(self.config, attention_mask, x_SLD)
        angles = None
        if self.config.position_embedding == "rotary":
            angles = rotary_angles(positions[0], self.config.hidden_size // self.config.num_attention_heads)
        for layer in self.encoder.layers:
            x_SLD = _layer(cast(Layer, layer), x_SLD, seen, angles)
        if self.encoder.final_norm is not None:
            x_SLD = self.encoder.final_norm(x_SLD)
        outputs = [x_SLD]
        for kind, head in self.heads.items():
            read = x_SLD
            if kind in POOLED:
                last = self.config.pooled_token == "last"
                read = x_SLD[torch.arange(len(x_SLD)), attention_mask.sum(1) - 1] if last else x_SLD[:, 0]
            logits = head.logits(read)  # pyright: ignore[reportCallIssue]
            outputs += list(logits.unbind(-1)) if kind == "span" else [logits]
        return tuple(outputs)

    def _embed(self, input_ids: Tensor, token_type_ids: Tensor, positions: Tensor) -> Float[Tensor, "S L D"]:
        unused = input_ids
        packed = Batch(input_ids, token_type_ids, positions, unused, unused, unused, Ragged(unused, 0))
        return self.encoder.embeddings(packed)


def exported_heads(model: Model) -> list[str]:
    """Return the kinds of the heads that a graph can hold: those that read the last layer of the encoder."""
    heads = sorted(model.encoder_heads - NOT_EXPORTED) if model.reading is None else []
    return [kind for kind in heads if not isinstance(model.heads[kind], ConditionalSpanHead)]


def output_names(kind: str, heads: int) -> list[str]:
    """Return the names of the outputs of a head, as transformers calls them. Several heads have their kind in the name."""
    if kind == "span":
        return ["start_logits", "end_logits"]
    return ["logits" if heads == 1 else f"{kind}_logits"]


def _seen(config: TransformerConfig, attention_mask: Tensor, x_SLD: Tensor) -> Float[Tensor, "S N L L"]:
    """Return what to add to the attention scores. The dimensions N and L of queries may be 1."""
    length = attention_mask.shape[1]
    pattern = Pattern(causal=config.causal, alibi=config.position_embedding == "alibi")
    hidden = (1.0 - attention_mask[:, None, None, :].to(x_SLD.dtype)) * torch.finfo(x_SLD.dtype).min
    if (near := pattern.visible(length, length, x_SLD.device)) is not None:
        hidden = torch.where(near, hidden, torch.finfo(x_SLD.dtype).min)
    bias = pattern.bias(config.num_attention_heads, length, length, x_SLD)
    return hidden if bias is None else torch.where(hidden < 0, hidden, bias)


def _layer(layer: Layer, x_SLD: Tensor, seen: Tensor, angles: Tensor | None) -> Float[Tensor, "S L D"]:
    given = layer.attention_norm(x_SLD) if layer.norm_first else x_SLD
    attention = layer.attention
    q, k, v = (x.unflatten(-1, (attention.heads, -1)) for x in attention.qkv(given).chunk(3, -1))
    if angles is not None:
        q, k = rotate(q, angles), rotate(k, angles)
    mixed = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), attn_mask=seen)
    x_SLD = x_SLD + attention.out(mixed.transpose(1, 2).flatten(2))
    x_SLD = x_SLD if layer.norm_first else layer.attention_norm(x_SLD)
    inner = _activation(layer, layer.up(layer.norm(x_SLD) if layer.norm_first else x_SLD))
    x_SLD = x_SLD + layer.down(inner)
    return x_SLD if layer.norm_first else layer.norm(x_SLD)


def _activation(layer: Layer, x: Tensor) -> Tensor:
    if layer.act in ("gelu", "gelu_tanh"):
        return F.gelu(x, approximate="none" if layer.act == "gelu" else "tanh")
    return activation(layer.act, x)


def export(graph: Graph) -> torch.export.ExportedProgram:
    """Trace a graph with a dynamic number and length of sequences."""
    count, length = torch.export.Dim("sequences"), torch.export.Dim("length", max=graph.config.max_position_embeddings)
    example = {
        name: torch.ones(2, 3, dtype=torch.int64) for name in graph.inputs
    }  # torch takes sizes 0, 1 for constants
    sizes = {name: {0: count, 1: length} for name in graph.inputs}
    with torch.no_grad():
        return torch.export.export(graph.eval(), (), example, dynamic_shapes=sizes)


@contextmanager
def quietly() -> Iterator[None]:
    """Hide what exporters say about their own code: warnings, and log messages below errors."""
    disabled = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            logging.disable(logging.WARNING)
            yield
        finally:
            logging.disable(disabled)
