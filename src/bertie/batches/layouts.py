"""Layouts: how the documents of a corpus become sequences.

A layout is a frozen dataclass with its settings. Its `epoch(corpus, tokenizer, seed, epoch)` returns a `LayoutEpoch`. To
add a layout, add a file, and its name to the union.
"""

from __future__ import annotations

from bertie.batches.contiguous import DocSentences, FullSentences
from bertie.batches.sentence_pairs import SentencePairs
from bertie.batches.sentences import Sentences
from bertie.batches.translations import Translations

Layout = SentencePairs | FullSentences | DocSentences | Translations | Sentences
