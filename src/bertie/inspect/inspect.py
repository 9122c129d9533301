"""`bertie inspect`: run the analyses that the inputs allow, and write their tables.

Each analysis of an input returns `InputFindings`. To add one, add its inputs to `Inspection` and a line to `_parts`.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from bertie.base import storage
from bertie.base.config import Count, Range, check_ranges
from bertie.base.errors import UsageError
from bertie.base.notebook import NotebookDict
from bertie.examples.rows import STDIN
from bertie.inspect.attention import require_transformer
from bertie.inspect.heads.heads import inspect_coreference, inspect_heads, inspect_relations
from bertie.inspect.heads.importance import inspect_importance
from bertie.inspect.heads.layers import LayerComparison
from bertie.inspect.heads.sentences import (
    Sentence,
    given_sentences,
    sentence_table,
    sentences_of_text,
    sentences_of_treebank,
)
from bertie.inspect.page import inspection_page
from bertie.inspect.probes.probes import inspect_probes
from bertie.inspect.tables import InputFindings, write_numbers, write_tables
from bertie.inspect.texts import TextFile
from bertie.predict.load import load
from bertie.predict.predictor import Predictor

NUMBERS, TABLES, PAGE = FILES = ("inspect.json", "tables", "inspect.html")
NEEDS = {
    **{"compare": "text", "text_column": "text", "max_texts": "text"},
    **{"treebank_train": "treebank", "vectors": "treebank_train"},
}
"""Settings that say something about another one."""


@dataclass(frozen=True)
class Inspection:
    """Inputs and settings of an inspection. At least one input is needed."""

    sentences: tuple[str, ...] = ()
    """Sentences whose attention the page draws; empty: some of --treebank, or else of --text."""
    text: Path | None = None
    """Texts, to see what the heads attend to: .txt (one text per line), .tsv, .csv, .jsonl, .parquet, or one word per line
    (.conllu and other CoNLL formats)."""
    text_column: str = ""
    """Column of the text, or its key in .jsonl (empty: text, sentence, tokens or words)."""
    max_texts: Count = 0
    """Read only this many texts from the beginning of --text; 0: all."""
    compare: tuple[str, ...] = ()
    """Other models with the same tokenizer, such as checkpoints of a run: compares their layers on --text."""
    task_data: Path | None = None
    """Labeled examples of the task that the model was fine-tuned for, to see which heads it needs."""
    loss_tokens: Count = 4096
    """Tokens on which the loss without each head is measured: the first of --text, or a sample of --task-data. Twice as many
    take twice as long and reduce the standard errors by 30 %. 0: not at all."""
    treebank: Path | None = None
    """Sentences with dependency trees in CoNLL-U format, to see which heads attend to syntactic heads."""
    treebank_train: Path | None = None
    """Sentences in the same format to train probes on, which are then tested on --treebank: what do attention and hidden states
    tell about parts of speech, relations and trees?"""
    probe_epochs: Annotated[int, Range(1, 100_000)] = 5
    """Passes over --treebank-train."""
    vectors: str = ""
    """Model whose word embeddings the probes of attention use, such as GloVe; empty: the embeddings of the model itself."""
    coreference: Path | None = None
    """Texts with mentions, to see which heads attend to antecedents: GAP (.tsv) or CoNLL-2012."""
    seed: Count = 0
    """Random seed."""

    def __post_init__(self) -> None:
        check_ranges("", self)
        if self.text == STDIN:
            raise UsageError("--text - is stdin, but the texts are read several times: give a file")
        if self.task_data is not None and not self.loss_tokens:
            raise UsageError("--task-data is for the losses, but --loss-tokens is 0: omit one of them")
        for name, needed in NEEDS.items():
            if getattr(self, name) and not getattr(self, needed):
                flag, other = f"--{name.replace('_', '-')}", f"--{needed.replace('_', '-')}"
                raise UsageError(f"{flag} needs {other}: add {other}, or omit {flag}")


def inspect_model(
    model: str | Path | Predictor, inspection: Inspection, out: str | Path, *, language: str = "", threads: int = 0
) -> dict[str, Any]:
    """Look inside a Transformer: what its heads attend to, and what its layers know.

    Writes a folder with inspect.html (the report), inspect.json (all numbers except the attention in sentences) and
    tables/ (every table as .parquet and .csv).

    Args:
        model: A loaded model, or a source as in `load`.
        inspection: The inputs and settings.
        out: Output folder. An earlier inspection is replaced.
        language: As in `load`. A loaded model has a language already.
        threads: As in `load`.

    Returns:
        {"out": folder, "tables": their names, "summary": lines, and a dict of facts for each input}.

    Raises:
        UsageError: There is no input, or `out` exists and is not an inspection.
        UserError: The model has no attention, or an input cannot be read.
    """
    inputs = ("text", "treebank", "coreference", "task_data", "sentences")
    if not any(getattr(inspection, name) for name in inputs):
        raise UsageError(
            "there is nothing to inspect: give --text, --treebank, --coreference, --task-data or --sentences"
        )
    with _folder(Path(out)) as folder:
        predictor = model if isinstance(model, Predictor) else load(model, language=language, threads=threads)
        encoder = require_transformer(predictor.model.encoder)
        sentences = _sentences(predictor, inspection)  # first: they may be too long
        parts = _parts(predictor, inspection, language, threads)
        tables, facts = [table for part in parts for table in part.tables], {part.name: part.facts for part in parts}
        about = {
            "model": predictor.folder.absolute().name,
            "layers": encoder.config.num_hidden_layers,
            "heads": encoder.config.num_attention_heads,
            "bertie": importlib.metadata.version("bertie"),
            "seed": inspection.seed,
            **facts,
        }
        drawn = [sentence_table(sentences)] if sentences else []
        (folder / TABLES).mkdir()
        write_tables(folder / TABLES, [*tables, *drawn])
        write_numbers(folder / NUMBERS, about, tables, only_meaning=drawn)
        storage.write_atomic(folder / PAGE, inspection_page(about, parts, sentences))
    summary = [line for part in parts for line in part.summary]
    result = {"out": str(out), "tables": [table.name for table in (*tables, *drawn)], "summary": summary, **facts}
    return NotebookDict(result, Path(out) / PAGE, shown=("out",))


def _parts(predictor: Predictor, inspection: Inspection, language: str, threads: int) -> list[InputFindings]:
    """Run the analyses of every input."""
    parts: list[InputFindings] = []
    seed, test = inspection.seed, inspection.treebank
    if (texts := _texts(predictor, inspection)) is not None:
        layers = LayerComparison(predictor, texts, inspection.compare, seed, language, threads)
        parts += [inspect_heads(predictor, texts, seed, layers.states), layers.findings()]
    if inspection.loss_tokens and (inspection.text or inspection.task_data):
        texts = _texts(predictor, inspection)
        parts.append(inspect_importance(predictor, texts, inspection.task_data, inspection.loss_tokens, seed))
    if test is not None:
        parts.append(inspect_relations(predictor, test))
    if test is not None and (train := inspection.treebank_train) is not None:
        vectors = load(inspection.vectors, threads=threads) if inspection.vectors else None
        parts.append(inspect_probes(predictor, train, test, inspection.probe_epochs, seed, vectors=vectors))
    if inspection.coreference is not None:
        parts.append(inspect_coreference(predictor, inspection.coreference))
    return parts


def _sentences(predictor: Predictor, inspection: Inspection) -> list[Sentence]:
    """Read the attention that the page draws."""
    if inspection.sentences:
        return given_sentences(predictor, inspection.sentences)
    if inspection.treebank is not None:
        return sentences_of_treebank(predictor, inspection.treebank)
    texts = _texts(predictor, inspection)
    return [] if texts is None else sentences_of_text(predictor, texts)


def _texts(predictor: Predictor, inspection: Inspection) -> TextFile | None:
    """Return the texts, of which nothing was read yet; None if there are none."""
    if inspection.text is None:
        return None
    limits = (predictor.max_length, inspection.text_column, inspection.max_texts)
    return TextFile(inspection.text, predictor.tokenizer, *limits)


@contextmanager
def _folder(path: Path) -> Iterator[Path]:
    """Yield a hidden folder that becomes `path` at the end of the block. It replaces an earlier inspection.

    Raises UsageError if `path` is something else.
    """
    if not ((path / NUMBERS).is_file() and {file.name for file in path.iterdir()} <= set(FILES)):
        storage.require_fresh(path, "the inspection")
    with storage.atomic_folder(path, replace=True) as folder:
        yield folder
