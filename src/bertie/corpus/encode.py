"""Last stage of `prepare`: tokenize a block of documents and split it into a training and an evaluation shard.

encoded/00000.json          counts of block 0; its presence marks the block as done
encoded/00000.counts.npy    int64 [2, V], occurrences of each vocabulary entry in the training and evaluation split
encoded/train/00000.….npy   a shard of the block's training documents, if it has any; encoded/eval/… likewise
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain, compress
from operator import not_
from pathlib import Path
from typing import Any

import numpy as np

from bertie.base import storage
from bertie.corpus import document_blocks, duplicates
from bertie.corpus.coverage import words_of_tokens
from bertie.corpus.document_blocks import PrepareSettings
from bertie.corpus.near_duplicates import NEAR
from bertie.corpus.sentences import split_sentences
from bertie.corpus.shard_format import SPLITS, TOKENIZER
from bertie.corpus.shard_writer import TokenizedDocuments, write_shard
from bertie.tokenizers.batching import batches
from bertie.tokenizers.special_tokens import LINE_BREAK
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.tokenizers.word_cache import WordCache

FOLDER = "encoded"


def encode_block(settings: PrepareSettings, work: Path, block: tuple[int, str]) -> dict[str, Any]:
    """Write the shards of a block, unless that is already done.

    Args:
        settings: How to tokenize and split the documents.
        work: The hidden work folder of `prepare`.
        block: Number of the block among all, and its file name, see `document_blocks`.

    Returns:
        {"duplicates": kind -> {"count", "bytes"} left out, "empty": documents without tokens, "characters": number of
        characters except blanks, "unknown_characters": number of characters that became [UNK], "train": `_split_counts`,
        "eval": `_split_counts`}.
    """
    return document_blocks.run_once(work / FOLDER / f"{block[0]:05d}.json", lambda: _encode(settings, work, *block))


def split_hash(text: str) -> float:
    """Return the hash of a document's text, 0 to 1. An `eval_share` above it holds the document out."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) / 2**64


@lru_cache(1)
def _word_cache(folder: Path, fingerprint: str) -> WordCache:
    """Return the cache of this process. Sharing it is safe: the tokens of a word depend on the tokenizer alone."""
    cache = WordCache(Tokenizer.load(folder))
    assert cache.tokenizer.fingerprint == fingerprint
    return cache


def _encode(settings: PrepareSettings, work: Path, number: int, name: str) -> dict[str, Any]:
    cache = _word_cache(work / TOKENIZER, settings.fingerprint)
    languages, folder = settings.reader_options.languages, work / FOLDER
    all_hashes: list[float] = []
    dropped = {kind: Counter(count=0, bytes=0) for kind in settings.filters.kinds}
    block = duplicates.load_block(work, name, len(languages) or 1)
    repeated = {kind: duplicates.duplicates_in_block(work, kind, number) for kind in dropped}
    texts = _without_duplicates(block, repeated, dropped, all_hashes)
    characters = Counter(characters=0, unknown_characters=0)
    documents, nonempty = tokenize_documents(texts, cache, settings.language, languages, characters)
    is_eval = np.array(all_hashes, np.float64)[nonempty] < settings.eval_share
    result: dict[str, Any] = {"duplicates": dropped, "empty": len(all_hashes) - len(nonempty), **characters}
    counts = []
    folder.mkdir(exist_ok=True)
    for split_name, chosen in zip(SPLITS, (~is_eval, is_eval), strict=True):
        split = documents.select(chosen)
        if len(split.ids):
            write_shard(folder / split_name, number, split, cache.tokenizer)
        result[split_name] = _split_counts(split, cache.tokenizer, len(languages))
        counts.append(np.bincount(split.ids, minlength=cache.tokenizer.size))
    storage.write_array(folder / f"{number:05d}.counts.npy", np.stack(counts))
    return result


