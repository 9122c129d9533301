"""Sentences whose attention the page draws, head by head.

Only for these few sentences, all probabilities are kept: layers × N × L² numbers.

N  heads of a layer    L  tokens of a sentence
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from bertie.base.contracts import Sequence
from bertie.base.errors import UsageError, UserError
from bertie.inspect.attention import attention_in, require_transformer
from bertie.inspect.tables import HEAD, Table
from bertie.inspect.texts import TextFile
from bertie.inspect.treebank import ParsedSentence, read_treebank
from bertie.inspect.words import encode_words, words_of
from bertie.predict.predictor import Predictor
from bertie.tasks.word_alignment import piece_places
from bertie.tokenizers import truncation
from bertie.tokenizers.tokenizer import Tokenizer

EXAMPLES = 6  # sentences that are chosen from a file
READ = 200  # sentences of the file that they are chosen from
SHORTEST, LONGEST = 8, 24  # tokens of a chosen sentence, special tokens included
SENTENCE_TABLE = "sentence_attention"
MOST_NUMBERS = 4_000_000  # probabilities of all sentences together: some 6 MB of the page


class Arc(NamedTuple):
    """A word and its head in a dependency tree."""

    relation: str
    """Relation of the word to its head, such as "obj"."""
    word: int
    """Number of the first token of the word."""
    head: int
    """Number of the first token of its head."""


@dataclass(frozen=True, eq=False)
class Sentence:
    """A sentence with the attention of all heads."""

    text: str
    """The sentence as it was given."""
    tokens: list[str]
    """The tokens, as `shown_tokens` returns them."""
    shown: list[str]
    """The same, but instead of [UNK] the characters of the sentence that it stands for."""
    special: list[int]
    """Numbers of the special tokens, such as [CLS]."""
    arcs: list[Arc]
    """Its dependency tree; empty if none is known."""
    attention: Float[np.ndarray, "layers N L L"]
    """Attention probabilities. Rows are the tokens that attend."""


def given_sentences(predictor: Predictor, texts: Many[str]) -> list[Sentence]:
    """Read the attention in sentences of the user.

    Raises:
        UsageError: A sentence has no tokens or more than the model reads, or all together are too long.
    """
    sequences = truncation.encode(predictor.tokenizer, list(texts), max_length=predictor.max_length)
    special = truncation.special_tokens(predictor.tokenizer, 1)
    for text, sequence in zip(texts, sequences, strict=True):
        if len(sequence) <= special:
            raise UsageError(f"--sentences: {text[:40]!r} has no tokens")
        if sequence.truncated:
            raise UsageError(f"--sentences: the model reads {predictor.max_length} tokens, {text[:40]!r} has more")
    config = require_transformer(predictor.model.encoder).config
    numbers = config.num_hidden_layers * config.num_attention_heads * sum(len(each) ** 2 for each in sequences)
    if numbers > MOST_NUMBERS:
        raise UsageError(
            f"--sentences: their attention has {numbers:,} numbers, and the page holds {MOST_NUMBERS:,}: give fewer or "
            "shorter sentences"
        )
    return _read(predictor, sequences, texts, _sources(texts, sequences), [[] for _ in sequences])


def sentences_of_text(predictor: Predictor, texts: TextFile) -> list[Sentence]:
    """Read the attention in the first sentences of a file that have a suitable length."""
    given = texts.first_texts()
    encoded = truncation.encode(texts.tokenizer, given, max_length=texts.max_length)
    suitable = [n for n, each in enumerate(encoded) if SHORTEST <= len(each) <= LONGEST and not each.truncated]
    chosen, sequences = [given[n] for n in suitable[:EXAMPLES]], [encoded[n] for n in suitable[:EXAMPLES]]
    return _read(predictor, sequences, chosen, _sources(chosen, sequences), [[] for _ in sequences])


def sentences_of_treebank(predictor: Predictor, path: Path) -> list[Sentence]:
    """Read the attention in sentences of a treebank. Those are chosen that together have the most relations."""
    parsed = [each for each in islice(read_treebank(path), READ) if not isinstance(each, UserError)]
    encoded = encode_words(predictor.tokenizer, [each.words for each in parsed], predictor.max_length)
    left = [sequence for sequence in encoded.sequences if SHORTEST <= len(sequence) <= LONGEST]
    chosen: list[Sequence] = []
    known: set[str] = set()
    while left and len(chosen) < EXAMPLES:
        best = max(left, key=lambda each: len(set(parsed[each.example].relations) - known))
        known |= set(parsed[best.example].relations)
        chosen.append(best)
        left = [each for each in left if each is not best]
    trees = [parsed[each.example] for each in chosen]
    sources = [_word_sources(predictor.tokenizer, *each) for each in zip(trees, chosen, strict=True)]
    arcs = [_arcs(*each) for each in zip(trees, chosen, strict=True)]
    return _read(predictor, chosen, [" ".join(tree.words) for tree in trees], sources, arcs)


def sentence_table(sentences: Many[Sentence]) -> Table:
    """Return the table SENTENCE_TABLE: all probabilities of all sentences."""
    parts = []
    for number, sentence in enumerate(sentences, 1):
        layer, head, query, key = np.indices(sentence.attention.shape).reshape(4, -1)
        names, place = np.array(sentence.tokens, dtype=object), (np.full(len(layer), number), layer + 1, head + 1)
        parts.append((*place, query + 1, names[query], key + 1, names[key], sentence.attention.reshape(-1)))
    columns = map(np.concatenate, zip(*parts, strict=True))
    return Table(SENTENCE_TABLE, dict(zip(_MEANING, columns, strict=True)), _MEANING)


_MEANING = {
    "sentence": "number of the sentence, from 1",
    **HEAD,
    "from": "number of the token that attends, from 1",
    "from_token": "this token",
    "to": "number of the token that is attended to, from 1",
    "to_token": "this token",
    "attention": "attention probability",
}


def _read(
    predictor: Predictor,
    sequences: list[Sequence],
    texts: Many[str],
    sources: list[list[str]],
    arcs: list[list[Arc]],
) -> list[Sentence]:
    require_transformer(predictor.model.encoder)
    found = attention_in(predictor.model, sequences)
    tokenizer = predictor.tokenizer
    tokens = [shown_tokens(tokenizer, each.input_ids) for each in sequences]
    shown = [with_sources(tokenizer, *each) for each in zip(tokens, sources, strict=True)]
    special = [special_places(tokenizer, each.input_ids) for each in sequences]
    return [Sentence(*each) for each in zip(texts, tokens, shown, special, arcs, found, strict=True)]


def _sources(texts: Many[str], sequences: list[Sequence]) -> list[list[str]]:
    """Return the characters of each token in its text."""
    offsets = [each.offsets.tolist() for each in sequences if each.offsets is not None]
    return [[text[start:end] for start, end in places] for text, places in zip(texts, offsets, strict=True)]


def _word_sources(tokenizer: Tokenizer, tree: ParsedSentence, sequence: Sequence) -> list[str]:
    """Return the characters of each token in its word, from the offsets that `encode_words` sets."""
    assert sequence.offsets is not None
    [places] = piece_places(tokenizer, [tree.words])
    return ["" if word < 0 else tree.words[word][slice(*places[word][piece - 1])] for word, piece in sequence.offsets]


def special_places(tokenizer: Tokenizer, ids: np.ndarray) -> list[int]:
    """Return the numbers of the special tokens in a sequence, such as [CLS]."""
    return np.flatnonzero(np.isin(ids, tokenizer.special_ids)).tolist()


def shown_tokens(tokenizer: Tokenizer, ids: np.ndarray) -> list[str]:
    """Return tokens as a reader expects them: of byte-level BPE, characters instead of bytes, and "▁" for a space."""
    entries = tokenizer.tokens(ids.tolist())
    if tokenizer.algorithm != "bpe":
        return entries
    return [tokenizer.spelling(entry).decode("utf-8", "replace").replace(" ", "▁") for entry in entries]


def with_sources(tokenizer: Tokenizer, tokens: list[str], sources: list[str]) -> list[str]:
    """Return tokens, but instead of [UNK] the characters that it stands for. sources: those of each token."""
    unknown = tokenizer.special.unk
    return [source if token == unknown and source else token for token, source in zip(tokens, sources, strict=True)]


def _arcs(sentence: ParsedSentence, sequence: Sequence) -> list[Arc]:
    words, firsts = np.unique(words_of(sequence), return_index=True)
    first = {word: int(token) for word, token in zip(words.tolist(), firsts, strict=True) if word >= 0}
    return [
        Arc(relation, first[word], first[head])
        for word, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True))
        if word in first and head in first
    ]
