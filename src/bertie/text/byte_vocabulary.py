"""Vocabularies of models that come without one: the bytes of UTF-8, and pairs of a SentencePiece model (Reformer).

The Reformer for bytes has no tokenizer files. The id of a byte is its value plus 2; 0 is padding, and 1 ends a text.
"""

from __future__ import annotations

from bertie.text.bpe_backend import BYTE_CHARACTERS, BYTE_ORDER

PAD, END = "<pad>", "</s>"
SIZE = 2 + len(BYTE_CHARACTERS)


def byte_entries() -> dict[str, int]:
    """Return the ids of padding, the end of a text, and the 256 bytes, each written as in byte-level BPE."""
    return {PAD: 0, END: 1} | {char: 2 + byte for char, byte in zip(BYTE_CHARACTERS, BYTE_ORDER, strict=True)}


def merges_of(pieces: list[tuple[str, float]]) -> list[tuple[str, str]]:
    """Return the merges of a SentencePiece model of the kind BPE, in order.

    SentencePiece merges the pair whose piece has the highest score. Where several pairs make the same piece, those of earlier
    pieces come first, as in transformers.

    Args:
        pieces: The pieces in id order, with their scores.
    """
    ids = {piece: number for number, (piece, _) in enumerate(pieces)}
    found = []
    for piece, score in pieces:
        pairs = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        known = [pair for pair in pairs if pair[0] in ids and pair[1] in ids]
        found += [(score, pair) for pair in sorted(known, key=lambda pair: (ids[pair[0]], ids[pair[1]]))]
    return [pair for _, pair in sorted(found, key=lambda each: -each[0])]
