"""Print the results of finetune_quality.py as a Markdown table: means over seeds ± standard errors, in points.

    python benchmarks/finetune_table.py OURS.json THEIRS.json [WHOLE.json]

A task counts with the seeds that both sides have, and only if there are at least two. WHOLE.json: results of bertie
with `--whole`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from bertie.base import storage
from finetune_settings import SETTINGS

TITLES = {
    "cola": "CoLA",
    "sst2": "SST-2",
    "mrpc": "MRPC",
    "stsb": "STS-B",
    "rte": "RTE",
    "qnli": "QNLI",
    "mnli": "MNLI",
    "qqp": "QQP",
    "wnut": "WNUT-17",
    "codah": "CODAH",
    "squad1": "SQuAD 1.1",
    "squad2": "SQuAD 2.0",
}


def main() -> None:
    ours, theirs, *rest = (storage.read_json(Path(path)) for path in sys.argv[1:])
    whole = rest[0] if rest else {"measured": {}}
    print(
        "| Task | Metric | Seeds | bertie | transformers | Difference | At most 2 SE below | bertie, full training set |\n"
        + "|---" * 8
        + "|"
    )
    differences = []
    for task, setting in SETTINGS.items():
        found = [_scores(results, task) for results in (ours, theirs)]
        if len(seeds := sorted(found[0].keys() & found[1].keys())) < 2:
            continue
        sides = [np.array([side[seed] for seed in seeds]) for side in found]
        means, errors = zip(*((side.mean(), side.std(ddof=1) / len(side) ** 0.5) for side in sides), strict=True)
        differences.append(means[0] - means[1])
        scores = " | ".join(f"{mean:.1f} ± {error:.1f}" for mean, error in zip(means, errors, strict=True))
        within = "yes" if means[0] >= means[1] - 2 * errors[1] else "NO"
        runs = list(_scores(whole, task).values())
        with_all_examples = f"{np.mean(runs):.1f}" + (f", mean of {len(runs)}" if len(runs) > 1 else "") if runs else ""
        gain = f"{differences[-1]:+.1f} ± {np.hypot(*errors):.1f}"
        print(
            f"| {TITLES[task]} | {setting.metric} | {len(seeds)} | {scores} | {gain} | {within} | {with_all_examples} |"
        )
    for name, middle in (("mean", np.mean(differences)), ("median", np.median(differences))):
        print(f"| {name} of {len(differences)} | | | | | {middle:+.2f} | | |")


def _scores(results: dict[str, Any], task: str) -> dict[str, float]:
    """Return the scores of a task in points, by seed."""
    measured = results["measured"].items()
    return {key.rsplit("/")[-1]: 100 * each["value"]["score"] for key, each in measured if key.startswith(f"{task}/")}


if __name__ == "__main__":
    main()
