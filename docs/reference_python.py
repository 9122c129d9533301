"""The page of the public Python names, for docs/generate_reference.py: signatures, docstrings and fields as Markdown."""

from __future__ import annotations

import collections.abc
import importlib
import inspect
import re
import types
import typing
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import cached_property
from typing import Any

import bertie
from bertie.base import config
from reference_markdown import choices, codes, escape, link

WIDTH = 88
SECTION = re.compile("^(Args|Attributes|Returns|Yields|Raises):$", re.MULTILINE)
GROUPS = {
    "Load and predict": "load Predictor WordSearch Generation embed minimal_pairs",
    "Fine-tune": "finetune glue score",
    "Search": "index open_index search Index evaluate_search mine own_pairs distill",
    "Pre-train": "pretrain plan run_lab compare glove GloveConfig demo",
    "Prepare data": "inspect_data train_tokenizer extend_tokenizer Tokenizer prepare",
    "Look inside": "inspect_model Inspection prune_heads",
    "Convert": "convert verify",
    "Errors": "UserError UsageError",
}
RESULTS = {
    "bertie.finetuning.finetune": "Finetuned",
    "bertie.tasks.predictions": "ClassPrediction NumberPrediction NumbersPrediction TagPrediction Entity SpanPrediction "
    "SpanCandidate ChoicePrediction SimilarityPrediction RelevancePrediction",
    "bertie.examples.queries.collection": "Collection",
    "bertie.tasks.label_sets": "LabelSetPrediction",
    "bertie.predict.fill_mask": "MaskPrediction Filling",
    "bertie.predict.likelihood": "TextScore",
    "bertie.predict.vectors": "WordVectors",
    "bertie.retrieval.index": "Hit",
    "bertie.predict.convert.verify": "Verification",
}
FLAGS = {"Generation": "generate", "GloveConfig": "glove", "Inspection": "inspect"}  # their fields are flags
INTERNAL = {  # members that only the rooms of bertie use
    *("text_embedding", "text_sequences", "text_tokenizer", "token_model", "require_words", "special_ids"),
    *("ordinary_ids", "word_starts_table", "normalization", "rules", "merges", "templates", "adds_around", "build_bpe"),
    *("splits_characters", "with_vocabulary", "split_entry", "spelling", "build_unigram", "added_tokens"),
}
PYTHON = """# Python API

Import each name from `bertie`, which loads it when you first use it: `import bertie` alone is fast. `help(bertie.load)`
shows the same text. A server starts from the command line: [`bertie serve`](command-line.md#bertie-serve).

Functions that take a recipe accept the name of a shipped recipe, the path of a TOML file, a dictionary with [its
keys](recipes.md), or the object that this page of keys names."""


def python() -> str:
    """Every public name with its signature and docstring, in the order of use, and what the functions return."""
    public = {name: getattr(importlib.import_module(home), name) for name, home in bertie._HOMES.items()}
    assert sorted(public) == sorted(" ".join(GROUPS.values()).split()), "each public name is in one group"
    parts = [
        PYTHON,
        "\n".join(f"- {group}: {index(names)}" for group, names in GROUPS.items()) + "\n- [Results](#results)",
    ]
    options: dict[str, None] = {}
    for group, names in GROUPS.items():
        parts.append(f"## {group}")
        for name in names.split():
            parts += described(name, f"bertie.{name}", public[name])
            given = inspect.signature(public[name]).parameters.values() if inspect.isfunction(public[name]) else ()
            kinds = (type(parameter.default) for parameter in given if is_dataclass(parameter.default))
            options |= dict.fromkeys(
                f"{kind.__module__}.{kind.__name__}" for kind in kinds if kind not in public.values()
            )
    parts += ["## Options", f"Other classes in these signatures are {codes(options)}.", "## Results"]
    for home, names in RESULTS.items():
        for name in names.split():
            parts += described(name, f"{home}.{name}", getattr(importlib.import_module(home), name))
    return "\n\n".join(filter(None, parts))


def index(names: str) -> str:
    return ", ".join(link(f"`{name}`", name) for name in names.split())


def described(name: str, path: str, value: Any) -> Iterator[str]:
    """Yield heading, signature and docstring of a function or class, and the fields and methods of a class."""
    yield f"### {name}"
    documented = isinstance(value, type) and (config.field_docs(value) or SECTION.search(inspect.getdoc(value) or ""))
    if inspect.isfunction(value) or name in FLAGS or (is_dataclass(value) and not documented):
        yield block(path, value)
    yield from docstring(value)
    if name in FLAGS:
        yield f"The fields are flags of {link(f'`bertie {FLAGS[name]}`', f'bertie {FLAGS[name]}', 'command-line.md')}."
    elif isinstance(value, type):
        yield from members(name, value)


