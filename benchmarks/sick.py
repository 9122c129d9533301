"""Reader of SICK (Marelli et al. 2014) in its published form: one table of sentence pairs with a score and a label."""

from __future__ import annotations

import csv
from pathlib import Path

from bertie.tasks.data.texts import Example, TextReader


def sick(path: Path, label: str) -> list[Example]:
    """Read all pairs. label: the column relatedness_score (1 to 5) or entailment_judgment."""
    with open(path, encoding="utf-8") as file:
        table = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    rows = ({"text": row["sentence_A"], "text_pair": row["sentence_B"], "label": row[label]} for row in table)
    return list(TextReader().values(rows))
