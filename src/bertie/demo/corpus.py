"""The text of the demo and its classification task: Python's documentation, or your own files.

Python's documentation is the language reference in `pydoc_data.topics`, and the docstrings and longer comments of the
standard library. They are read from the source files; no module is imported.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bertie.base.console import plural
from bertie.base.contracts import Document
from bertie.base.errors import UserError
from bertie.corpus import readers
from bertie.corpus.sentences import split_sentences
from bertie.examples.texts import Example

_MIN_DOCUMENTS, _MIN_SENTENCES = 4, 50  # per label
_MAX_TRAIN, _MAX_TEST = 300, 100  # examples per label, so that no label dominates

# Folders of the standard library to skip: tests, installed packages, and copies of grammars.
_SKIPPED = {"test", "tests", "idle_test", "site-packages", "dist-packages", "lib2to3", "__pycache__", "__phello__"}

_COMMENT = re.compile(r"(?:^[ \t]*#(?!!).*\n){2,}", re.MULTILINE)
_HASH = re.compile(r"^[ \t]*#+ ?", re.MULTILINE)
_BULLET = re.compile(r"(?:[-*•+o]|\(?\d{1,2}[.)]|\[\d+\])\s+(?=\S)")
_NOT_PROSE = re.compile(r"[=\-~^*\"'`#+._:|\s]{3,}$|\||\+-|\.\. |.*::=")  # underlines, tables, directives, grammar
_FIELD = re.compile(r":(?:param|type|return|returns|rtype|raise|raises|arg|keyword)\b[^:]*:\s*")
_ROLE = re.compile(r":[\w:]+:`~?([^`]+)`")
_QUOTE = re.compile(r"`{1,2}([^`]+)`{1,2}_?")
_EMPHASIS = re.compile(r"(?<![\w*])(\*{1,2})(\w[\w .]*)\1(?![\w*])")
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")  # of statements
_WORD = re.compile(r"[A-Za-z][a-z'’]*")


@dataclass(frozen=True)
class DemoData:
    """Text for pre-training, and labeled sentences for fine-tuning.

    No document and no sentence of `test` is in `documents` or `train`. If the text does not allow a task, `train` and
    `test` are empty and `question` is "".
    """

    documents: list[Document]
    """Documents to pre-train on."""
    train: list[Example]
    """Sentences to fine-tune on."""
    test: list[Example]
    """Sentences of other documents, to test on."""
    question: str
    """The classification task as a question."""

    @property
    def sentences(self) -> list[Example]:
        """All labeled sentences, in an order that mixes the labels."""
        return _shuffled([*self.train, *self.test])


def python_data() -> DemoData:
    """Return Python's documentation, with the task to predict the package that a sentence documents.

    The same Python gives the same data.

    Raises:
        UserError: This Python is installed without its source files.
    """
    documents = python_documents()
    packages = [_package(document) for document in documents]
    train, test, held_out = _split(documents, packages, most=10)
    rest = [document for document in documents if document.source not in held_out]
    count = len({example.label for example in train})
    return DemoData(
        _without_repeats(rest), train, test, f"Which of {count} packages of Python does a sentence document?"
    )


def folder_data(paths: list[Path]) -> DemoData:
    """Return your own text, with the task to predict the file of a sentence.

    With more than 20 files, the task is to predict the subfolder.

    Memory holds all of the text.

    Raises:
        UsageError: As in `bertie.corpus.readers.read`.
        UserError: As in `bertie.corpus.readers.read`, or there are fewer than 4 different documents.
    """
    documents = list(readers.read(paths))
    if (count := len({document.text for document in documents})) < _MIN_DOCUMENTS:
        raise UserError(
            f"--corpus has {plural(count, 'document')}: give {_MIN_DOCUMENTS}, in .txt separated by blank lines"
        )
    files = [Path(document.source.rpartition(":")[0]).absolute() for document in documents]
    root = Path(os.path.commonpath([file.parent for file in files])) if files else Path()
    relative = [file.relative_to(root) for file in files]
    by_file = 2 <= len(set(relative)) <= 20
    labels = [file.as_posix() if by_file else file.parts[0] if len(file.parts) > 1 else "" for file in relative]
    train, test, held_out = _split(documents, labels, most=20)
    if not test:
        return DemoData(documents, [], [], "")
    rest = [document for document in documents if document.source not in held_out]
    count = len({example.label for example in train})
    return DemoData(
        rest, train, test, f"Which of {count} {'files' if by_file else 'folders'} does a sentence come from?"
    )


def _package(document: Document) -> str:
    """Return the package of a module; "" for topics and for modules outside packages."""
    package, _, module = document.source.partition(".")
    return package if module and not document.source.startswith("pydoc_data") else ""


def _split(documents: list[Document], labels: list[str], most: int) -> tuple[list[Example], list[Example], set[str]]:
    """Split documents into training and test examples.

    The task has at most `most` labels, those with the most sentences; the label "" stands for none. Examples are the
    long sentences that occur once in the whole text. Whole documents become test documents, in the order of a hash, up
    to a quarter of a label's sentences.

    Returns:
        The training examples, the test examples, and the sources of the test documents; all empty if there are fewer
        than two labels.
    """
    split = [split_sentences(document.text) for document in documents]
    counts = Counter(_normalized(sentence) for document in split for sentence in document)
    by_label: dict[str, dict[str, list[Example]]] = {}
    for document, label, in_document in zip(documents, labels, split, strict=True):
        usable = [sentence for sentence in in_document if _is_long(sentence) and counts[_normalized(sentence)] == 1]
        if label and usable:
            examples = [Example(sentence, None, label, document.source) for sentence in usable]
            by_label.setdefault(label, {})[document.source] = examples
    sizes = {label: sum(map(len, parts.values())) for label, parts in by_label.items()}
    eligible = [label for label in sizes if len(by_label[label]) >= _MIN_DOCUMENTS and sizes[label] >= _MIN_SENTENCES]
    chosen = sorted(eligible, key=lambda label: (-sizes[label], label))[:most]
    if len(chosen) < 2:
        return [], [], set()
    train, test, held_out = [], [], set()
    for label in chosen:
        label_train: list[Example] = []
        label_test: list[Example] = []
        for source, examples in sorted(by_label[label].items(), key=lambda part: _hash(part[0])):
            is_test = len(label_test) + len(examples) <= sizes[label] / 4
            (label_test if is_test else label_train).extend(examples)
            held_out |= {source} if is_test else set()
        train += sorted(label_train, key=lambda example: _hash(example.text))[:_MAX_TRAIN]
        test += sorted(label_test, key=lambda example: _hash(example.text))[:_MAX_TEST]
    return _shuffled(train), _shuffled(test), held_out


def _shuffled(examples: list[Example]) -> list[Example]:
    return sorted(examples, key=lambda example: _hash(example.text))


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _normalized(sentence: str) -> str:
    return " ".join(sentence.lower().split()).rstrip(".!?:;")


def _is_long(sentence: str) -> bool:
    """Return whether a sentence has five words, or ten letters of a script that may not use spaces."""
    return len(sentence.split()) >= 5 or sum(char.isalpha() and not char.isascii() for char in sentence) >= 10


def _without_repeats(documents: list[Document]) -> list[Document]:
    """Remove the paragraphs that occur in an earlier document. Topics repeat long paragraphs of each other."""
    seen: set[str] = set()
    result = []
    for document in documents:
        new = [line for line in dict.fromkeys(document.text.split("\n")) if line not in seen]
        seen.update(new)
        if new:
            result.append(Document("\n".join(new), document.source))
    return result


def python_documents() -> list[Document]:
    """Return Python's documentation as prose: a document per topic and per module, a line per paragraph.

    The same Python gives the same list. `source` is "pydoc_data.topics:assert" or "email.message".

    Raises:
        UserError: This Python is installed without its source files.
    """
    named_lines = [*_topics(), *_modules(Path(sysconfig.get_path("stdlib")))]
    documents = [Document("\n".join(lines), source) for source, lines in named_lines if lines]
    if len(documents) < 100:
        raise UserError("this Python is installed without its source files: give a folder of text with --corpus")
    return documents


def _topics() -> Iterator[tuple[str, list[str]]]:
    from pydoc_data.topics import topics  # a module that holds only data

    for name in sorted(topics):
        yield f"pydoc_data.topics:{name}", paragraphs(topics[name])


def _modules(folder: Path) -> Iterator[tuple[str, list[str]]]:
    for path in sorted(_python_files(folder)):
        name = ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
        source = path.read_bytes()
        yield name, [line for text in docstrings(source) + comments(source) for line in paragraphs(text)]


def _python_files(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        folders[:] = set(folders) - _SKIPPED  # os.walk does not enter the others
        yield from (Path(root, name) for name in files if name.endswith(".py") and name[:-3] not in _SKIPPED)


def docstrings(source: bytes) -> list[str]:
    """Return the docstrings of a module, its classes and functions, in file order; [] if it does not parse."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about invalid escapes in the strings of other code
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):
            return []
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in _statements(tree) if isinstance(node, kinds)]
    nodes.sort(key=lambda node: getattr(node, "lineno", 0))
    return [text for text in map(ast.get_docstring, nodes) if text]