def _without_duplicates(
    documents: list[bytes], repeated: dict[str, set[int]], dropped: dict[str, Counter[str]], hashes: list[float]
) -> Iterator[str]:
    """Yield the texts of a block without duplicates.

    Args:
        documents: The documents.
        repeated: Numbers in the block of the documents and paragraphs that repeat one earlier in the corpus, by kind.
        dropped: Receives the number of these and their bytes, by kind.
        hashes: Receives the hash of each text.
    """
    first = 0  # number of the document's first paragraph in the block
    for index, raw in enumerate(documents):
        text = raw.decode()
        paragraphs = duplicates.split_paragraphs(text) if "paragraphs" in repeated else []
        again = [_copied(repeated, "paragraphs", first + place) for place in range(len(paragraphs))]
        first += len(paragraphs)
        if kind := _copied(repeated, "documents", index):
            dropped[kind].update(count=1, bytes=len(raw))
            continue
        if any(again):
            for paragraph, kind in zip(paragraphs, again, strict=True):
                if kind:
                    dropped[kind].update(count=1, bytes=len(paragraph.encode()))
            text = "\n\n".join(compress(paragraphs, map(not_, again)))
        # Hash the text after the removal of paragraphs: texts that are equal now go to the same split.
        hashes.append(split_hash(text))
        yield text


def _copied(repeated: dict[str, set[int]], kind: str, number: int) -> str | None:
    """Return how a document or paragraph repeats an earlier one: its kind, or that of near-copies, or not at all."""
    return next((name for name in (kind, f"{NEAR}{kind}") if number in repeated.get(name, ())), None)


