"""Tokenizers that transformers reads: every class that `tokenizer_classes` does not have, such as ALBERT's and HerBERT's."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from bertie.base.errors import UsageError, UserError, install
from bertie.tokenizers.classes import GOOGLES
from bertie.tokenizers.special_tokens import library_errors


def load(folder: Path, declared: str) -> Any:
    """Load the tokenizer of a folder with transformers, which takes seconds to import.

    Args:
        folder: The folder.
        declared: The tokenizer class that it names, or "".

    Raises:
        UsageError: The extra with transformers is not installed.
        UserError: The class is written in Python alone, or a file is damaged.
    """
    name = declared or "of its model_type"
    try:
        for module in ("google.protobuf", "sentencepiece", "transformers"):
            importlib.import_module(module)
    except ImportError as error:
        problem = f"{folder}: the tokenizer class {name} is read by transformers, and {error.name} is not installed"
        raise UsageError(f"{problem}: {install('tokenizers')}") from error
    import transformers  # pyright: ignore[reportMissingImports]
    from transformers.models.auto import tokenization_auto  # pyright: ignore[reportMissingImports]

    theirs = None
    with library_errors(f"{folder}: transformers cannot read its tokenizer"):
        known = (
            tokenization_auto.tokenizer_class_from_name(declared) if declared else transformers.PreTrainedTokenizerFast
        )
        if isinstance(known, type) and issubclass(known, transformers.PreTrainedTokenizerFast):
            local: Any = {"local_files_only": True, "trust_remote_code": False}
            if (folder / GOOGLES).is_file():
                theirs = known.from_pretrained(str(folder / GOOGLES), local_files_only=True)
            else:
                theirs = transformers.AutoTokenizer.from_pretrained(folder, **local)
    if not isinstance(theirs, transformers.PreTrainedTokenizerFast):
        name = type(theirs).__name__ if theirs else name
        raise UserError(f"{folder}: its tokenizer class is {name[:60]!r}, which has no fast tokenizer: take another")
    return theirs