def _statements(tree: ast.AST) -> list[ast.AST]:
    """Return a tree's nodes without expressions, which are most of it and have no docstrings."""
    nodes = [tree]
    for node in nodes:  # grows
        nodes += [child for name in _BLOCKS for child in getattr(node, name, ())]
    return nodes


def comments(source: bytes) -> list[str]:
    """Return the comments of two lines or more, without "#"."""
    blocks = _COMMENT.findall(source.decode("utf-8", errors="replace"))
    return [_HASH.sub("", block) for block in blocks]


def paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a docstring or topic, without markup, rules, tables, examples and code."""
    blocks: list[list[str]] = [[]]
    literal = None  # after "::", deeper lines than this indent are a literal block
    doctest = False
    indent = 0  # of the previous line
    for line in text.expandtabs().splitlines():
        bare = line.strip()
        before, indent = indent, len(line) - len(line.lstrip())
        doctest = bool(bare) and (doctest or bare.startswith((">>>", "... ")))
        if bare and (literal is None or indent <= literal):
            literal = indent if bare.endswith("::") else None
        elif bare:
            continue
        if not bare or doctest or _NOT_PROSE.match(bare):
            blocks.append([])
            continue
        bullet = _BULLET.match(bare)
        ends_with_colon = bool(blocks[-1]) and blocks[-1][-1].endswith(":")
        if bullet or _FIELD.match(bare) or indent < before or (indent > before and ends_with_colon):
            blocks.append([])
        blocks[-1].append(bare[bullet.end() :] if bullet else bare)
        indent += bullet.end() if bullet else 0
    cleaned = (_plain(" ".join(lines)) for lines in blocks if lines)
    return [line for line in cleaned if _is_prose(line)]


def _plain(text: str) -> str:
    text = _QUOTE.sub(r"\1", _ROLE.sub(r"\1", _FIELD.sub("", text)))
    return " ".join(_EMPHASIS.sub(r"\2", text).replace("::", ":").split())


def _is_prose(text: str) -> bool:
    """Return whether a text has three words and mostly letters: not a signature, a list of names or a line of code."""
    letters = sum(map(str.isalpha, text)) + text.count(" ")
    return len(_WORD.findall(text)) >= 3 and letters >= 0.8 * len(text)
