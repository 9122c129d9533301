"""Best attention heads of a model for dependency relations and coreference, beside the heads of BERT base in Clark et al.

    python benchmarks/inspect_syntax.py NAME=MODEL [NAME=MODEL …] --treebank FILE.conllu --coreference FILE
        --out benchmarks/results/inspect_syntax.json

Reads every model with the functions of `bertie inspect`. Each model has its own result file, named after --out. Prints
the tables of dev/measurements/results-inspect.md. Every analysis is written at once, so a stopped benchmark resumes.
OMP_NUM_THREADS sets the threads.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import bertie
from bertie.base import runtime, storage
from bertie.inspect.heads.heads import inspect_coreference, inspect_relations
from bertie.predict.predictor import Predictor
from results import Results

# Clark et al. (2019): relation in UD, their relation, accuracy of the best head and of the best offset. Their numbers are
# those of their notebook, on the Wall Street Journal with Stanford Dependencies.
PUBLISHED = (
    ("all", "all", 34.7, 26.7),
    ("det", "det", 94.3, 51.7),
    ("obj", "dobj", 86.8, 40.0),
    ("case", "pobj (reversed)", 76.3, 34.6),
    ("amod", "amod", 75.6, 68.3),
    ("nsubj", "nsubj", 58.5, 45.5),
    ("nmod:poss ('s)", "poss", 80.5, 47.7),
    ("aux:pass", "auxpass", 94.1, 82.5),
)
MIN_WORDS = 100  # rarer relations are not printed, as in the notebook
KEPT = ("relations", "coreference_best", "coreference")  # without the accuracies of all heads for all relations
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Input:
    """The file that an analysis reads."""

    file: str
    sha256: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="NAME=MODEL")
    parser.add_argument("--treebank", type=Path, required=True)
    parser.add_argument("--coreference", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    for named in args.models:
        name, model = named.split("=", 1)
        results = Results(args.out.with_stem(f"{args.out.stem}-{name}"), model, runtime.use_threads())
        predictor = bertie.load(model)
        found: dict[str, dict[str, Any]] = {}
        for key, read, path in (
            ("relations", inspect_relations, args.treebank),
            ("coreference", inspect_coreference, args.coreference),
        ):
            work = partial(measure, read, predictor, path)
            found[key] = results.measure(f"{key}/{path.name}", Input(path.name, storage.sha256(path)), work)
        tables = {**found["relations"]["tables"], **found["coreference"]["tables"]}
        print(f"## {name}\n\n{beside_published(rows(tables['relations']))}\n\n{relations(rows(tables['relations']))}\n")
        print(coreference(rows(tables["coreference_best"]), rows(tables["coreference"])), flush=True)


def measure(read: Any, predictor: Predictor, path: Path) -> dict[str, Any]:
    part = read(predictor, path)
    return {"facts": part.facts, "tables": {table.name: table.plain() for table in part.tables if table.name in KEPT}}


def rows(columns: dict[str, list[Any]]) -> Rows:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def beside_published(found: Rows) -> str:
    by_name = {row["relation"]: row for row in found}
    lines = ["| UD relation | Accuracy (offset) | Relation in the paper | Accuracy (offset) |", "|---|---|---|---|"]
    for relation, theirs, accuracy, offset in PUBLISHED:
        row = by_name.get(relation)
        ours = "–" if row is None else f"{percent(row['accuracy'])} ({percent(row['baseline'])})"
        lines.append(f"| {relation} | {ours} | {theirs} | {accuracy} ({offset}) |")
    return "\n".join(lines)


def relations(found: Rows) -> str:
    lines = [
        "| Relation | Words | Head, direction | Accuracy | Best offset | Gain | Held-out head | Held-out accuracy | "
        "Held-out gain |",
        "|---" * 9 + "|",
    ]
    for row in sorted(found, key=lambda row: -row["words"]):
        if row["words"] >= MIN_WORDS:
            head = f"{row['layer']}-{row['head']}, {row['direction']}"
            offset = f"{percent(row['baseline'])} ({row['offset']:+d})"
            held_out = "held_out_"
            held_out_head = "–" if row["held_out_layer"] is None else f"{row['held_out_layer']}-{row['held_out_head']}"
            lines.append(
                f"| {row['relation']} | {row['words']:,} | {head} | {with_interval(row, 'accuracy')} | {offset} | "
                f"{with_interval(row, 'gain')} | {held_out_head} | {with_interval(row, 'accuracy', held_out)} | "
                f"{with_interval(row, 'gain', held_out)} |"
            )
    return "\n".join(lines)


def coreference(best: Rows, all_heads: Rows) -> str:
    lines = [
        "| Mentions | Number | Head | Accuracy | Nearest mention | Head match | Rules | Held-out head | Held-out accuracy | "
        "Held-out gain over the best baseline |",
        "|---" * 10 + "|",
    ]
    for row in best:
        baselines = [
            percent(other["accuracy"])
            for method in ("nearest mention", "head match", "rules")
            for other in all_heads
            if other["method"] == method and other["mention_type"] == row["mention_type"]
        ]
        held_out_head = "–" if row["held_out_layer"] is None else f"{row['held_out_layer']}-{row['held_out_head']}"
        lines.append(
            f"| {row['mention_type']} | {row['mentions']:,} | {row['layer']}-{row['head']} | "
            f"{with_interval(row, 'accuracy')} | {' | '.join(baselines)} | {held_out_head} | "
            f"{with_interval(row, 'accuracy', 'held_out_')} | {with_interval(row, 'gain', 'held_out_')} |"
        )
    return "\n".join(lines)


def with_interval(row: dict[str, Any], name: str, prefix: str = "") -> str:
    """Return a value with its interval, in percent."""
    ends = ("low", "high") if name == "accuracy" else (f"{name}_low", f"{name}_high")
    value, low, high = (row[f"{prefix}{key}"] for key in (name, *ends))
    if value is None:
        return "–"
    sign = "+" if name == "gain" else ""
    shown = f"{100 * value:{sign}.1f}"
    return shown if low is None else f"{shown} [{percent(low)}, {percent(high)}]"


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


if __name__ == "__main__":
    main()
