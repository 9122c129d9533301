"""Files of vectors that grow block by block, at constant memory, and take their name when they are whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bertie import storage
from bertie.errors import UsageError, UserError

Dtype = Literal["float32", "float16"]
Columns = dict[str, np.ndarray]
Write = Callable[[Columns, np.ndarray], None]
ENDINGS = (".npy", ".parquet")


def words_beside(path: Path) -> Path:
    """Where the words of a .npy file of their vectors stand: X.words.parquet of X.npy."""
    return path.with_suffix(".words.parquet")


def require_free(path: Path, words: bool) -> None:
    """Errors: UsageError for another ending, or a file that is there already."""
    if path.suffix not in ENDINGS:
        raise UsageError(f"--out {path}: vectors are written as {' or '.join(ENDINGS)}")
    for file in (path, words_beside(path)) if words and path.suffix == ".npy" else (path,):
        if file.exists():
            raise UsageError(f"{file} already exists: give another --out, or remove it first")


@contextmanager
def vector_file(path: Path, width: int, dtype: Dtype, words: bool) -> Iterator[Write]:
    """Yield what writes a block: its columns, and vectors float32 [n, width], a row of NaN for each that is missing.

    In .parquet there are all the columns and `vector`, null where it is missing. In .npy there are the vectors alone; the
    columns of words stand in a .parquet beside it, row for row, which has its name before.
    """
    if path.suffix == ".parquet":
        with _parquet(path) as table:
            yield lambda columns, vectors: table(columns, _narrow(vectors, dtype))
    elif words:
        with _npy(path, width, dtype) as array, _parquet(words_beside(path)) as table:

            def write(columns: Columns, vectors: np.ndarray) -> None:
                array(_narrow(vectors, dtype))
                table(columns, None)

            yield write
    else:
        with _npy(path, width, dtype) as array:
            yield lambda _, vectors: array(_narrow(vectors, dtype))


@contextmanager
def _npy(path: Path, width: int, dtype: Dtype) -> Iterator[Callable[[np.ndarray], None]]:
    rows = 0
    with storage.atomic_file(path) as temporary, open(temporary, "wb") as file:

        def head() -> int:
            """NumPy leaves room in a header for the number of rows to grow."""
            file.seek(0)
            described = {"descr": np.dtype(dtype).newbyteorder("<").str, "fortran_order": False, "shape": (rows, width)}
            np.lib.format.write_array_header_1_0(file, described)
            return file.tell()

        def write(vectors: np.ndarray) -> None:
            nonlocal rows
            file.write(np.ascontiguousarray(vectors, np.dtype(dtype).newbyteorder("<")).data)
            rows += len(vectors)

        before = head()
        yield write
        if head() != before:
            raise RuntimeError(f"NumPy wrote a header of another size for {rows} rows")


@contextmanager
def _parquet(path: Path) -> Iterator[Callable[[Columns, np.ndarray | None], None]]:
    """Each block becomes a group of rows."""
    from pyarrow import parquet

    writer: Any = None
    with storage.atomic_file(path) as temporary:
        try:

            def write(columns: Columns, vectors: np.ndarray | None) -> None:
                nonlocal writer
                table = _table(columns, vectors)
                if writer is None:
                    plain: Any = [name for name in columns if name == "word"]  # vectors repeat nothing
                    writer = parquet.ParquetWriter(temporary, table.schema, use_dictionary=plain, compression="zstd")
                writer.write_table(table)

            yield write
        finally:
            if writer is not None:
                writer.close()


def _table(columns: Columns, vectors: np.ndarray | None) -> Any:
    import pyarrow

    arrays: dict[str, Any] = {
        name: pyarrow.array(values, pyarrow.string() if values.dtype == object else None)
        for name, values in columns.items()
    }
    if vectors is not None:
        missing = pyarrow.array(np.isnan(vectors[:, 0]))
        flat = pyarrow.array(vectors.reshape(-1))
        arrays["vector"] = pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1], mask=missing)
    return pyarrow.table(arrays)


def _narrow(vectors: np.ndarray, dtype: Dtype) -> np.ndarray:
    try:
        with np.errstate(over="raise"):
            return vectors.astype(dtype)
    except FloatingPointError as error:
        raise UserError("a vector holds a number that float16 has no room for: take --dtype float32") from error
