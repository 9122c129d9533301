"""Everything about the heads of a model, from plain text."""

from __future__ import annotations

from functools import partial

import numpy as np

from bertie.inspect.attention import read_attention, require_transformer
from bertie.inspect.clusters import HeadDivergence
from bertie.inspect.findings import AttentionAnalysis, InputFindings, see_all
from bertie.inspect.layers import LayerStates
from bertie.inspect.statistics import HeadStatistics, short_name
from bertie.inspect.tables import Table
from bertie.inspect.texts import TextFile
from bertie.predict.predictor import Predictor

SHOWN = ("to_previous", "to_next", "to_same", "to_sep", "to_punctuation", "to_cls")  # statistics of the summary


def inspect_heads(predictor: Predictor, texts: TextFile, seed: int, layers: LayerStates) -> InputFindings:
    """Describe every head, from the attention over the texts of a file, in one pass.

    Args:
        predictor: The model.
        texts: The texts, of which nothing was read yet.
        seed: Random seed.
        layers: Receives the hidden states of the same pass.
    """
    encoder, tokenizer = require_transformer(predictor.model.encoder), predictor.tokenizer
    analyses: list[AttentionAnalysis] = [HeadStatistics(encoder, tokenizer), HeadDivergence(encoder, seed)]
    for sequences in texts.blocks():
        layers.add(sequences)
        read_attention(predictor.model, sequences, partial(see_all, analyses), layers.see_hidden)
    tables = [table for analysis in analyses for table in analysis.tables()]
    heads, uniform = tables[:2]
    return InputFindings("text", texts.facts(), tables, _summary(heads, uniform))


def _summary(heads: Table, uniform: Table) -> list[str]:
    """Name the head with the most attention to each kind of token, and the sharpest head."""
    lines = []
    for name in SHOWN:
        values = np.asarray(heads.columns[name], np.float64)
        if np.isfinite(values).any():
            best = int(np.nanargmax(values))
            found = f"most in head {_name(heads, best)}, {values[best]:.2f} on average"
            lines.append(f"{short_name(name)}: {found} (uniform: {uniform.columns[name][0]:.2f})")
    entropy = np.asarray(heads.columns["entropy"], np.float64)
    sharp = int(entropy.argmin())
    found = f"least in head {_name(heads, sharp)}, {entropy[sharp]:.2f} nats on average"
    return [*lines, f"entropy: {found} (uniform: {uniform.columns['entropy'][0]:.2f})"]


def _name(heads: Table, row: int) -> str:
    return f"{heads.columns['layer'][row]}.{heads.columns['head'][row]}"
