"""A file of texts to a file of vectors, of any size."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bertie import console
from bertie.errors import UserError
from bertie.model import layer_selection
from bertie.model.layer_selection import Fixed
from bertie.model.pooling import Pooling
from bertie.predict.predictor import Predictor, load
from bertie.predict.vector_files import Columns, Dtype, require_free, vector_file
from bertie.predict.vectors import WordPooling
from bertie.tasks.data.rows import SHOWN, STDIN, first_few, require_list
from bertie.tasks.data.unlabelled import Text, UnlabelledReader
from bertie.tasks.inference import SEQUENCES_AT_ONCE
from bertie.text.tokenizer import require_texts

CHARACTERS = 1 << 18  # of texts that are read, computed and written together, where AT_ONCE texts are more

Rows = list[Text | UserError]


@dataclass(frozen=True)
class TextUnit:
    """A vector a text (`Predictor.embed`); words are joined with blanks. A row that cannot be read has no numbers, but NaN."""

    kind: Literal["text"] = "text"
    pooling: Pooling | None = None
    layers: Fixed = "last"

    def block(self, model: Predictor, rows: Rows, first: int, width: int) -> tuple[Columns, np.ndarray]:
        vectors = np.full((len(rows), width), np.nan, np.float32)
        good = [i for i, row in enumerate(rows) if not isinstance(row, UserError)]
        texts = [row if isinstance(row, str) else " ".join(row) for row in rows if not isinstance(row, UserError)]
        vectors[good] = model.embed(texts, self.pooling, self.layers)
        return {"index": np.arange(first, first + len(rows))}, vectors


@dataclass(frozen=True)
class WordUnit:
    """A vector a word (`Predictor.word_vectors`), and which it is. A row that cannot be read has no words."""

    kind: Literal["word"] = "word"
    word_pooling: WordPooling = "first"
    layers: Fixed = "last"

    def block(self, model: Predictor, rows: Rows, first: int, width: int) -> tuple[Columns, np.ndarray]:
        good = [i for i, row in enumerate(rows) if not isinstance(row, UserError)]
        texts = [row for row in rows if not isinstance(row, UserError)]
        found = model.word_vectors(texts, self.layers, self.word_pooling)
        offsets = np.concatenate([np.zeros((0, 2), np.int32), *(each.offsets for each in found)])
        columns = {
            "index": np.repeat(np.array(good, np.int64) + first, [len(each.words) for each in found]),
            "number": np.concatenate(
                [np.zeros(0, np.int32), *(np.arange(len(each.words), dtype=np.int32) for each in found)]
            ),
            "word": np.array([word for each in found for word in each.words], object),
            "start": offsets[:, 0],
            "end": offsets[:, 1],
        }
        return columns, np.concatenate([np.zeros((0, width), np.float32), *(each.vectors for each in found)])


Unit = TextUnit | WordUnit


def embed(
    model: str | Path | Predictor,
    texts: str | Path | Iterable[Any],
    out: str | Path,
    unit: Unit = TextUnit(),
    *,
    source: UnlabelledReader = UnlabelledReader(),
    dtype: Dtype = "float32",
    strict: bool = False,
) -> dict[str, Any]:
    """Write the vectors of a file's texts (or of texts in memory) to a .npy or .parquet file, in their order.

    out: of texts float32 [n, E], row n that of the n-th line, row or sentence, NaN (in .parquet null) where it cannot be
    read; strict refuses a file with such rows. Of words float32 [words, E]; index (of the text), number, word, start and
    end (characters) are columns of the .parquet file, of X.npy in X.words.parquet. The file is read twice: first to count.
    Gives {"out", "texts", "errors", "vectors", "width", "seconds"}. Errors: UsageError, UserError; then no file is there.
    """
    out = Path(out)
    require_free(out, words=unit.kind == "word")
    given = Path(texts) if isinstance(texts, str | Path) else list(require_list(texts))
    if given == STDIN:  # nothing can be read of it twice
        given = list(source.stream(STDIN))
    elif isinstance(given, list):
        require_texts(word for each in given for word in (each if isinstance(each, list | tuple) else [each]))
    total, errors = _count(_rows(given, source), str(given) if isinstance(given, Path) else "the texts", strict)
    predictor = model if isinstance(model, Predictor) else load(model)
    width = layer_selection.selected_width(unit.layers, predictor.model.encoder.config)
    started = time.monotonic()
    first = count = 0
    with (
        vector_file(out, width, dtype, words=unit.kind == "word") as write,
        console.progress("embedding", total, "texts") as bar,
    ):
        for rows in _together(_rows(given, source)):
            columns, vectors = unit.block(predictor, rows, first, width)
            write(columns, vectors)
            first, count = first + len(rows), count + len(vectors)
            bar.advance(len(rows))
        if first != total:
            raise UserError(f"{given} changed while it was read: it had {total:,} texts and now has {first:,}")
    seconds = round(time.monotonic() - started, 3)
    return {"out": str(out), "texts": total, "errors": errors, "vectors": count, "width": width, "seconds": seconds}


def _rows(given: Path | list[Any], source: UnlabelledReader) -> Iterator[Text | UserError]:
    return source.stream(given) if isinstance(given, Path) else iter(given)


def _count(rows: Iterator[Text | UserError], where: str, strict: bool) -> tuple[int, int]:
    """How many there are, and how many of them cannot be read. Errors: UserError where none can, or, strictly, one cannot."""
    total, errors = 0, 0
    shown: list[str] = []
    for row in rows:
        total += 1
        if isinstance(row, UserError):
            if strict:
                raise row
            errors += 1
            shown += [str(row)] * (len(shown) < SHOWN)
    if not total:
        raise UserError(f"{where}: no texts in it")
    if errors == total:
        raise UserError(shown[0])
    if errors:
        told = first_few(shown, errors)
        console.warn(f"{errors:,} of {total:,} rows cannot be read and have no vector (--strict refuses them): {told}")
    return total, errors


def _together(rows: Iterator[Text | UserError]) -> Iterator[Rows]:
    part: Rows = []
    size = 0
    for row in rows:
        part.append(row)
        size += 0 if isinstance(row, UserError) else len(row) if isinstance(row, str) else sum(map(len, row))
        if len(part) == SEQUENCES_AT_ONCE or size >= CHARACTERS:
            yield part
            part, size = [], 0
    if part:
        yield part
