"""Files of vectors, written block by block in constant memory. A file gets its name when it is complete."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bertie.base import storage
from bertie.base.errors import UsageError, UserError

Dtype = Literal["float32", "float16"]
Columns = dict[str, np.ndarray]
Write = Callable[[Columns, np.ndarray], None]
ENDINGS = (".npy", ".parquet")


def words_path(path: Path) -> Path:
    """Return the file that lists the words of X.npy: X.words.parquet."""
    return path.with_suffix(".words.parquet")


def require_free(path: Path, words: bool) -> None:
    """Check that vectors can be written to `path`.

    Raises:
        UsageError: The ending is unknown, or a file exists.
    """
    if path.suffix not in ENDINGS:
        raise UsageError(f"--out {path}: vectors are written as {' or '.join(ENDINGS)}: use one of these endings")
    for file in (path, words_path(path)) if words and path.suffix == ".npy" else (path,):
        if file.exists():
            raise UsageError(f"{file} already exists: give another --out, or remove it first")


@contextmanager
def vector_file(path: Path, width: int, dtype: Dtype, words: bool) -> Iterator[Write]:
    """Open a file of vectors.

    A .parquet file has all columns and `vector`, null where it is missing. A .npy file has only the vectors; the
    columns of words go row by row to a .parquet file next to it, which is complete before the .npy file is.

    Args:
        path: The file, .npy or .parquet.
        width: Numbers in a vector.
        dtype: Type of the numbers.
        words: Whether they are vectors of words.

    Yields:
        A function that writes a block: its columns, and vectors float32 [n, width]. Missing: NaN.
    """
    is_table = path.suffix == ".parquet"
    with (
        nullcontext() if is_table else _npy(path, width, dtype) as array,
        _parquet(path if is_table else words_path(path)) if is_table or words else nullcontext() as table,
    ):

        def write(columns: Columns, vectors: np.ndarray) -> None:
            narrow = _narrow(vectors, dtype)
            if array is not None:
                array(narrow)
            if table is not None:
                table(columns, narrow if is_table else None)

        yield write


@contextmanager
def _npy(path: Path, width: int, dtype: Dtype) -> Iterator[Callable[[np.ndarray], None]]:
    rows = 0
    with storage.atomic_file(path) as temporary, open(temporary, "wb") as file:

        def write_header() -> None:
            """Write the header. NumPy leaves room in it for a larger number of rows."""
            file.seek(0)
            header = {"descr": np.dtype(dtype).newbyteorder("<").str, "fortran_order": False, "shape": (rows, width)}
            np.lib.format.write_array_header_1_0(file, header)

        def write(vectors: np.ndarray) -> None:
            nonlocal rows
            file.write(np.ascontiguousarray(vectors, np.dtype(dtype).newbyteorder("<")).data)
            rows += len(vectors)

        write_header()
        yield write
        write_header()


@contextmanager
def _parquet(path: Path) -> Iterator[Callable[[Columns, np.ndarray | None], None]]:
    """Open a Parquet file. Each block becomes a row group."""
    from pyarrow import parquet

    writer: Any = None
    with storage.atomic_file(path) as temporary:
        try:

            def write(columns: Columns, vectors: np.ndarray | None) -> None:
                nonlocal writer
                table = _table(columns, vectors)
                if writer is None:
                    repeated: Any = [name for name in columns if name == "word"]  # numbers hardly repeat
                    writer = parquet.ParquetWriter(temporary, table.schema, use_dictionary=repeated, compression="zstd")
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
    """Convert vectors to `dtype`; raise UserError on overflow."""
    try:
        with np.errstate(over="raise"):
            return vectors.astype(dtype)
    except FloatingPointError as error:
        raise UserError("a vector has a number outside the range of float16: use --dtype float32") from error
