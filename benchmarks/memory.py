"""What a memory is worth to Transformer-XL: the loss far inside of held-out books, with and without it, at equal processor time.

    python benchmarks/memory.py gutenberg.jsonl.xz --work FOLDER --out FILE.json
        [--minutes 8] [--seeds 0 1 2] [--books 400] [--eval-books 24] [--vocab-size 8000]
        [--recipe benchmarks/memory.toml]

Prepares books, and trains a recipe of Transformer-XL on one thread, for each seed twice: with its memory of 128 tokens, and with
memory_length = 0, which has the same segments of 128 tokens. The number of steps is what the minutes of processor time hold,
by the processor time of short runs of both, in turns; the time that each run then took is in the results. Both read the same
held-out books, cut to 4,096 tokens, as in their training: with the memory through the whole book, or without.

Prints the loss of tokens by their place in the book, and the difference with and without a memory for those after the first
512: its mean over seeds and books, and a 95 % confidence interval of Student's t over the seeds. A finished run is not repeated.
"""

from __future__ import annotations

import argparse
import json
import lzma
import resource
import subprocess
import sys
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

import bertie
from bertie.base import storage
from bertie.corpus.shards import open_shards
from bertie.training.run_folder import read_metrics
from results import environment

FAR = 512  # tokens after so many count
BOOK_TOKENS = 4096
PLACES = (0, 128, FAR, 1024, 2048, BOOK_TOKENS)
STEPS = 42  # of a run that tells the time of a step
MODELS = {"memory": 128, "none": 0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--books", type=int, default=400, help="books for training")
    parser.add_argument("--eval-books", type=int, default=24)
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument(
        "--recipe", default=str(Path(__file__).with_suffix(".toml")), help="with segments of 128 tokens"
    )
    args = parser.parse_args()
    shards = prepared(args)
    books = held_out(shards, args)
    rows = list[dict[str, Any]]()
    seconds = calibrated(shards, args)
    for seed in args.seeds:
        for name in MODELS:
            run = args.work / f"{name}-{seed}-{args.minutes:g}m"
            steps = round(args.minutes * 60 / seconds[name])
            took = trained(args.recipe, shards, run, name, seed, steps) / 60
            losses = measured(run, books)
            tokens = read_metrics(run, "train")[-1]["tokens"]
            row = {"model": name, "seed": seed, "minutes": took, "steps": steps, "million_tokens": tokens / 1e6}
            row |= {
                "far": float(losses[:, FAR:].mean()),
                "places": {f"{a}-{b}": float(losses[:, a:b].mean()) for a, b in pairwise(PLACES)},
                "books": losses[:, FAR:].mean(1).tolist(),
            }
            rows.append(row)
            print({**row, "books": len(books)}, flush=True)
    result = {
        "environment": environment(1),
        "recipe": args.recipe,
        "seconds_per_step": seconds,
        "runs": rows,
    } | compared(rows)
    storage.write_json(args.out, result)
    print(
        f"loss with the memory minus without, after {FAR} tokens: {result['difference']:+.4f}, 95 % {result['interval']}"
    )


def prepared(args: argparse.Namespace) -> Path:
    """Write the training text and shards, unless they are there. Returns the shards."""
    texts, tokenizer, shards = args.work / "train.jsonl", args.work / "tokenizer", args.work / "shards"
    if not (shards / "manifest.json").exists():
        args.work.mkdir(parents=True, exist_ok=True)
        with lzma.open(args.texts, "rt", encoding="utf-8") as lines, open(texts, "w", encoding="utf-8") as file:
            file.writelines(str(line) for line in islice(lines, args.eval_books, args.eval_books + args.books))
        if not tokenizer.exists():
            call("tokenizer", "train", texts, "--vocab-size", args.vocab_size, "--out", tokenizer)
        share = max(0.02, 10 / args.books)  # pre-training needs held-out books, which are not those of this measurement
        call("prepare", texts, "--tokenizer", tokenizer, "--out", shards, "--eval-share", share)
    return shards


def held_out(shards: Path, args: argparse.Namespace) -> list[np.ndarray]:
    """Return the beginnings of the first books, which are not in the training text: [CLS] and BOOK_TOKENS tokens each."""
    tokenizer, found = open_shards(shards).tokenizer, list[np.ndarray]()
    with lzma.open(args.texts, "rt", encoding="utf-8") as lines:
        for line in islice(lines, args.eval_books):
            [ids] = tokenizer.encode([json.loads(line)["text"][: BOOK_TOKENS * 10]])
            if len(ids) >= BOOK_TOKENS:
                found.append(np.concatenate([[tokenizer.cls_id], ids[:BOOK_TOKENS]]).astype(np.int32))
    return found


def calibrated(shards: Path, args: argparse.Namespace) -> dict[str, float]:
    """Return the seconds of processor time of a step of each model: the median of runs in turns. Kept in a file."""
    path, found = args.work / "seconds.json", dict[str, list[float]]()
    if path.exists():
        return storage.read_json(path)
    for turn in range(3):
        for name in MODELS:
            few, many = (
                trained(args.recipe, shards, args.work / f"time-{name}-{turn}-{n}", name, 0, n) for n in (2, STEPS)
            )
            found.setdefault(name, []).append((many - few) / (STEPS - 2))
    seconds = {name: float(np.median(each)) for name, each in found.items()}
    storage.write_json(path, seconds)
    return seconds


def trained(recipe: str, shards: Path, run: Path, name: str, seed: int, steps: int) -> float:
    """Train a model, unless the run is finished. Returns the seconds of processor time that it took."""
    path = run.with_suffix(".seconds")
    if not path.exists():
        quiet = ("--training.eval-every", 0, "--training.max-eval-tokens", 1, "--threads", 1)
        words = ("--model.memory-length", MODELS[name], "--seed", seed, "--training.steps", steps)
        before = processor_seconds()
        call("pretrain", recipe, "--data", shards, "--out", run, *words, *quiet)
        path.write_text(str(processor_seconds() - before))
    return float(path.read_text())


def processor_seconds() -> float:
    """Return the processor time of all processes that this one has started and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(run: Path, books: list[np.ndarray]) -> np.ndarray:
    """Return the loss of every token of the books, in nats: [books, BOOK_TOKENS]."""
    return -np.stack(bertie.load(run, threads=1).token_model().next_log_probabilities(books)).astype(np.float64)


def compared(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean difference over seeds, and its 95 % confidence interval, if there are two seeds or more."""
    far = {(row["model"], row["seed"]): row["far"] for row in rows}
    each = np.array([far["memory", seed] - far["none", seed] for seed in sorted({row["seed"] for row in rows})])
    interval: list[float] | None = None
    if len(each) > 1:
        half = stats.t.ppf(0.975, len(each) - 1) * each.std(ddof=1) / np.sqrt(len(each))
        interval = [float(each.mean() - half), float(each.mean() + half)]
    return {"differences": each.tolist(), "difference": float(each.mean()), "interval": interval}


def call(*words: object) -> None:
    """Run a command of bertie."""
    subprocess.run([sys.executable, "-m", "bertie", *map(str, words)], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