def tokenize_documents(
    texts: Iterable[str],
    cache: WordCache,
    language: str,
    languages: tuple[str, ...] = (),
    characters: Counter[str] | None = None,
) -> tuple[TokenizedDocuments, np.ndarray]:
    """Split texts into sentences and tokenize them. Sentences and texts without tokens are left out.

    A line break that has a token is part of the sentence before it. A sentence of line breaks alone is left out too.

    Args:
        texts: The texts.
        cache: The tokenizer.
        language: Language code of the texts.
        languages: Language codes of the translations, which NUL characters separate in each text, instead of `language`.
        characters: Receives the numbers "characters" and "unknown_characters", see `encode_block`.

    Returns:
        The tokenized documents, and the index of each document among the texts, int64 [documents].
    """
    ids: list[np.ndarray] = []
    sentence_tokens: list[np.ndarray] = []
    document_sentences: list[np.ndarray] = []
    sentence_languages: list[np.ndarray] = []
    codes = languages or (language,)
    for batch in batches(texts):
        parts = [part for text in batch for part in zip(text.split("\0"), codes, strict=True)]
        split = [_sentences(text, code, cache.tokenizer) for text, code in parts]
        # Batch again: a single text may be as large as a file.
        encoded = []
        for chunk in batches(chain.from_iterable(split)):
            encoded.append(cache.encode(chunk))
            if characters is not None:
                characters["unknown_characters"] += _unknown_characters(cache, chunk, *encoded[-1])
        if characters is not None:
            characters["characters"] += sum(len(text) - text.count(" ") - text.count("\n") for text in batch)
        if (line_break := cache.tokenizer.line_break_id) is not None:
            encoded = [_without_lone_breaks(*chunk, line_break) for chunk in encoded]
        tokens = np.concatenate([np.zeros(0, np.int64), *(lengths for _, lengths in encoded)])
        part = np.repeat(np.arange(len(parts)), np.fromiter(map(len, split), np.int64, len(split)))[tokens > 0]
        ids += [chunk_ids for chunk_ids, _ in encoded]
        sentence_tokens.append(tokens[tokens > 0])
        document_sentences.append(np.bincount(part // len(codes), minlength=len(batch)))
        sentence_languages.append((part % len(codes)).astype(np.uint16))
    documents = np.concatenate([np.zeros(0, np.int64), *document_sentences])
    tokenized = TokenizedDocuments(
        np.concatenate([np.zeros(0, np.int32), *ids]),
        np.concatenate([np.zeros(0, np.int64), *sentence_tokens]),
        documents[documents > 0],
        np.concatenate([np.zeros(0, np.uint16), *sentence_languages]) if languages else None,
    )
    return tokenized, np.flatnonzero(documents)


def _unknown_characters(cache: WordCache, sentences: list[str], ids: np.ndarray, tokens: np.ndarray) -> int:
    """Return how many characters of sentences became [UNK].

    Args:
        cache: The tokenizer.
        sentences: The sentences.
        ids: Their tokens, end to end.
        tokens: Number of tokens of each sentence.
    """
    unknown = np.flatnonzero(ids == cache.tokenizer.unk_id) if cache.tokenizer.special.unk else ()
    if not len(unknown):
        return 0
    again = np.unique(np.searchsorted(np.cumsum(tokens), unknown, side="right"))
    again_ids, offsets, _ = cache.encode_offsets([sentences[number] for number in again])
    return int(np.diff(offsets[again_ids == cache.tokenizer.unk_id]).sum())


def _sentences(text: str, language: str, tokenizer: Tokenizer) -> list[str]:
    """Split a text into sentences.

    A token of byte-level BPE includes the space before its word. There, the sentences of a line, except the first, keep
    the space before them, so that the line has the same tokens as without splitting. If line breaks have a token, a
    sentence ends with those that follow it.
    """
    line_breaks = tokenizer.line_break_id is not None
    if tokenizer.backend.word_mark != "Ġ" and not line_breaks:
        return split_sentences(text, language)
    space = " " if tokenizer.backend.word_mark == "Ġ" else ""
    sentences: list[str] = []
    for line in text.splitlines(keepends=True):
        of_line = split_sentences(line, language)
        sentences += [f"{space}{sentence}" if number else sentence for number, sentence in enumerate(of_line)]
        if line_breaks and sentences and line.endswith(LINE_BREAK):
            sentences[-1] += LINE_BREAK
    return sentences


def _without_lone_breaks(ids: np.ndarray, tokens: np.ndarray, line_break: int) -> tuple[np.ndarray, np.ndarray]:
    """Leave out the tokens of sentences that have only line breaks, and return ids and tokens of each sentence."""
    sentence = np.repeat(np.arange(len(tokens)), tokens)
    has_words = np.bincount(sentence[ids != line_break], minlength=len(tokens)) > 0
    return ids[has_words[sentence]], np.where(has_words, tokens, 0)


def _split_counts(split: TokenizedDocuments, tokenizer: Tokenizer, languages: int) -> dict[str, Any]:
    """Count one split.

    "document_tokens" and "sentence_tokens" are histograms of lengths, see `_length_histogram`. "languages" has the number of
    documents with text in each language, and "translated" the number of documents with text in several.
    """
    starts = np.cumsum(split.documents) - split.documents
    document_tokens = np.add.reduceat(split.sentences, starts) if len(split.documents) else []
    return {
        "documents": len(split.documents),
        "sentences": len(split.sentences),
        "tokens": len(split.ids),
        "words": words_of_tokens(tokenizer, split.ids, np.cumsum(split.sentences) - split.sentences),
        "document_tokens": _length_histogram(np.array(document_tokens, np.int64)),
        "sentence_tokens": _length_histogram(split.sentences),
        **_language_counts(split, languages),
    }


def _language_counts(split: TokenizedDocuments, languages: int) -> dict[str, Any]:
    if split.languages is None:
        return {}
    present = np.zeros((len(split.documents), languages), bool)
    present[np.repeat(np.arange(len(split.documents)), split.documents), split.languages] = True
    return {"languages": present.sum(0).tolist(), "translated": int((present.sum(1) > 1).sum())}


def _length_histogram(lengths: np.ndarray) -> list[int]:
    """Count lengths by powers of two: how many are 1, how many 2 or 3, how many 4 to 7, and so on."""
    return np.bincount(np.frexp(lengths)[1] - 1, minlength=1).tolist() if len(lengths) else []
