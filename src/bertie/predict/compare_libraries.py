"""Compare a loaded model with what another library computes from a folder: the one function for `verify` and `convert`.

`compare` returns a list of `Compared`. Each says what was compared, on how many inputs, the largest difference, the
tolerance with its reason, the verdict, and an example of a difference. The result is right if `wrong` returns none of them.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Literal

from bertie.errors import UsageError
from bertie.predict import compare_sentence_transformers, compare_transformers
from bertie.predict.comparison import Compared
from bertie.predict.engines.graph import quietly
from bertie.predict.predictor import Predictor

Library = Literal["transformers", "sentence-transformers"]
LIBRARIES = {"transformers": compare_transformers, "sentence-transformers": compare_sentence_transformers}


def absent(library: Library) -> str:
    """Return why a library cannot be used: it is not installed, or its import fails. Empty: it can."""
    name = library.replace("-", "_")
    if importlib.util.find_spec(name) is None:
        return "not installed"
    try:
        with quietly():
            importlib.import_module(name)
    except Exception as error:  # what the modules of others raise while they are imported
        return f"its import fails ({type(error).__name__}: {' '.join(str(error).split())[:150]})"
    return ""


def require(library: Library) -> None:
    """Raise UsageError if a library cannot be used."""
    if reason := absent(library):
        raise UsageError(f"{library}: {reason}: pip install {library}")


def compare(predictor: Predictor, library: Library, folder: Path | None = None) -> list[Compared]:
    """Compare what users call: tokens of ordinary and hostile texts, vectors, predictions.

    Both compute in fp32 on the CPU. The library executes no code of the folder and downloads nothing.

    Args:
        predictor: The model. It is moved to the CPU.
        library: The other library.
        folder: What the library loads. None: the model's folder.

    Returns:
        The comparisons, in order. One that was not possible, such as that of a folder that the library does not load, is
        among them, and is wrong.

    Raises:
        UsageError: The library cannot be used.
        UserError: The model computes NaN or infinity.
    """
    require(library)
    predictor.model.cpu()
    return LIBRARIES[library].compare(predictor, folder or predictor.folder)


def wrong(comparisons: list[Compared]) -> list[Compared]:
    """Return the comparisons that found a fault."""
    return [each for each in comparisons if each.judged and not each.equal]
