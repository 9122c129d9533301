"""Everything about single heads: from plain text, from a treebank, from a file with mentions, block by block."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
from torch import Tensor

from bertie.base import console
from bertie.base.console import percent
from bertie.inspect.attention import Group, read_attention, require_transformer
from bertie.inspect.heads.clusters import HeadDivergence
from bertie.inspect.heads.coreference import Coreference
from bertie.inspect.heads.layers import LayerStates
from bertie.inspect.heads.relations import Relations
from bertie.inspect.heads.statistics import HeadStatistics, short_name
from bertie.inspect.mention_windows import encode_mentions
from bertie.inspect.mentions import read_coreference
from bertie.inspect.tables import InputFindings, Table, TableRow
from bertie.inspect.texts import Readable, TextFile
from bertie.inspect.treebank import read_treebank
from bertie.inspect.words import encode_words
from bertie.predict.predictor import Predictor

SHOWN_STATISTICS = ("to_previous", "to_next", "to_same", "to_sep", "to_punctuation", "to_cls")  # lines for the terminal
SHOWN_RELATIONS = 8


def inspect_heads(predictor: Predictor, texts: TextFile, seed: int, layers: LayerStates) -> InputFindings:
    """Describe every head, from the attention over the texts of a file, in one pass.

    Args:
        predictor: The model.
        texts: The texts, of which nothing was read yet.
        seed: Random seed.
        layers: Receives the hidden states of the same pass.
    """
    encoder, tokenizer = require_transformer(predictor.model.encoder), predictor.tokenizer
    analyses = (HeadStatistics(encoder, tokenizer), HeadDivergence(encoder, seed))

    def see(group: Group, layer: int, probabilities: Tensor) -> None:
        for analysis in analyses:
            analysis.see(group, layer, probabilities)

    for sequences in texts.blocks(warn=True):
        layers.add(sequences)
        read_attention(predictor.model, sequences, see, layers.see_hidden)
    tables = [table for analysis in analyses for table in analysis.tables()]
    heads, uniform = tables[:2]
    return InputFindings("text", texts.facts(), tables, _summary(heads, uniform))


def _summary(heads: Table, uniform: Table) -> list[str]:
    """Name the head with the most attention to each kind of token, and the sharpest head."""
    lines = []
    for name in SHOWN_STATISTICS:
        values = np.asarray(heads.columns[name], np.float64)
        if np.isfinite(values).any():
            most = int(np.nanargmax(values))
            best = f"most in head {_name(heads, most)}, {percent(values[most])} on average"
            lines.append(f"{short_name(name)}: {best} (uniform: {percent(uniform.columns[name][0])})")
    entropy = np.asarray(heads.columns["entropy"], np.float64)
    least = int(entropy.argmin())
    sharpest = f"least in head {_name(heads, least)}, {entropy[least]:.2f} nats on average"
    return [*lines, f"entropy: {sharpest} (uniform: {uniform.columns['entropy'][0]:.2f})"]


def _name(heads: Table, row: int) -> str:
    return f"{heads.columns['layer'][row]}.{heads.columns['head'][row]}"


def inspect_relations(predictor: Predictor, path: Path) -> InputFindings:
    """Find the best head for every relation of a treebank in CoNLL-U format. Returns the tables of `Relations`.

    Raises:
        UsageError: There is no such file.
        UserError: The model has no attention, or the file has no sentence.
    """
    analysis = Relations(require_transformer(predictor.model.encoder))
    sentences = Readable(path, "sentence")
    counts = Counter(words=0, too_long=0, words_without_tokens=0)
    for block in sentences.blocks(read_treebank(path)):
        encoded = encode_words(predictor.tokenizer, [sentence.words for sentence in block], predictor.max_length)
        counts.update(words=sum(len(block[sequence.example].words) for sequence in encoded.sequences))
        counts.update(too_long=encoded.too_long, words_without_tokens=encoded.without_tokens)
        read_attention(predictor.model, encoded.sequences, analysis.add(block, encoded), title="relations")
    if not counts["words"]:
        console.warn(f"{path}: no sentence is short enough for the model, so the tables of relations are empty")
    sentences.warn(
        {
            ("sentence", f"with more than {predictor.max_length} tokens"): counts["too_long"],
            ("word", "that the tokenizer drops"): counts["words_without_tokens"],
        }
    )
    tables = analysis.tables()
    return InputFindings("treebank", {**sentences.facts(), **counts}, tables, _relation_lines(tables[0]))


def inspect_coreference(predictor: Predictor, path: Path) -> InputFindings:
    """Find the best head for coreference in a file in the format of GAP or CoNLL-2012.

    Returns the tables of `Coreference`.

    Raises:
        UsageError: There is no such file.
        UserError: The model has no attention, or the file has no text or another format.
    """
    analysis = Coreference(require_transformer(predictor.model.encoder))
    texts = Readable(path, "text")
    counts = Counter(questions=0, windows=0, outside=0, without_antecedent=0)
    for block in texts.blocks(read_coreference(path)):
        windows = encode_mentions(predictor.tokenizer, block, predictor.max_length)
        counts.update(questions=len(windows.questions), windows=len(windows.sequences))
        counts.update(outside=windows.outside, without_antecedent=windows.without_antecedent)
        read_attention(predictor.model, windows.sequences, analysis.add(windows), title="coreference")
    reason = f"that cannot be asked about in a window of {predictor.max_length} tokens"
    texts.warn({("mention", reason): counts["outside"]})
    if not counts["questions"]:
        console.warn(f"{path}: no mention has an antecedent, so the tables of coreference are empty")
    tables = analysis.tables()
    return InputFindings("coreference", {**texts.facts(), **counts}, tables, _coreference_lines(tables[0]))


def _relation_lines(best: Table) -> list[str]:
    """Describe the relations with the largest gains over their baselines."""
    certain = [row for row in best.rows() if row["held_out_gain_low"] is not None and row["held_out_gain_low"] > 0]
    return [
        f"{row['relation']}: {_head(row)}, {row['held_out_direction']} "
        f"(word at {row['held_out_offset']:+d}: {percent(row['held_out_baseline'])})"
        for row in sorted(certain, key=lambda row: -row["held_out_gain"])[:SHOWN_RELATIONS]
    ]


def _coreference_lines(best: Table) -> list[str]:
    return [
        f"antecedent, {row['mention_type']}: {_head(row)} ({row['held_out_rule']}: {percent(row['held_out_baseline'])})"
        for row in best.rows()
        if row["held_out_head"] is not None
    ]


def _head(row: TableRow) -> str:
    head = f"{row['held_out_layer']}.{row['held_out_head']}"
    return f"head {head} is right for {percent(row['held_out_accuracy'])}"
