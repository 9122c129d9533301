"""What a memory is worth to Transformer-XL: the loss far inside of held-out books, with and without it, at equal time.

    python benchmarks/memory.py gutenberg.jsonl.xz --work FOLDER --out FILE.json
        [--minutes 8] [--seeds 0 1 2] [--books 400] [--eval-books 24] [--vocab-size 8000] [--threads 2]

Prepares books, and trains `mini-transformer-xl` with `--budget`, for each seed twice: with its memory of 128 tokens, and with
memory_length = 0, which has the same segments of 128 tokens. Each run gets the same minutes of the same processor. Then both
read the same held-out books, cut to 4,096 tokens, as in their training: with the memory through the whole book, or without.

Prints the loss of tokens by their place in the book, and the difference with and without a memory for those after the first
512: its mean over seeds and books, and a 95 % confidence interval of Student's t over the seeds. A finished run is not repeated.
"""

from __future__ import annotations

import argparse
import json
import lzma
import subprocess
import sys
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

import bertie
from bertie import storage
from bertie.text.shards import open_shards
from bertie.training.run_folder import read_metrics
from results import environment

FAR = 512  # tokens after so many count
BOOK_TOKENS = 4096
PLACES = (0, 128, FAR, 1024, 2048, BOOK_TOKENS)
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
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    shards = prepared(args)
    books = held_out(shards, args)
    rows = list[dict[str, Any]]()
    for seed in args.seeds:
        for name, memory in MODELS.items():
            run = args.work / f"{name}-{seed}-{args.minutes:g}m"
            if not (run / "manifest.json").exists():
                words = ("--model.memory-length", memory, "--seed", seed, "--budget", f"{args.minutes * 60:g}s")
                quiet = ("--training.eval-every", 0, "--training.max-eval-tokens", 1, "--threads", args.threads)
                call("pretrain", "mini-transformer-xl", "--data", shards, "--out", run, *words, *quiet)
            losses = measured(run, books, args.threads)
            tokens = read_metrics(run, "train")[-1]["tokens"]
            row = {"model": name, "seed": seed, "million_tokens": tokens / 1e6, "far": float(losses[:, FAR:].mean())}
            spans = pairwise(PLACES)
            row |= {
                "places": {f"{a}-{b}": float(losses[:, a:b].mean()) for a, b in spans},
                "books": losses[:, FAR:].mean(1).tolist(),
            }
            rows.append(row)
            print({**row, "books": len(books)}, flush=True)
    result = {"environment": environment(args.threads), "minutes": args.minutes, "runs": rows} | compared(rows)
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


def measured(run: Path, books: list[np.ndarray], threads: int) -> np.ndarray:
    """Return the loss of every token of the books, in nats: [books, BOOK_TOKENS]."""
    return -np.stack(bertie.load(run, threads=threads).token_model().next_log_probabilities(books)).astype(np.float64)


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
