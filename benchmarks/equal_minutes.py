"""What recipes reach in the same minutes: losses, speed, tasks. Made for a GPU; runs on a CPU, too.

    bertie tokenizer train simplewiki.jsonl.xz gutenberg.jsonl.xz --vocab-size 30000 --out tokenizer
    bertie prepare simplewiki.jsonl.xz gutenberg.jsonl.xz --tokenizer tokenizer --out shards
    python benchmarks/equal_minutes.py shards --work FOLDER --out FILE.json --data DATA
        [--recipes modern-base base] [--minutes 10] [--tasks SST-2 MRPC STS-B QNLI MNLI SQuAD] [--seeds 0]
        [--learning-rates 5e-5 1e-4 3e-4] [--pairs PAIRS.jsonl] [--held-out SHARDS] [--batch-size 256] [--workers 2] [--jobs 1]

Each recipe is trained by `bertie pretrain RECIPE --budget`, in a process of its own, one after the other. The minutes include
compilation and the initial weights, not the seconds in which Python imports torch. With --batch-size, all recipes have steps
of so many sequences, instead of their own. Then every finished run gets

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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import tomli_w

from bertie.base import config, runtime, storage
from bertie.corpus.shards import open_shards
from bertie.lab.config import LabConfig
from bertie.training.run_folder import read_metrics
from results import environment
from speedrun import SETS, held_out_loss

ROW = 8192  # most tokens of a row of a step with --batch-size
METRICS = {"classify": "accuracy", "regress": "spearman", "span": "f1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", type=Path)
    parser.add_argument(
        "--data", type=Path, help="the folder with the files of the lab `modern`, unless --tasks is empty"
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipes", nargs="+", default=["modern-base", "base"])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--tasks", nargs="*", default=["SST-2", "MRPC", "STS-B", "QNLI", "MNLI", "SQuAD"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--learning-rates", type=float, nargs="+", default=[5e-5, 1e-4, 3e-4])
    parser.add_argument("--pairs", type=Path)
    parser.add_argument(
        "--held-out", type=Path, help="shards whose held-out text is scored; without it, those of the training"
    )
    parser.add_argument("--batch-size", type=int, help="sequences per step of all recipes; without it, their own")
    parser.add_argument("--workers", type=int, default=0, help="processes that prepare the steps of pre-training")
    parser.add_argument("--jobs", type=int, default=1, help="fine-tunings at a time")
    args = parser.parse_args()
    tasks = {task.name: task for task in config.load(LabConfig, "modern", "lab").tasks if task.name in args.tasks}
    if unknown := set(args.tasks) - set(tasks):
        parser.error(f"the lab `modern` has no task {', '.join(sorted(unknown))}")
    if tasks and args.data is None:
        parser.error("needs --data, or --tasks without names")
    args.work.mkdir(parents=True, exist_ok=True)
    runs = {(recipe, seed): pretrained(recipe, seed, args) for recipe in args.recipes for seed in args.seeds}
    rows, threads = list[dict[str, Any]](), runtime.use_threads()
    for (recipe, seed), run in runs.items():
        row = {"recipe": recipe, "seed": seed, "minutes": args.minutes, **measured(run, args.held_out or args.shards)}
        if args.pairs:
            row["minimal_pairs"] = grammar(run, args.pairs)
        rows.append(row | {"tasks": {name: {} for name in tasks}})
        storage.write_json(args.out, {"environment": environment(threads), "runs": rows})
        print(table(rows), flush=True)
    with ThreadPoolExecutor(args.jobs) as pool:  # each job is a process of its own
        work = [(row, task, rate) for row in rows for task in tasks.values() for rate in args.learning_rates]
        scores = [
            pool.submit(
                tuned, runs[row["recipe"], row["seed"]], task, args.data, rate, row["seed"], threads // args.jobs
            )
            for row, task, rate in work
        ]
        for (row, task, rate), score in zip(work, scores, strict=True):
            row["tasks"][task.name][f"{rate:g}"] = score.result()
    storage.write_json(args.out, {"environment": environment(threads), "runs": rows})
    print(table(rows))


def pretrained(recipe: str, seed: int, args: argparse.Namespace) -> Path:
    """Pre-train a recipe, unless it is done. Returns the run."""
    out = args.work / f"{recipe}-{seed}-{args.minutes:g}m-{args.batch_size or 'own'}"
    if not (out / "manifest.json").exists():
        size = ("--training.batch-size", args.batch_size, "--training.row-tokens", ROW) if args.batch_size else ()
        budget = ("--seed", seed, "--budget", f"{args.minutes:g}m", "--training.workers", args.workers)
        bertie("pretrain", recipe, "--data", args.shards, "--out", out, *budget, *size)
    return out


def measured(run: Path, shards: Path) -> dict[str, Any]:
    """Return the held-out losses of a run, and its speed."""
    steps, opened = read_metrics(run, "train"), open_shards(shards)
    speeds = [step["tokens_per_second"] for step in steps if "tokens_per_second" in step]
    used = [step["utilization"] for step in steps if step.get("utilization") is not None]
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


def tuned(run: Path, task: Any, data: Path, rate: float, seed: int, threads: int) -> float | None:
    """Fine-tune a run on a task with a learning rate, unless it is done. Returns the main score; None: it failed."""
    out = run / "tasks" / f"{task.name}-{rate:g}"
    if not (out / "dev" / "scores.json").exists():
        changed = config.merge(task.finetune, {"training": {"learning_rate": rate}})
        recipe = out.with_name(f"{out.name}.toml")
        recipe.parent.mkdir(exist_ok=True)
        recipe.write_text(tomli_w.dumps(changed))
        files = ("--train", data / task.train, "--dev", data / task.dev)
        try:
            bertie(
                "finetune", recipe, *files, "--model", run, "--out", out, "--seed", seed, "--threads", max(1, threads)
            )
        except subprocess.CalledProcessError:  # it has said why; one that diverges must not end the rest
            return None
    found = json.loads((out / "dev" / "scores.json").read_text())
    return found["scores"][METRICS[found["task"]]]


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
