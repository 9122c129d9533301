"""The columns of one or two texts and a label: which ones are recognized by their names, and which the caller names."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from bertie.errors import UsageError, join_names

# (text, second text or None, label names that only this layout has), in lower case
_LAYOUTS: tuple[tuple[str, str | None, tuple[str, ...]], ...] = (
    ("#1 string", "#2 string", ("quality",)),  # MRPC
    ("question1", "question2", ("is_duplicate",)),  # QQP
    ("question", "sentence", ()),  # QNLI
    ("sentence1", "sentence2", ()),  # RTE, WNLI, MNLI, STS-B
    ("sentence_a", "sentence_b", ()),  # SICK
    ("premise", "hypothesis", ()),
    ("text_a", "text_b", ()),
    ("text", "text_pair", ()),
    ("sentence", None, ()),  # SST-2, CoLA
    ("text", None, ()),
)


class TextLayout(NamedTuple):
    """The columns of the texts and of the label of a row."""

    text: str
    text_pair: str | None
    label: str | None


def find_layout(
    names: tuple[str, ...], where: str, labeled: bool, named: TextLayout, label_names: tuple[str, ...]
) -> TextLayout:
    """Find the columns of a row.

    Args:
        names: All columns.
        where: The file, for messages.
        labeled: Whether the column of the label must be clear, if there is one.
        named: The columns that the caller names; empty: found.
        label_names: The names that are recognized as the column of the label.

    Raises:
        UsageError: It lists the columns, and names the flag to choose with.
    """
    known = {name.lower(): name for name in names}
    if len(known) < len(names):  # Text beside text: both are candidates
        twice = {name for name, count in Counter(name.lower() for name in names).items() if count > 1}
        known |= dict.fromkeys(twice, "")

    def usage_error(problem: str, flags: str) -> UsageError:
        return UsageError(f"{where}: {problem}; its columns are: {join_names(names)}", f"Choose with {flags}")

    for flag, name in (("--task.text", named.text), ("--task.text-pair", named.text_pair)):
        if name and name not in names:
            raise usage_error(f"no column {name!r}", flag)
    if named.text:
        text, pair = named.text, named.text_pair or None
    elif named.text_pair:
        raise usage_error("--task.text-pair without --task.text", "both")
    else:
        layouts = [entry for entry in _LAYOUTS if entry[0] in known and (entry[1] is None or entry[1] in known)]
        if any(entry[1] for entry in layouts):  # one column of a pair is not a layout by itself
            used = {name for entry in layouts if entry[1] for name in entry[:2]}
            layouts = [entry for entry in layouts if entry[1] or entry[0] not in used]
        if len(layouts) != 1:
            problem = "more than one column could be" if layouts else "cannot tell which column is"
            flags = "--task.text, and for two texts --task.text-pair, and --task.label for the label"
            raise usage_error(f"{problem} the text", flags)
        [(text_name, pair_name, own_labels)] = layouts
        text, pair = known[text_name], known[pair_name] if pair_name else None
        if not text or pair == "":
            raise usage_error("two columns have the name of the text, in capitals or not", "--task.text")
        label_names += own_labels
    labels = [known[name] for name in label_names if name in known and known[name] not in (text, pair)]
    if named.label:
        if named.label in (text, pair):
            raise usage_error(f"{named.label!r} is the text, and cannot be the label", "--task.text and --task.label")
        if labeled and named.label not in names:
            raise usage_error(f"no column {named.label!r}", "--task.label")
        labels = [named.label] if named.label in names else []
    if labeled and (len(labels) > 1 or "" in labels):
        raise usage_error("more than one column could be the label", "--task.label")
    return TextLayout(text, pair, labels[0] if len(labels) == 1 and labels[0] else None)


def describe_texts(layout: TextLayout) -> str:
    return " and ".join(repr(name) for name in layout[:2] if name)
