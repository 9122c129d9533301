"""Write the vectors of a file of texts to a file. Both may have any size."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertie.base import console
from bertie.base.errors import SHOWN, UserError, first_few
from bertie.examples.rows import is_stdin
from bertie.examples.unlabeled import Text, TextRows, UnlabeledReader, text_blocks
from bertie.model.heads import layer_selection
from bertie.model.heads.layer_selection import Fixed
from bertie.model.pooling import Pooling
from bertie.predict.engines.files import EngineName
from bertie.predict.load import load
from bertie.predict.predictor import Predictor
from bertie.predict.shared import shared
from bertie.predict.vector_files import Columns, Dtype, require_free, vector_file
from bertie.predict.vectors import WordPooling, sequence_vectors
from bertie.tasks.inference import SEQUENCES_AT_ONCE
from bertie.tokenizers.valid_texts import require_texts
from bertie.training.sharing import ALONE, Sharing

NO_VECTOR = "the model finds no tokens, or computes NaN"


@dataclass(frozen=True)
class TextUnit:
    """One vector per text: `Predictor.embed`.

    Lists of words are joined with spaces. The vector of an unreadable row, or of a text without tokens, is NaN.
    """

    pooling: Pooling | None = None
    """Pooling of the token vectors into the vector of the text. By default as the model was trained, otherwise mean."""
    layers: Fixed = "last"
    """Layers whose hidden states to use."""
    prompt_name: str | None = None
    """Name of the model's prompt to put before each text. By default the model's own default, usually none; for a search,
    "document"."""

    def width(self, model: Predictor) -> int:
        """Return the width of the vectors."""
        return model.vector_width(self.pooling, self.layers)

    def block(self, model: Predictor, rows: TextRows, first: int = 0) -> tuple[Columns, np.ndarray]:
        """Return the columns and the vectors, float32 [rows, width], of a block that starts at row `first`."""
        texts = [row if isinstance(row, str) else "" if isinstance(row, UserError) else " ".join(row) for row in rows]
        how = model.text_embedding.with_pooling(self.pooling)
        sequences = model.text_sequences(texts, how.prompt(self.prompt_name, None))
        read = [i for i, row in enumerate(rows) if len(sequences[i]) and not isinstance(row, UserError)]
        vectors = np.full((len(rows), self.width(model)), np.nan, np.float32)
        if read:
            vectors[read] = sequence_vectors(model.model, [sequences[i] for i in read], how, self.layers)
        return {"index": np.arange(first, first + len(rows))}, vectors


@dataclass(frozen=True)
class WordUnit:
    """One vector per word: `Predictor.word_vectors`. An unreadable row has no words."""

    word_pooling: WordPooling = "first"
    """Vector of a word: the vector of its first piece, or the mean of its pieces."""
    layers: Fixed = "last"
    """Layers whose hidden states to use."""

    def width(self, model: Predictor) -> int:
        """Return the width of the vectors."""
        return layer_selection.selected_width(self.layers, model.model.encoder.config)

    def block(self, model: Predictor, rows: TextRows, first: int = 0) -> tuple[Columns, np.ndarray]:
        """Return the columns and the vectors, float32 [words, width], of a block that starts at row `first`."""
        readable = {i: row for i, row in enumerate(rows, first) if not isinstance(row, UserError)}
        results = model.word_vectors(list(readable.values()), self.layers, self.word_pooling)
        counts = np.array([len(result.words) for result in results], np.int64)
        offsets = np.concatenate([np.zeros((0, 2), np.int32), *(result.offsets for result in results)])
        number = np.arange(len(offsets)) - np.repeat(np.cumsum(counts) - counts, counts)
        columns = {
            "index": np.repeat(np.array(list(readable), np.int64), counts),
            "number": number.astype(np.int32),
            "word": np.array([word for result in results for word in result.words], object),
            "start": offsets[:, 0],
            "end": offsets[:, 1],
        }
        empty = np.zeros((0, self.width(model)), np.float32)
        return columns, np.concatenate([empty, *(result.vectors for result in results)])


VectorUnit = TextUnit | WordUnit


def embed(
    model: str | Path | Predictor,
    texts: str | Path | Iterable[Any],
    out: str | Path,
    unit: VectorUnit = TextUnit(),
    *,
    source: UnlabeledReader = UnlabeledReader(),
    dtype: Dtype = "float32",
    language: str = "",
    engine: EngineName | None = None,
    strict: bool = False,
    share: Sharing = ALONE,
) -> dict[str, Any]:
    """Write the vectors of texts, or of their words, to a file, in the order of the texts.

    The vectors of texts are an array [texts, E]. The vector of an unreadable row is NaN (in .parquet null). So is the vector
    of an empty text if the tokenizer adds no special tokens, because the model would read nothing. The vectors of words are
    an array [words, E], with the columns index (of the text), number (of the word in the text), word, start and end (in
    characters). E is the hidden size, times 4 with "concat_last_4".

    Args:
        model: A loaded model, or a source as in `load`.
        texts: A file, which is read twice (first to count), or texts or lists of words in memory.
        out: X.npy, or X.parquet with all columns. The columns of words of X.npy are in X.words.parquet.
        unit: Texts or words, and how their vectors are pooled.
        source: Which columns of the file to read.
        dtype: Type of the numbers in the file.
        language: As in `load`. A loaded model has one already.
        engine: As in `load`. A loaded model has one already.
        strict: Fail at the first row without a vector.
        share: Distributes the texts over several processes.

    Returns:
        {"out", "texts", "errors" (rows without a vector), "vectors" (rows of the file), "width": E, "seconds"}.

    Raises:
        UsageError: `out` exists or has another ending, or an argument is unknown.
        UserError: The texts cannot be read, or none has a vector. No file is written.
    """
    out = Path(out)
    words = isinstance(unit, WordUnit)
    require_free(out, words)
    inputs = inputs_of(texts, source)
    total, errors = count_rows(inputs, source, strict)
    predictor = shared(model if isinstance(model, Predictor) else load(model, language=language, engine=engine), share)
    width = unit.width(predictor)
    started = time.monotonic()
    first = count = lost = 0
    with vector_file(out, width, dtype, words) as write, console.progress("embed", total, "texts") as bar:
        for rows, columns, vectors in vector_blocks(predictor, unit, rows_of(inputs, source)):
            write(columns, vectors)
            lost += 0 if words else _without_vector(vectors, first, strict)
            first, count = first + rows, count + len(vectors)
            bar.advance(rows)
        if first != total:
            change = f"it had {total:,} texts and now has {first:,}"
            raise UserError(f"{inputs} changed while it was read: {change}: run again")
        errors = tell_lost(lost, errors, total)
    seconds = round(time.monotonic() - started, 3)
    return {"out": str(out), "texts": total, "errors": errors, "vectors": count, "width": width, "seconds": seconds}


def _without_vector(vectors: np.ndarray, first: int, strict: bool) -> int:
    """Count the vectors that are missing. With `strict`, raise UserError. first: number of their first text, from 0."""
    missing = np.flatnonzero(np.isnan(vectors).any(1))
    if strict and missing.size:
        raise UserError(f"text {first + missing[0] + 1:,} has no vector: {NO_VECTOR}")
    return missing.size


def tell_lost(lost: int, errors: int, total: int) -> int:
    """Return the number of texts without a vector, and warn about readable ones. Raises UserError if no text has one."""
    if lost == total:
        raise UserError(f"no text has a vector: {NO_VECTOR}")
    if lost > errors:
        console.warn(f"{lost - errors:,} of {total:,} texts have no vector: {NO_VECTOR}")
    return max(errors, lost)


def vector_blocks(
    predictor: Predictor, unit: VectorUnit, texts: Iterable[Text | UserError]
) -> Iterator[tuple[int, Columns, np.ndarray]]:
    """Yield for each block of texts their number, the columns and the vectors. Several ranks share the blocks."""

    def numbered() -> Iterator[tuple[int, TextRows]]:
        first = 0
        for rows in text_blocks(texts, SEQUENCES_AT_ONCE):
            yield first, rows
            first += len(rows)

    def compute(block: tuple[int, TextRows]) -> tuple[int, Columns, np.ndarray]:
        first, rows = block
        return len(rows), *unit.block(predictor, rows, first)

    return predictor.share(compute, numbered())


def inputs_of(texts: str | Path | Iterable[Any], source: UnlabeledReader) -> Path | list[Any]:
    """Return the file, or the texts in memory. Raises UsageError or UserError if these are no texts."""
    if isinstance(texts, str | Path):
        path = Path(texts)
        return list(source.stream(path)) if is_stdin(path) else path  # stdin can be read only once
    inputs = list(source.values(texts))
    require_texts(word for text in inputs for word in (text if isinstance(text, list | tuple) else [text]))
    return inputs


def rows_of(inputs: Path | list[Any], source: UnlabeledReader) -> Iterator[Text | UserError]:
    return source.stream(inputs) if isinstance(inputs, Path) else iter(inputs)


def count_rows(inputs: Path | list[Any], source: UnlabeledReader, strict: bool) -> tuple[int, int]:
    """Count the rows and the unreadable ones.

    Raises:
        UserError: There is no readable row, or with `strict` there is an unreadable one.
    """
    total, errors, first = 0, 0, list[UserError]()
    for row in rows_of(inputs, source):
        total += 1
        if isinstance(row, UserError):
            errors, first = errors + 1, [*first, row][:SHOWN]
            if strict:
                raise row
    if not total:
        raise UserError(f"{inputs if isinstance(inputs, Path) else 'the texts'}: no texts in it")
    if errors == total:
        raise first[0]
    if errors:
        shown = first_few(map(str, first), errors)
        console.warn(f"{errors:,} of {total:,} rows cannot be read and have no vector: {shown}")
    return total, errors
