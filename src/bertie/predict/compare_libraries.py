"""Compare a loaded model with what another library computes from a folder: the one function for `verify` and `convert`.

`compare` returns a list of `Compared`. Each says what was compared, on how many inputs, the largest difference, the
tolerance with its reason, the verdict, and an example of a difference. The result is right if `wrong` returns none of them.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Literal

from bertie.errors import UsageError
from bertie.predict import compare_sentence_transformers, compare_transformers
from bertie.predict.comparison import Compared
from bertie.predict.predictor import Predictor

Library = Literal["transformers", "sentence-transformers"]
LIBRARIES = {"transformers": compare_transformers, "sentence-transformers": compare_sentence_transformers}


def require(library: Library) -> None:
    """Raise UsageError if a library is not installed."""
    if importlib.util.find_spec(library.replace("-", "_")) is None:
        raise UsageError(f"{library} is not installed: pip install {library}")


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
        UsageError: The library is not installed.
        UserError: The model computes NaN or infinity.
    """
    require(library)
    predictor.model.cpu()
    return LIBRARIES[library].compare(predictor, folder or predictor.folder)


def wrong(comparisons: list[Compared]) -> list[Compared]:
    """Return the comparisons that found a fault."""
    return [each for each in comparisons if each.judged and not each.equal]
