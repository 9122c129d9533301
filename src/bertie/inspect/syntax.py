"""Syntax and coreference in single heads, from a treebank or a file with mentions, block by block."""

from __future__ import annotations

from pathlib import Path

from bertie import console
from bertie.console import percent
from bertie.inspect.attention import read_attention, require_transformer
from bertie.inspect.coreference import Coreference
from bertie.inspect.findings import InputFindings
from bertie.inspect.mention_windows import encode_mentions
from bertie.inspect.mentions import read_coreference
from bertie.inspect.readable import Readable, warn_left_out
from bertie.inspect.relations import Relations
from bertie.inspect.tables import Table
from bertie.inspect.treebank import read_treebank
from bertie.inspect.words import encode_words
from bertie.predict.predictor import Predictor

SHOWN_RELATIONS = 8  # lines for the terminal


def inspect_relations(predictor: Predictor, path: Path) -> InputFindings:
    """Find the best head for every relation of a treebank in CoNLL-U format. Returns the tables of `Relations`.

    Raises:
        UsageError: There is no such file.
        UserError: The model has no attention, or the file has no sentence.
    """
    analysis = Relations(require_transformer(predictor.model.encoder))
    sentences, words, too_long, without_tokens = Readable(path, "sentence"), 0, 0, 0
    for block in sentences.blocks(read_treebank(path)):
        encoded = encode_words(predictor.tokenizer, [sentence.words for sentence in block], predictor.max_length)
        words += sum(len(block[sequence.example].words) for sequence in encoded.sequences)
        too_long, without_tokens = too_long + encoded.too_long, without_tokens + encoded.without_tokens
        analysis.add(block, encoded)
        read_attention(predictor.model, encoded.sequences, analysis.see, title="relations")
    if not words:
        console.warn(f"{path}: no sentence is short enough for the model, so the tables of relations are empty")
    reasons = ("sentence", f"with more than {predictor.max_length} tokens"), ("word", "that the tokenizer drops")
    warn_left_out(path, dict(zip(reasons, (too_long, without_tokens), strict=True)))
    facts = {**sentences.facts(), "words": words, "too_long": too_long, "words_without_tokens": without_tokens}
    tables = analysis.tables()
    return InputFindings("treebank", facts, tables, _relation_lines(tables[0]))


def inspect_coreference(predictor: Predictor, path: Path) -> InputFindings:
    """Find the best head for coreference in a file in the format of GAP or CoNLL-2012.

    Returns the tables of `Coreference`.

    Raises:
        UsageError: There is no such file.
        UserError: The model has no attention, or the file has no text or another format.
    """
    analysis = Coreference(require_transformer(predictor.model.encoder))
    texts = Readable(path, "text")
    counts = dict.fromkeys(("questions", "windows", "outside", "without_antecedent"), 0)
    for block in texts.blocks(read_coreference(path)):
        windows = encode_mentions(predictor.tokenizer, block, predictor.max_length)
        counts["questions"] += len(windows.questions)
        counts["windows"] += len(windows.sequences)
        counts["outside"] += windows.outside
        counts["without_antecedent"] += windows.without_antecedent
        analysis.add(windows)
        read_attention(predictor.model, windows.sequences, analysis.see, title="coreference")
    reason = f"that cannot be asked about in a window of {predictor.max_length} tokens"
    warn_left_out(path, {("mention", reason): counts["outside"]})
    if not counts["questions"]:
        console.warn(f"{path}: no mention has an antecedent, so the tables of coreference are empty")
    tables = analysis.tables()
    return InputFindings("coreference", {**texts.facts(), **counts}, tables, _coreference_lines(tables[0]))


def _relation_lines(best: Table) -> list[str]:
    """Describe the relations with the largest gains over their baselines."""
    gains = best.columns["held_out_gain"]
    certain = [i for i, low in enumerate(best.columns["held_out_gain_low"]) if low is not None and low > 0]
    shown = sorted(certain, key=lambda i: -gains[i])[:SHOWN_RELATIONS]
    return [
        f"{best.columns['relation'][i]}: {_head(best, i)}, {best.columns['held_out_direction'][i]} "
        f"(word at {best.columns['held_out_offset'][i]:+d}: {percent(best.columns['held_out_baseline'][i])})"
        for i in shown
    ]


def _coreference_lines(best: Table) -> list[str]:
    return [
        f"antecedent, {name}: {_head(best, i)} "
        f"({best.columns['held_out_rule'][i]}: {percent(best.columns['held_out_baseline'][i])})"
        for i, name in enumerate(best.columns["mention_type"])
        if best.columns["held_out_head"][i] is not None
    ]


def _head(best: Table, i: int) -> str:
    layer, head = best.columns["held_out_layer"][i], best.columns["held_out_head"][i]
    return f"head {layer}.{head} is right for {percent(best.columns['held_out_accuracy'][i])}"
