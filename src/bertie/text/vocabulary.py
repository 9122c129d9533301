"""From text files to a tokenizer's folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bertie import storage
from bertie.text import readers, wordpiece
from bertie.text.tokenizer import Tokenizer


def train_tokenizer(
    paths: list[Path],
    out: Path,
    *,
    vocab_size: int = 30_000,
    lowercase: bool = True,
    alphabet_limit: int = 1000,
    min_frequency: int = 2,
    exact: bool = True,
    documents: readers.Boundary = "blank-line",
    text_field: str = "text",
) -> Tokenizer:
    """Train a WordPiece vocabulary on text files and write it, as a tokenizer, to the new folder `out`.

    exact: a text that cannot fill vocab_size is an error, else the vocabulary is as large as the text makes it.
    Errors: UsageError, UserError; `out` is then not there.
    """
    storage.require_fresh(out, "the tokenizer")
    readers.require_outside(out, paths)

    def texts() -> Iterator[str]:
        return (document.text for document in readers.read(paths, documents=documents, text_field=text_field))

    words = wordpiece.train(
        texts,
        vocab_size=vocab_size,
        lowercase=lowercase,
        alphabet_limit=alphabet_limit,
        min_frequency=min_frequency,
        exact=exact,
    )
    tokenizer = Tokenizer.build(words, lowercase)
    with storage.atomic_folder(out) as folder:
        tokenizer.save(folder)
    return tokenizer
