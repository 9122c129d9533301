"""What a request may ask for about vectors: their width, length and encoding. Models that were trained for shorter vectors name
the widths (Kusupati et al. 2022, "Matryoshka Representation Learning")."""

from __future__ import annotations

import base64
from collections.abc import Collection

import numpy as np

from bertie import storage
from bertie.errors import UsageError, UserError
from bertie.predict.predictor import Predictor
from bertie.serve.limits import Refused
from bertie.serve.operations import ServedModel

KEY, ANY = "matryoshka_dimensions", "is_matryoshka"
"""Keys of config.json, as vLLM reads them: the widths, and whether all widths are possible."""


def shorter_widths(predictor: Predictor, given: tuple[int, ...] = ()) -> Collection[int]:
    """Return the widths below its own that the vectors of a model may have.

    Args:
        predictor: The model.
        given: What its operator names, instead of its config.json.

    Raises:
        UsageError: A given width is not below that of the vectors.
        UserError: config.json has no valid widths.
    """
    width = predictor.vector_width()
    if wrong := [each for each in given if not 0 < each < width]:
        raise UsageError(
            f"--dimensions {wrong[0]}: the vectors of {predictor.folder} have width {width}: give 1 to {width - 1}"
        )
    if given:
        return given
    path = predictor.folder / "config.json"
    values = storage.read_json(path) if path.is_file() else {}
    named, every = values.get(KEY), values.get(ANY)
    if named is None:
        return range(1, width) if every is True else ()
    if not isinstance(named, list) or not all(type(each) is int and each > 0 for each in named):
        raise UserError(f"{path}: {KEY} is {str(named)[:60]}: expected a list of widths")
    return tuple(each for each in named if each < width)


def require_width(model: ServedModel, dimensions: int | None, param: str = "dimensions") -> None:
    """Check that the vectors of a model may have a width. None: their own. Raises Refused."""
    width, known = model.vector_width, model.shorter_widths
    if dimensions is None or dimensions == width or dimensions in known:
        return
    shown = f"1 to {width}" if isinstance(known, range) else f"{', '.join(map(str, sorted(known)))} or {width}"
    remedy = "cannot be shortened: omit it"
    if known:
        remedy = f"can be shortened: give {shown}"
    raise Refused(422, "dimensions", f"{param}: the vectors have width {width}, and {remedy}", param)


def shorten_vectors(model: ServedModel, vectors: list[np.ndarray], dimensions: int | None) -> list[np.ndarray]:
    """Return the first numbers of vectors, float32 [dimensions] each, scaled to length 1.

    Vectors stay as they are if `dimensions` is None or their own width.
    """
    if dimensions is None or dimensions == model.vector_width:
        return vectors
    return [unit(vector[:dimensions]) for vector in vectors]


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return a vector, or the rows of a matrix, scaled to length 1; zeros stay zeros."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def base64_of(array: np.ndarray) -> str:
    """Return the bytes of an array's numbers, as little-endian float32, in base64."""
    return base64.b64encode(array.astype("<f4").tobytes()).decode()
