"""Read SentencePiece models (Kudo and Richardson 2018), such as spiece.model: pieces, scores and the normalizer's table."""

from __future__ import annotations

import itertools
import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertie import untrusted
from bertie.errors import UserError
from bertie.files.protobuf import VARINT, read_fields

LARGEST = 64 << 20  # bytes; the models of 250,000 pieces have 5 million
MOST_PIECES = 1_000_000  # XLM-V has 901,629
MOST_FIELDS = 5_000_000  # of all messages; a piece takes 3 or 4
LONGEST_REPLACEMENT = 200  # bytes; NFKC makes 33 of one character
UNIGRAM, BPE = 1, 2  # TrainerSpec.model_type
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4  # SentencePiece.type
_LEAF, _LABEL = 1 << 8, (1 << 31) | 0xFF  # bits of a unit of the table: a value follows; the byte


@dataclass(frozen=True)
class SentencePieceModel:
    """The parts of a SentencePiece model that tokenization needs.

    Attributes:
        pieces: The pieces in id order, with their scores.
        added: The control and user-defined pieces, and whether each is a control piece.
        unigram: Whether it is a unigram language model; if not, it is BPE.
        unk_id: Id of the piece for unknown characters.
        charsmap: Table of the normalizer (`require_valid_charsmap`), or empty.
    """

    pieces: list[tuple[str, float]]
    added: list[tuple[str, bool]]
    unigram: bool
    unk_id: int
    charsmap: bytes


def read_model(path: Path) -> SentencePieceModel:
    """Read a SentencePiece model.

    Raises:
        UserError: The file is damaged, or too large.
    """
    untrusted.require_content(path, LARGEST)
    try:
        return _parse(memoryview(path.read_bytes()))
    except UserError as error:
        raise UserError(f"{path} is damaged or is not a SentencePiece model: {error}") from error


def _parse(data: memoryview) -> SentencePieceModel:
    pieces: list[tuple[str, float]] = []
    added: list[tuple[str, bool]] = []
    settings = {3: UNIGRAM, 40: 0}  # TrainerSpec: model_type, unk_id, with their defaults
    charsmap, count = b"", itertools.count()
    for field in read_fields(data):
        if len(pieces) > MOST_PIECES:
            raise UserError(f"it has more than {MOST_PIECES:,} pieces")
        if field.number == 1:
            piece, score, kind = "", 0.0, NORMAL
            for part in read_fields(field.message()):
                if next(count) > MOST_FIELDS:
                    raise UserError(f"it has more than {MOST_FIELDS:,} fields")
                if part.number == 1:
                    piece = part.text()
                elif part.number == 2:
                    score = part.float32()
                elif part.number == 3:
                    kind = part.integer()
            if not piece:  # SentencePiece refuses it, too
                raise UserError(f"piece {len(pieces)} is empty")
            if not math.isfinite(score):
                raise UserError(f"the score of piece {len(pieces)} is {score}")
            pieces.append((piece, score))
            if kind in (CONTROL, USER_DEFINED):
                added.append((piece, kind == CONTROL))
        elif field.number == 2:
            parts = read_fields(field.message())
            settings |= {part.number: part.integer() for part in parts if part.wire_type == VARINT}
        elif field.number == 3:
            for part in read_fields(field.message()):
                charsmap = bytes(part.message()) if part.number == 2 else charsmap
    if settings[3] not in (UNIGRAM, BPE):
        raise UserError(f"its model_type is {settings[3]}, neither unigram nor BPE")
    if not pieces or not 0 <= settings[40] < len(pieces):
        raise UserError(f"it has {len(pieces)} pieces, and the unknown one is number {settings[40]}")
    if charsmap:
        require_valid_charsmap(charsmap)
    return SentencePieceModel(pieces, added, settings[3] == UNIGRAM, settings[40], charsmap)


def require_valid_charsmap(charsmap: bytes) -> None:
    """Check the table by which SentencePiece replaces characters, so that reading it cannot leave it.

    It is a little-endian uint32 with the number of bytes of a trie, the trie, an array of uint32 (Darts: the unit of a
    child is at the parent's offset XOR the byte), and the replacements, each ended by a NUL.

    Raises:
        UserError: The table is damaged.
    """
    size = struct.unpack_from("<I", charsmap)[0] if len(charsmap) >= 4 else 0
    if not size or size % 4 or size > len(charsmap) - 4:
        raise UserError("the table of its normalizer is shorter than it says")
    units = np.frombuffer(charsmap, np.uint32, size // 4, 4).astype(np.int64)
    text = charsmap[4 + size :]
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise UserError("the replacements of its normalizer are not UTF-8 text") from error
    if max(map(len, text.split(b"\0"))) > LONGEST_REPLACEMENT:
        raise UserError(f"a replacement of its normalizer has more than {LONGEST_REPLACEMENT} bytes")
    seen = np.zeros(len(units), bool)
    waiting, labels = _offsets(units[:1]), np.arange(1, 256)
    while len(waiting):
        if waiting.max() >= len(units):
            raise UserError("the table of its normalizer points out of itself")
        waiting = np.unique(waiting[~seen[waiting]])
        nodes, waiting = waiting[:4096], waiting[4096:]  # a bounded amount of memory
        seen[nodes] = True
        children = nodes[:, None] ^ labels
        if children.size and children.max() >= len(units):
            raise UserError("the table of its normalizer points out of itself")
        match = (units[children] & _LABEL) == labels
        found = units[children[match]]
        following = children[match] ^ _offsets(found)
        values = following[(found & _LEAF) > 0]
        if len(values) and values.max() >= len(units):
            raise UserError("the table of its normalizer points out of itself")
        places = units[values] & 0x7FFFFFFF
        if len(places) and (places.max() >= len(text) or any(text[place] & 0xC0 == 0x80 for place in places.tolist())):
            raise UserError("the table of its normalizer points out of its replacements")
        waiting = np.concatenate([waiting, following])


def _offsets(units: np.ndarray) -> np.ndarray:
    return (units >> 10) << ((units & (1 << 9)) >> 6)
