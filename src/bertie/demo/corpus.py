"""The text that every machine has, Python's own documentation, and a question to ask of it; or a user's own folder.

The documentation is the language reference of `pydoc_data.topics`, and the docstrings and longer comments of the
standard library. They are read from the source files, never by importing the modules.
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

from bertie.contracts import Document
from bertie.errors import UserError
from bertie.tasks.data.texts import Example
from bertie.text import readers
from bertie.text.sentences import split_sentences

_DOCUMENTS, _SENTENCES = 4, 50  # a label has at least so many of each
_TRAIN, _TEST = 300, 100  # a label has at most so many examples: no label outweighs the others

# Left out of the standard library: tests, what was installed into it, and copies of grammars.
_SKIPPED = {"test", "tests", "idle_test", "site-packages", "dist-packages", "lib2to3", "__pycache__", "__phello__"}

_COMMENT = re.compile(r"(?:^[ \t]*#(?!!).*\n){2,}", re.MULTILINE)
_HASH = re.compile(r"^[ \t]*#+ ?", re.MULTILINE)
_BULLET = re.compile(r"(?:[-*•+o]|\(?\d{1,2}[.)]|\[\d+\])\s+(?=\S)")
_NO_TEXT = re.compile(r"[=\-~^*\"'`#+._:|\s]{3,}$|\||\+-|\.\. |.*::=")  # underlines, tables, directives, grammar
_FIELD = re.compile(r":(?:param|type|return|returns|rtype|raise|raises|arg|keyword)\b[^:]*:\s*")
_ROLE = re.compile(r":[\w:]+:`~?([^`]+)`")
_QUOTE = re.compile(r"`{1,2}([^`]+)`{1,2}_?")
_EMPHASIS = re.compile(r"(?<![\w*])(\*{1,2})(\w[\w .]*)\1(?![\w*])")
_WORD = re.compile(r"[A-Za-z][a-z'’]*")


@dataclass(frozen=True)
class DemoData:
    """Text to pre-train on, and labelled sentences of other documents to fine-tune on and to be judged by.

    No document, and no sentence, of `test` stands in `documents` or in `train`. Where the text holds no question,
    `train` and `test` are empty and `question` is "".
    """

    documents: list[Document]
    train: list[Example]
    test: list[Example]
    question: str  # what is being classified, in one line


def python_data() -> DemoData:
    """Python's documentation, and the question to which package a sentence belongs. The same for the same Python.

    Errors: UserError where Python came without its sources.
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
    """A user's own text, and the question from which of 2 to 20 files, or else sub-folders, a sentence comes.

    All of the text is held in memory. Errors: those of `bertie.text.readers.read`.
    """
    documents = list(readers.read(paths))
    files = [Path(document.source.rpartition(":")[0]).absolute() for document in documents]
    root = Path(os.path.commonpath([file.parent for file in files])) if files else Path()
    inside = [file.relative_to(root) for file in files]
    by_file = 2 <= len(set(inside)) <= 20
    labels = [file.as_posix() if by_file else file.parts[0] if len(file.parts) > 1 else "" for file in inside]
    train, test, held_out = _split(documents, labels, most=20)
    if not test:
        return DemoData(documents, [], [], "")
    rest = [document for document in documents if document.source not in held_out]
    count = len({example.label for example in train})
    return DemoData(
        rest, train, test, f"From which of {count} {'files' if by_file else 'folders'} does a sentence come?"
    )


def _package(document: Document) -> str:
    """The package a module belongs to, "" for topics and for modules that are no part of a package."""
    package, _, module = document.source.partition(".")
    return package if module and not document.source.startswith("pydoc_data") else ""


def _split(documents: list[Document], labels: list[str], most: int) -> tuple[list[Example], list[Example], set[str]]:
    """Training and test examples, and the sources of the documents that testing needs; ([], [], {}) without two labels.

    The `most` labels with the most sentences take part; "" is none. A sentence counts if it is long enough and occurs
    once in all of the text. Whole documents go to the test side, in the order of a hash, while it has under a quarter.
    """
    split = [split_sentences(document.text) for document in documents]
    seen = Counter(_normal(sentence) for found in split for sentence in found)
    by_label: dict[str, dict[str, list[Example]]] = {}
    for document, label, found in zip(documents, labels, split, strict=True):
        usable = [sentence for sentence in found if _is_long(sentence) and seen[_normal(sentence)] == 1]
        if label and usable:
            examples = [Example(sentence, None, label, document.source) for sentence in usable]
            by_label.setdefault(label, {})[document.source] = examples
    sizes = {label: sum(map(len, parts.values())) for label, parts in by_label.items()}
    eligible = [label for label in sizes if len(by_label[label]) >= _DOCUMENTS and sizes[label] >= _SENTENCES]
    chosen = sorted(eligible, key=lambda label: (-sizes[label], label))[:most]
    if len(chosen) < 2:
        return [], [], set()
    train, test, held_out = [], [], set()
    for label in chosen:
        sides: tuple[list[Example], list[Example]] = ([], [])
        for source, examples in sorted(by_label[label].items(), key=lambda part: _hash(part[0])):
            tested = len(sides[1]) + len(examples) <= sizes[label] / 4
            sides[tested].extend(examples)
            held_out |= {source} if tested else set()
        train += sorted(sides[0], key=lambda example: _hash(example.text))[:_TRAIN]
        test += sorted(sides[1], key=lambda example: _hash(example.text))[:_TEST]
    return _shuffled(train), _shuffled(test), held_out