def members(name: str, owner: type) -> Iterator[str]:
    """Yield the fields, the properties and the methods with a short docstring as a list, and then the other methods."""
    docs = config.field_docs(owner) if is_dataclass(owner) else {}
    lines = [(f"{field}: {spelled(hint)}", docs[field]) for field, hint in hints(owner).items() if field in docs]
    long = []
    for method, value in vars(owner).items():
        function = getattr(value, "__func__", None) or getattr(value, "func", None) or getattr(value, "fget", value)
        if not method.startswith("_") and inspect.isfunction(function):
            parts, result = signature(function)
            form = f"{method}({', '.join(parts)}){result}"
            if isinstance(value, property | cached_property):
                lines.append((f"{method}: {spelled(hints(function)['return'])}", inspect.getdoc(function) or ""))
            elif method in INTERNAL:
                continue
            elif SECTION.search(inspect.getdoc(function) or "") or len(form) > WIDTH:
                long += [f"#### {name}.{method}", block(f"{name}.{method}", function), *docstring(function)]
            else:
                lines.append((form, inspect.getdoc(function) or ""))
    shown = [(form, text) for form, text in lines if re.split(r"\W", form)[0] not in INTERNAL]
    yield "\n".join(f"- `{form}`: {line(text)}" for form, text in shown)
    yield from long


def block(path: str, value: Any) -> str:
    """The signature as code: on one line, or with a line for each argument."""
    parts, result = signature(value)
    short = f"{path}({', '.join(parts)}){result}"
    long = "\n".join([f"{path}(", *(f"    {part}," for part in parts), f"){result}"])
    return f"```python\n{short if len(short) <= WIDTH else long}\n```"


def signature(value: Any) -> tuple[list[str], str]:
    """The arguments with types and defaults, and the type of the result."""
    known, parts = hints(value), []
    for name, parameter in inspect.signature(value).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        if name in known:  # not self
            given = parameter.default is not parameter.empty
            parts.append(f"{name}: {spelled(known[name])}" + f" = {default_of(parameter.default)}" * given)
    return parts, f" -> {spelled(known['return'])}" if "return" in known else ""


def default_of(value: Any) -> str:
    if is_dataclass(value):
        changed = [each.name for each in fields(value) if each.default not in (MISSING, getattr(value, each.name))]
        given = ", ".join(f"{name}={default_of(getattr(value, name))}" for name in changed)
        return f"{type(value).__name__}({given})"
    return f'"{value}"' if isinstance(value, str) else getattr(value, "__name__", repr(value))


def hints(value: Any) -> dict[str, Any]:
    return config.hints(value) if is_dataclass(value) else typing.get_type_hints(value)


def spelled(hint: Any) -> str:
    """A type without modules. Of a choice, the list of arguments has the values."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return "str"
    if origin in (typing.Union, types.UnionType):
        return " | ".join(dict.fromkeys(map(spelled, parts)))
    if origin is typing.Annotated or origin is collections.abc.Callable:
        return spelled(parts[0]) if origin is typing.Annotated else "Callable"
    if origin:
        return f"{origin.__name__}[{', '.join(map(spelled, parts))}]"
    name = {type(None): "None", ...: "..."}.get(hint) or getattr(hint, "__name__", str(hint))
    return f"np.{name}" if getattr(hint, "__module__", "") == "numpy" else name


def docstring(value: Any) -> Iterator[str]:
    """Yield the paragraphs of a docstring, and its sections as lists."""
    text, *sections = SECTION.split(inspect.getdoc(value) or "")
    if not text.startswith(f"{value.__name__}("):  # else dataclass wrote it
        yield escape(text.strip())
    for head, body in zip(sections[::2], sections[1::2], strict=True):
        body = inspect.cleandoc("\n" + body)
        if head not in ("Returns", "Yields"):
            items = re.findall(r"^(\w+): (.*(?:\n+ .*)*)", body, re.MULTILINE)
            values = {name: choices(hint) for name, hint in typing.get_type_hints(value).items()}
            rows = (
                f"- `{name}`{f' ({codes(found)})' if (found := values.get(name)) else ''}: {line(told)}"
                for name, told in items
            )
            yield f"**{head}**\n\n" + "\n".join(rows)
        else:
            yield f"**{head}** {escape(body)}"


def line(text: str) -> str:
    return escape(" ".join(text.split()))
