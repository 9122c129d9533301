"""SICK (Marelli et al. 2014) in its published form: one table of sentence pairs with a score and a label.

    python benchmarks/sick.py SICK.txt FOLDER [--dev 0.1]

This writes train.tsv and dev.tsv to the folder: the published file has no split here, so a random tenth is dev. With --dev 0.5,
dev.tsv has about as many pairs as the published test set.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

from bertie.examples.reader import Reader
from bertie.examples.texts import Example, LabeledTexts


def sick(path: Path, label: str) -> list[Example]:
    """Read all pairs. label: the column relatedness_score (1 to 5) or entailment_judgment."""
    with open(path, encoding="utf-8") as file:
        table = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    rows = ({"text": row["sentence_A"], "text_pair": row["sentence_B"], "label": row[label]} for row in table)
    return list(Reader(LabeledTexts()).values(rows))


def main() -> None:
    """Write train.tsv and dev.tsv: the pairs without and with a random part."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("sick", type=Path)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--dev", type=float, default=0.1, help="share of the pairs in dev.tsv")
    given = arguments.parse_args()
    header, *lines = given.sick.read_text(encoding="utf-8").splitlines()
    order = np.random.default_rng(0).permutation(len(lines))
    dev = int(len(lines) * given.dev)
    given.folder.mkdir(parents=True, exist_ok=True)
    for name, numbers in (("dev.tsv", order[:dev]), ("train.tsv", order[dev:])):
        rows = [header, *(lines[number] for number in np.sort(numbers))]
        (given.folder / name).write_text("\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