def _shuffled(examples: list[Example]) -> list[Example]:
    return sorted(examples, key=lambda example: _hash(example.text))


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _normal(sentence: str) -> str:
    return " ".join(sentence.lower().split()).rstrip(".!?:;")


def _is_long(sentence: str) -> bool:
    """Five words, or ten letters of a script that may do without spaces."""
    return len(sentence.split()) >= 5 or sum(char.isalpha() and not char.isascii() for char in sentence) >= 10


def _without_repeats(documents: list[Document]) -> list[Document]:
    """The documents without the paragraphs that stood in an earlier one: topics repeat each other's at length."""
    seen: set[str] = set()
    kept = []
    for document in documents:
        fresh = [line for line in dict.fromkeys(document.text.split("\n")) if line not in seen]
        seen.update(fresh)
        if fresh:
            kept.append(Document("\n".join(fresh), document.source))
    return kept


def python_documents() -> list[Document]:
    """Python's documentation as prose: one document a topic and one a module, every paragraph on a line of its own.

    The same list for the same Python. `source` is "pydoc_data.topics:assert" or "email.message".
    Errors: UserError where Python came without its sources.
    """
    found = [*_topics(), *_modules(Path(sysconfig.get_path("stdlib")))]
    documents = [Document("\n".join(lines), source) for source, lines in found if lines]
    if len(documents) < 100:
        raise UserError("this Python came without its sources: give a folder of text with --corpus")
    return documents


def _topics() -> Iterator[tuple[str, list[str]]]:
    from pydoc_data.topics import topics  # a module of plain data

    for name in sorted(topics):
        yield f"pydoc_data.topics:{name}", paragraphs(topics[name])


def _modules(folder: Path) -> Iterator[tuple[str, list[str]]]:
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        if _SKIPPED.isdisjoint(parts):
            name = ".".join(parts).removesuffix(".__init__")
            source = path.read_bytes()
            yield name, [line for text in docstrings(source) + comments(source) for line in paragraphs(text)]


def docstrings(source: bytes) -> list[str]:
    """The docstrings of a module, its classes and functions, in the order of the file; none if it does not parse."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of invalid escapes in other people's strings
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):
            return []
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    nodes.sort(key=lambda node: getattr(node, "lineno", 0))
    return [text for text in map(ast.get_docstring, nodes) if text]


def comments(source: bytes) -> list[str]:
    """The comments of two lines or more, without their "#"."""
    blocks = _COMMENT.findall(source.decode("utf-8", errors="replace"))
    return [_HASH.sub("", block) for block in blocks]


def paragraphs(text: str) -> list[str]:
    """The prose of a docstring or topic, one paragraph a string, without markup, rules, tables, examples and code."""
    found: list[list[str]] = [[]]
    literal = None  # what stands deeper than this is a literal block, after "::"
    doctest = False
    indent = 0  # of the text of the line before
    for line in text.expandtabs().splitlines():
        bare = line.strip()
        before, indent = indent, len(line) - len(line.lstrip())
        doctest = bool(bare) and (doctest or bare.startswith((">>>", "... ")))
        if bare and (literal is None or indent <= literal):
            literal = indent if bare.endswith("::") else None
        elif bare:
            continue
        if not bare or doctest or _NO_TEXT.match(bare):
            found.append([])
            continue
        bullet = _BULLET.match(bare)
        ends_with_colon = bool(found[-1]) and found[-1][-1].endswith(":")
        if bullet or _FIELD.match(bare) or indent < before or (indent > before and ends_with_colon):
            found.append([])
        found[-1].append(bare[bullet.end() :] if bullet else bare)
        indent += bullet.end() if bullet else 0
    cleaned = (_plain(" ".join(lines)) for lines in found if lines)
    return [line for line in cleaned if _is_prose(line)]


def _plain(text: str) -> str:
    text = _QUOTE.sub(r"\1", _ROLE.sub(r"\1", _FIELD.sub("", text)))
    return " ".join(_EMPHASIS.sub(r"\2", text).replace("::", ":").split())


def _is_prose(text: str) -> bool:
    """Three words or more, and mostly letters: not a signature, a list of names or a line of code."""
    letters = sum(char.isalpha() or char == " " for char in text)
    return len(_WORD.findall(text)) >= 3 and letters >= 0.8 * len(text)
