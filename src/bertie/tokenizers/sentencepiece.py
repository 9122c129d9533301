"""Read unigram models of SentencePiece (Kudo and Richardson 2018), such as XLM-RoBERTa's: pieces, scores, normalizer's table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertie.base.errors import UserError
from bertie.files.protobuf import Field, read_fields

UNIGRAM = 1  # TrainerSpec.model_type, and its default
CONTROL, USER_DEFINED = 3, 4  # SentencePiece.type


@dataclass(frozen=True)
class SentencePieceModel:
    """The parts of a SentencePiece model that tokenization needs.

    Attributes:
        pieces: The pieces in id order, with their scores.
        added: The control and user-defined pieces, and whether each is a control piece.
        charsmap: Table of the normalizer, or empty.
    """

    pieces: list[tuple[str, float]]
    added: list[tuple[str, bool]]
    charsmap: bytes


def read_model(path: Path, content: bytes) -> SentencePieceModel:
    """Read a unigram model. Raises UserError if the file is damaged, or has another kind of model."""
    pieces, added, kind, charsmap = [], [], UNIGRAM, b""
    try:
        for field in read_fields(memoryview(content)):
            parts = {part.number: part for part in read_fields(field.message())} if field.number in (1, 2, 3) else {}
            if field.number == 1:
                piece, score, of_kind = parts[1].text(), parts[2].float32() if 2 in parts else 0.0, _integer(parts, 3)
                pieces.append((piece, score))
                if of_kind in (CONTROL, USER_DEFINED):
                    added.append((piece, of_kind == CONTROL))
            elif field.number == 2:
                kind = _integer(parts, 3) or UNIGRAM
            elif field.number == 3 and 2 in parts:
                charsmap = bytes(parts[2].message())
    except (UserError, KeyError) as error:
        raise UserError(f"{path} is damaged or is not a SentencePiece model: {error}") from error
    if kind != UNIGRAM or not pieces:
        raise UserError(f"{path} is not a unigram model: its model_type is {kind}, and it has {len(pieces)} pieces")
    return SentencePieceModel(pieces, added, charsmap)


def _integer(parts: dict[int, Field], number: int) -> int:
    return parts[number].integer() if number in parts else 0
