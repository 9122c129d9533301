"""What recipes reach in the same minutes: losses, speed, tasks. Made for a GPU, on which it has not run yet; runs on a CPU, too.

    bertie tokenizer train simplewiki.jsonl.xz gutenberg.jsonl.xz --vocab-size 30000 --out tokenizer
    bertie prepare simplewiki.jsonl.xz gutenberg.jsonl.xz --tokenizer tokenizer --out shards
    python benchmarks/equal_minutes.py shards --data DATA --work FOLDER --out FILE.json
        [--recipes modern-base base] [--minutes 10] [--tasks SST-2 MRPC STS-B QNLI MNLI SQuAD] [--seeds 0]
        [--learning-rates 5e-5 1e-4 3e-4] [--pairs PAIRS.jsonl]

Each recipe is trained by `bertie pretrain RECIPE --budget`, in a process of its own. The minutes include compilation and the
initial weights, not the seconds in which Python imports torch. Then every finished run gets

    the loss on two fixed held-out sets with BERT's masks, whatever the recipe's own are (speedrun.py)
    tokens, tokens per second of the median step, and its utilization of the peak rate
    each task of the lab `modern` on the files in DATA, with every learning rate: all scores are kept, and the best on the
    dev set is shown, which is a little too good for every recipe alike
    accuracy on minimal pairs, with --pairs (grammar_pairs.py writes them)

A finished part is not repeated. Delete the folder of a run in --work to measure all of it again: its tasks are inside.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import tomli_w

from bertie import config, runtime, storage
from bertie.lab.config import LabConfig
from bertie.text.shards import open_shards
from bertie.training.run_folder import read_metrics
from results import environment
from speedrun import SETS, held_out_loss

METRICS = {"classify": "accuracy", "regress": "spearman", "span": "f1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the files of the lab `modern`")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipes", nargs="+", default=["modern-base", "base"])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--tasks", nargs="+", default=["SST-2", "MRPC", "STS-B", "QNLI", "MNLI", "SQuAD"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--learning-rates", type=float, nargs="+", default=[5e-5, 1e-4, 3e-4])
    parser.add_argument("--pairs", type=Path)
    args = parser.parse_args()
    tasks = {task.name: task for task in config.load(LabConfig, "modern", "lab").tasks if task.name in args.tasks}
    if unknown := set(args.tasks) - set(tasks):
        parser.error(f"the lab `modern` has no task {', '.join(sorted(unknown))}")
    args.work.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for recipe in args.recipes:
        for seed in args.seeds:
            run = pretrained(args.shards, recipe, seed, args.minutes, args.work)
            row = {"recipe": recipe, "seed": seed, "minutes": args.minutes, **measured(run, args.shards)}
            if args.pairs:
                row["minimal_pairs"] = grammar(run, args.pairs)
            row["tasks"] = {
                name: tuned(run, task, args.data, args.learning_rates, seed) for name, task in tasks.items()
            }
            rows.append(row)
            storage.write_json(args.out, {"environment": environment(runtime.use_threads()), "runs": rows})
            print(table(rows), flush=True)


def pretrained(shards: Path, recipe: str, seed: int, minutes: float, work: Path) -> Path:
    """Pre-train a recipe, unless it is done. Returns the run."""
    out = work / f"{recipe}-{seed}-{minutes:g}m"
    if not (out / "manifest.json").exists():
        bertie("pretrain", recipe, "--data", shards, "--out", out, "--seed", seed, "--budget", f"{minutes:g}m")
    return out


def measured(run: Path, shards: Path) -> dict[str, Any]:
    """Return the held-out losses of a run, and its speed."""
    steps, opened = read_metrics(run, "train"), open_shards(shards)
    speeds = [step["tokens_per_second"] for step in steps if "tokens_per_second" in step]
    used = [step["utilisation"] for step in steps if step.get("utilisation") is not None]
    return {
        "losses": {name: held_out_loss(run, opened, name) for name in SETS},
        "tokens": steps[-1]["tokens"],
        "tokens_per_step": steps[-1]["tokens"] / steps[-1]["step"],
        "tokens_per_second": median(speeds),
        "utilization": median(used) if used else None,
    }


def grammar(run: Path, pairs: Path) -> float:
    """Return the accuracy on minimal pairs."""
    return json.loads(bertie("minimal-pairs", run, pairs, "--json").splitlines()[-1])["accuracy"]


def tuned(run: Path, task: Any, data: Path, rates: list[float], seed: int) -> dict[str, float | None]:
    """Fine-tune a run on a task with every learning rate. Returns the main score by learning rate; None: it failed."""
    scores: dict[str, float | None] = {}
    for rate in rates:
        out = run / "tasks" / f"{task.name}-{rate:g}"
        if not (out / "dev" / "scores.json").exists():
            changed = config.merge(task.finetune, {"training": {"learning_rate": rate}})
            recipe = out.with_name(f"{out.name}.toml")
            recipe.parent.mkdir(exist_ok=True)
            recipe.write_text(tomli_w.dumps(changed))
            files = ("--train", data / task.train, "--dev", data / task.dev)
            try:
                bertie("finetune", recipe, *files, "--model", run, "--out", out, "--seed", seed)
            except subprocess.CalledProcessError:  # it has said why; one that diverges must not end the rest
                scores[f"{rate:g}"] = None
                continue
        found = json.loads((out / "dev" / "scores.json").read_text())
        scores[f"{rate:g}"] = found["scores"][METRICS[found["task"]]]
    return scores


def bertie(*words: object) -> str:
    """Run a command of bertie. Returns its stdout; messages and progress go to stderr."""
    command = [sys.executable, "-m", "bertie", *map(str, words)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def table(rows: list[dict[str, Any]]) -> str:
    """Return the results in Markdown. Of each task, the score with the best learning rate."""
    names = list(rows[0]["tasks"])
    head = [
        "recipe",
        "seed",
        "loss, documents",
        "loss, pairs",
        "million tokens",
        "tokens per step",
        "tokens/s",
        "utilization",
        *names,
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        utilization = "–" if row["utilization"] is None else f"{row['utilization']:.0%}"
        cells = [row["recipe"], row["seed"], *(f"{row['losses'][name]:.3f}" for name in ("documents", "pairs"))]
        cells += [f"{row['tokens'] / 1e6:.1f}", f"{row['tokens_per_step']:,.0f}"]
        cells += [f"{row['tokens_per_second']:,.0f}", utilization]
        scores = [[each for each in row["tasks"][name].values() if each is not None] for name in names]
        cells += [f"{max(each):.3f}" if each else "–" for each in scores]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
