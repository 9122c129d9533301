"""A model as one graph with padded inputs, as ONNX and OpenVINO need it: encoder and heads.

S  sequences    L  length of the longest one    T  S × L    N  heads    H  head size    D  hidden size
C  outputs of a head    V  vocabulary entries
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from bertie.base.contracts import Batch, Ragged
from bertie.base.errors import UsageError
from bertie.model.attention.window import FULL, Pattern
from bertie.model.config import TransformerConfig
from bertie.model.head_facts import facts_of
from bertie.model.layers import Layer, layer_output
from bertie.model.model import Model
from bertie.model.positions import layer_rotations
from bertie.model.transformer import TransformerEncoder, run_layers

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
STATES = "last_hidden_state"
WITHOUT_OUTPUT = "vectors"
"""The shape of heads without weights: text vectors come from the last hidden states."""


class Graph(nn.Module):
    """Encoder and heads on a padded grid. The outputs are the last hidden states, then what each head computes.

    Padding is at the end of a sequence. Its hidden states have no meaning.
    """

    def __init__(self, model: Model):
        """Share the weights of a model.

        Raises:
            UsageError: The model is no Transformer, or one with language embeddings or disentangled attention; or it has a
                head that no graph computes.
        """
        super().__init__()
        encoder = model.encoder
        special = isinstance(encoder, TransformerEncoder) and (
            "a model with language embeddings" * encoder.config.language_embeddings
            or "disentangled attention" * encoder.config.disentangled
        )
        if special or not isinstance(encoder, TransformerEncoder):
            raise UsageError(f"{special or encoder.config.kind} cannot be exported as a graph: use the engine plain")
        self.encoder = encoder
        self.config: TransformerConfig = encoder.config
        self.pools = model.reading is not None and model.reading.only_pooled is not None
        self.heads = nn.ModuleDict({kind: model.heads[kind] for kind in exported_heads(model)})

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs, in order. A model without segments has no `token_type_ids`."""
        return INPUTS if self.config.type_vocab_size > 1 else INPUTS[:2]

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs, in order, as transformers calls them. Several heads have their kind in the name."""
        names = [STATES]
        for kind, head in self.heads.items():
            logits = ["logits" if len(self.heads) == 1 else f"{kind}_logits"]
            names += ["start_logits", "end_logits"] if facts_of(head).shape == "start_end" else logits
        return names

    @property
    def numbers(self) -> list[str]:
        """Names of the outputs in a user's units, such as 250,000, which half precision and int8 would round or lose."""
        return (
            self.outputs[1:] if any(facts_of(head).problem_type == "regression" for head in self.heads.values()) else []
        )

    def forward(
        self,
        input_ids: Int[Tensor, "S L"],
        attention_mask: Int[Tensor, "S L"],
        token_type_ids: Int[Tensor, "S L"] | None = None,
    ) -> tuple[Tensor, ...]:
        """Compute all outputs. attention_mask: 1 for a token, 0 for padding."""
        token_type_ids = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        positions = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        ids, segments, position_ids = (grid.flatten() for grid in (input_ids, token_type_ids, positions))
        x_TD = self.encoder.embeddings(Batch(ids, segments, position_ids, ids, ids, ids, Ragged(ids, 0)))
        layers = [cast(Layer, layer).parts for layer in self.encoder.layers]
        seen = {
            pattern: _seen(self.config, pattern, attention_mask, x_TD)
            for pattern in {layer.pattern for layer in layers}
        }

        def run(number: int, x_TD: Tensor, rows: Tensor | None, rotation: Tensor | None) -> Tensor:
            mix = partial(_mix, input_ids.shape, seen[layers[number].pattern])
            return layer_output(layers[number], mix, x_TD, rows, rotation)

        [x_TD] = run_layers(run, x_TD, layer_rotations(self.config, position_ids), None, all_layers=False)
        if self.encoder.final_norm is not None:
            x_TD = self.encoder.final_norm(x_TD)
        outputs = [x_TD.unflatten(0, input_ids.shape)]
        for head in self.heads.values():
            if facts_of(head).pools:
                outputs.append(_logits(head, self._pooled(head, outputs[0], attention_mask)))
                continue
            logits = _logits(head, x_TD).unflatten(0, input_ids.shape)
            outputs += list(logits.unbind(-1)) if facts_of(head).shape == "start_end" else [logits]
        return tuple(outputs)

    def _pooled(self, head: nn.Module, x_SLD: Tensor, attention_mask: Tensor) -> Float[Tensor, "S D"]:
        if self.pools:
            x_SLD = head.pooled(x_SLD) if head.late else x_SLD  # pyright: ignore[reportCallIssue]
            mask_SL1 = attention_mask[:, :, None].to(x_SLD.dtype)
            return (x_SLD * mask_SL1).sum(1) / mask_SL1.sum(1).clamp(min=1)  # a row may be all padding
        if self.config.pooled_token == "first":
            return x_SLD[:, 0]
        last_S11 = (attention_mask.sum(1) - 1)[:, None, None]
        return x_SLD.gather(1, last_S11.expand(-1, -1, x_SLD.shape[2]))[:, 0]  # for any S: an index would fix it


