"""Frozen or fine-tuned encoders: the comparison of Peters, Ruder & Smith (2019), for any checkpoints.

    python benchmarks/frozen_tuned.py DATA --model NAME=CHECKPOINT [--model …] --work FOLDER
        --out benchmarks/results/frozen_tuned.json [--tasks …] [--restarts 3] [--examples 2000] [--precision bf16]

DATA contains glue/, sick/ and ner/. Frozen (❄): a scalar mix of all layers and, for tagging, a two-layer BiLSTM of size
256 on it. Fine-tuned (🔥): the last layer and a task head. Each is trained with three learning rates and --restarts
seeds. The learning rate is chosen by its mean score on the selection half of the dev set. The reported score is the
mean on the report half, ± its standard error over seeds. SICK has no dev set here: a random tenth is used.
OMP_NUM_THREADS sets the threads. Finished runs stay in --work, so a stopped benchmark resumes.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from bertie.base import config, runtime, seeding
from bertie.examples.left_out import valid_examples
from bertie.finetuning.finetune import finetune
from bertie.finetuning.recipe import FinetuneConfig, GridSearch
from bertie.finetuning.sweep import RunResult, Sweep
from results import Results
from sick import sick

RATES = {"❄": (3e-3, 1e-2, 3e-2), "🔥": (5e-5, 1e-4, 3e-4)}
LSTM_RATES = (1e-3, 3e-3, 1e-2)
EPOCHS = {"❄": 15, "🔥": 3}
MOST_DEV = 2000


@dataclass(frozen=True)
class Setting:
    """Files and metric of one task.

    train, dev: files in DATA; for SICK, which is one file, dev is empty. label: for SICK, the column of the label.
    """

    title: str
    kind: str
    train: str
    dev: str
    metric: str
    label: str = ""
    max_length: int = 128


SETTINGS = {
    "ner": Setting("WNUT-17", "tag", "ner/wnut17train.conll", "ner/emerging.dev.conll", "f1"),
    "sst2": Setting("SST-2", "classify", "glue/SST-2/train.tsv", "glue/SST-2/dev.tsv", "accuracy"),
    "mnli": Setting("MNLI", "classify", "glue/MNLI/train-subset.tsv", "glue/MNLI/dev_matched.tsv", "accuracy"),
    "sick-e": Setting("SICK-E", "classify", "sick/SICK.txt", "", "accuracy", "entailment_judgment"),
    "sick-r": Setting("SICK-R", "regress", "sick/SICK.txt", "", "pearson", "relatedness_score"),
    "mrpc": Setting("MRPC", "classify", "glue/MRPC/train.tsv", "glue/MRPC/dev.tsv", "f1"),
    "stsb": Setting("STS-B", "regress", "glue/STS-B/train.tsv", "glue/STS-B/dev.tsv", "pearson"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", action="append", required=True, metavar="NAME=CHECKPOINT")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--restarts", type=int, default=3)
    parser.add_argument("--examples", type=int, default=2000, help="number of training examples; 0: all")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="precision of fine-tuning")
    args = parser.parse_args()
    for named in args.model:
        name, checkpoint = named.split("=", 1)
        results = Results(args.out.with_stem(f"{args.out.stem}-{name}"), checkpoint, runtime.use_threads())
        found: dict[str, dict[str, Any]] = {}
        for task in args.tasks:
            base, train, dev = examples(SETTINGS[task], args.data)
            for way in ("❄", "🔥"):
                settings = recipe(base, SETTINGS[task], way, args)
                run = args.work / name / f"{task}-{'frozen' if way == '❄' else 'tuned'}"
                measure = partial(measured, settings, train, dev, checkpoint, run)
                found.setdefault(task, {})[way] = results.measure(f"{task}/{way}", settings, measure)
        print(shown(name, found), flush=True)


def measured(settings: FinetuneConfig, train: Any, dev: Any, checkpoint: str, run: Path) -> dict[str, Any]:
    done = finetune(settings, train, checkpoint, run, dev=dev).sweep
    assert done is not None  # there are three rates
    return chosen(done)


def examples(setting: Setting, data: Path) -> tuple[FinetuneConfig, Any, Any]:
    base = config.load(FinetuneConfig, setting.kind, "finetune")
    if not setting.label:
        train, dev = (valid_examples(base.task.reader.read(data / name), name) for name in (setting.train, setting.dev))
    else:
        found = sick(data / setting.train, setting.label)
        order = seeding.generator(0, seeding.SUBSET).permutation(len(found))
        cut = len(found) // 10
        dev, train = ([found[i] for i in part] for part in (order[:cut], order[cut:]))
    order = seeding.generator(0, seeding.SUBSET).permutation(len(dev))[:MOST_DEV]
    return base, train, [dev[i] for i in order]


def recipe(base: FinetuneConfig, setting: Setting, way: str, args: argparse.Namespace) -> FinetuneConfig:
    frozen = way == "❄"
    lstm_hidden_size = 256 if frozen and setting.kind == "tag" else 0
    training = replace(base.training, epochs=EPOCHS[way], precision="fp32" if frozen else args.precision)
    return replace(
        base,
        training=training,
        grid=GridSearch(learning_rate=LSTM_RATES if lstm_hidden_size else RATES[way]),
        restarts=args.restarts,
        metric=setting.metric,
        max_length=setting.max_length,
        max_train_examples=args.examples,
        frozen=frozen,
        layers="scalar_mix" if frozen else "last",
        lstm_hidden_size=lstm_hidden_size,
    )


def chosen(done: Sweep) -> dict[str, Any]:
    """Return the learning rate with the best mean on the selection half, and its scores on the report half."""

    def rate(outcome: RunResult) -> float:
        return outcome.learning_rate

    whole = [each for each in done.results if each.scores]
    groups = [list(group) for _, group in groupby(sorted(whole, key=rate), key=rate)]
    best = max(groups, key=lambda group: float(np.mean([each.selection_scores[done.metric] for each in group])))
    scores = [each.report_scores[done.metric] for each in best]
    return {"learning_rate": best[0].learning_rate, "scores": scores, "seconds": sum(o.seconds for o in done.results)}


def shown(name: str, found: dict[str, dict[str, Any]]) -> str:
    """Return a table with one row each for frozen, fine-tuned and their difference."""
    lines = [
        f"| {name} | " + " | ".join(SETTINGS[task].title for task in found) + " |",
        "|---" * (len(found) + 1) + "|",
    ]
    for way in ("❄", "🔥"):
        cells = []
        for each in found.values():
            scores = 100 * np.array(each[way]["scores"])
            error = scores.std(ddof=1) / len(scores) ** 0.5 if len(scores) > 1 else np.nan
            cells.append(f"{scores.mean():.1f} ± {error:.1f}")
        lines.append(f"| {way} | " + " | ".join(cells) + " |")
    gains = [100 * (np.mean(each["🔥"]["scores"]) - np.mean(each["❄"]["scores"])) for each in found.values()]
    lines.append("| Δ = 🔥 − ❄ | " + " | ".join(f"{value:+.1f}" for value in gains) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