def _logits(head: nn.Module, x_PD: Tensor) -> Float[Tensor, "P C"]:
    return head.logits(x_PD)  # pyright: ignore[reportCallIssue]


def exported_heads(model: Model) -> list[str]:
    """Return the kinds of the heads that a graph holds: those with outputs that read the last layer of the encoder.

    Raises:
        UsageError: A head reads something else, so the graph would lack it.
    """
    kinds = [kind for kind in sorted(model.encoder_heads) if facts_of(model.heads[kind]).shape != WITHOUT_OUTPUT]
    for kind in kinds:
        facts = facts_of(model.heads[kind])
        reads = model.reading is not None and model.reading.only_pooled is None
        if facts.shape is None or reads:
            problem = "reads other layers, a BiLSTM or separate texts" if reads else "no class of transformers has"
            remedy = "use --to torch, or --to hf for the files without a graph"
            raise UsageError(f"a graph cannot hold the head ({facts.name}), which {problem}: {remedy}")
    return kinds


def _seen(
    config: TransformerConfig, pattern: Pattern, attention_mask: Tensor, like: Tensor
) -> Float[Tensor, "S N L L"]:
    """Return what to add to the attention scores. The dimensions N and L of queries may be 1."""
    length = attention_mask.shape[1]
    lowest = torch.finfo(like.dtype).min
    hidden = (1.0 - attention_mask[:, None, None, :].to(like.dtype)) * lowest
    if pattern == FULL:
        return hidden
    if (near := pattern.visible(length, length, like.device)) is not None:
        hidden = torch.where(near, hidden, lowest)
    bias = pattern.bias(config.num_attention_heads, length, length, like)
    return hidden if bias is None else torch.where(hidden < 0, hidden, bias)


def _mix(
    shape: torch.Size, seen: Float[Tensor, "S N L L"], q_TNH: Tensor, k_TNH: Tensor, v_TNH: Tensor, _: Tensor | None
) -> Float[Tensor, "T D"]:
    """Mix values in a grid of a shape [S, L], in which every token is a query."""
    grids = (x.unflatten(0, shape).transpose(1, 2) for x in (q_TNH, k_TNH, v_TNH))
    mixed_SNLH = F.scaled_dot_product_attention(*grids, attn_mask=seen)
    # torch.export predicts another layout than the kernel with a bias has, so a view would fail: copy.
    return mixed_SNLH.transpose(1, 2).clone(memory_format=torch.contiguous_format).flatten(2).flatten(0, 1)


def export(graph: Graph) -> torch.export.ExportedProgram:
    """Trace a graph with a dynamic number and length of sequences."""
    count, length = torch.export.Dim("sequences"), torch.export.Dim("length", max=graph.config.max_position_embeddings)
    # torch takes sizes 0 and 1 for constants.
    example = {name: torch.ones(2, 3, dtype=torch.int64) for name in graph.inputs}
    sizes = {name: {0: count, 1: length} for name in graph.inputs}
    with torch.no_grad():
        return torch.export.export(graph.eval(), (), example, dynamic_shapes=sizes)


@contextmanager
def quietly() -> Iterator[None]:
    """Hide what other libraries say about their own code: warnings, log messages below errors, and progress bars."""
    disabled, unread = logging.root.manager.disable, io.StringIO()
    with warnings.catch_warnings(), redirect_stdout(unread), redirect_stderr(unread):
        warnings.simplefilter("ignore")
        try:
            logging.disable(logging.WARNING)
            yield
        finally:
            logging.disable(disabled)
