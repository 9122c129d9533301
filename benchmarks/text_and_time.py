"""How much text, how much time: the held-out loss of `modern-mini` by the size of the text and the steps of the training.

    python benchmarks/text_and_time.py run english TEXT.jsonl --work FOLDER [--megabytes 1 5 25] [--threads 1]
    python benchmarks/text_and_time.py run python --work FOLDER [--megabytes 1 5 25] [--threads 1]
    python benchmarks/text_and_time.py show --work FOLDER --out docs/text-and-time

`run`: for each size of text, one run with two layers and a constant learning rate. For each budget, a branch of it,
in which the other layers join and the rate falls to 0: the second half of the steps, as in the recipe. The text is
the first documents of TEXT in a random order, or, for python, the source of Python's standard library; the vocabulary
of 8,000 entries is trained on the same text. The held-out text is the same for all sizes. Its loss has BERT's masks
(15 %, 80/10/10), in nats per byte of the masked tokens, since vocabularies differ.

`show`: FOLDER/*.json as a table, and OUT.json and OUT.svg. Finished parts are not repeated.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import resource
import subprocess
import sys
import sysconfig
from itertools import accumulate
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from bertie.base import storage
from bertie.checkpoints.find import list_checkpoints
from bertie.corpus.shards import open_shards
from curves import GREY
from results import environment
from speedrun import held_out_loss

BUDGETS = (300, 1_000, 3_000, 10_000)  # steps of 2,048 tokens
STABLE = 0.5  # share of a budget before the rate falls
SHALLOW = 'extends = "modern-mini"\nphases = []\n[model]\nnum_hidden_layers = 2\n'
WARMUP = 60  # steps
EVERY = 50  # steps between checkpoints: each budget's branch begins at one
ENTRIES = 8000
HELD_OUT = 1_000_000  # bytes
MANY = 1_000_000  # never
SETTINGS = {"eval-every": MANY, "checkpoint-every": MANY}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "show"])
    parser.add_argument("source", nargs="*", help="english TEXT.jsonl, or python")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[1, 5, 25])
    parser.add_argument("--budgets", type=int, nargs="+", default=BUDGETS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.what == "show":
        show([json.loads(path.read_text()) for path in sorted(args.work.glob("*-*.json"))], args.out)
        return
    language, *files = args.source
    args.work.mkdir(parents=True, exist_ok=True)
    for megabytes in args.megabytes:
        measure(language, files, megabytes, args)


def measure(language: str, files: list[str], megabytes: int, args: argparse.Namespace) -> None:
    """Train with one size of text, and write the losses to WORK/LANGUAGE-MEGABYTES.json."""
    name = f"{language}-{megabytes}"
    folder, result = args.work / name, args.work / f"{name}.json"
    train, dev = prepared(language, files, megabytes, folder)
    stable, shards = folder / "stable", open_shards(dev)
    last = int(STABLE * max(args.budgets))
    recipe = folder / "shallow.toml"
    recipe.write_text(SHALLOW)
    used = pretrain(
        *(recipe, train, stable, last, args.threads, {"warmup": WARMUP / last, "decay": 0}),
        {"checkpoint-every": EVERY, "keep-checkpoints": MANY},
    )
    checkpoints = {int(path.name.removeprefix("step-")): path for path in list_checkpoints(stable)}
    with (args.work / f"{language}-dev.jsonl").open(encoding="utf-8") as lines:
        size = sum(len(json.loads(line)["text"].encode()) for line in lines)
    tokens_per_byte = (int(shards.eval.shard_starts[-1]) + shards.tokens) / size
    points: list[dict[str, float]] = []
    for budget in args.budgets:
        start, branch = int(STABLE * budget), folder / f"branch-{budget}"
        begin = ("--init-from", checkpoints[start], "--init-layers", 4, "--init-optimizer", "keep", "--seed", 1)
        seconds = pretrain(
            "modern-mini", train, branch, budget - start, args.threads, {"warmup": 0, "decay": 1}, {}, *begin
        )
        nats = held_out_loss(branch, shards, "documents")
        epochs = 2048 * budget / open_shards(train).tokens
        cost = {"steps": budget, "seconds": used * start / last + seconds, "epochs": epochs}
        points.append({**cost, "nats": nats, "nats_per_byte": nats * tokens_per_byte})
        print(name, points[-1], flush=True)
    about = {"language": language, "megabytes": megabytes, "environment": environment(args.threads)}
    storage.write_json(result, {**about, "points": points})


def pretrain(
    recipe: str | Path,
    data: Path,
    out: Path,
    steps: int,
    threads: int,
    schedule: dict[str, float],
    settings: dict[str, Any],
    *words: object,
) -> float:
    """Train a run, unless it is finished. Return the processor seconds that it took."""
    if not (log := out.with_suffix(".seconds")).exists():
        flags = {f"training.{key}": value for key, value in (SETTINGS | settings | {"steps": steps}).items()}
        flags |= {f"schedule.{key}": value for key, value in schedule.items()} | {"threads": threads}
        pairs = [str(part) for key, value in flags.items() for part in (f"--{key}", value)]
        command = ["-m", "bertie", "pretrain", recipe, "--data", data, "--out", out, *words, *pairs]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *map(str, command)], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        log.write_text(str(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    return float(log.read_text())


def prepared(language: str, files: list[str], megabytes: int, folder: Path) -> tuple[Path, Path]:
    """Return the shards of a text of a size, and those of the held-out text, with the same vocabulary."""
    dev_file, train_file = folder.parent / f"{language}-dev.jsonl", folder / "train.jsonl"
    if not (folder / "dev").exists():
        texts = python_files() if language == "python" else documents(files)
        random.Random(0).shuffle(texts)
        dev = cut(texts, HELD_OUT)
        folder.mkdir(exist_ok=True)
        for file, chosen in ((dev_file, dev), (train_file, cut(texts[len(dev) :], 1_000_000 * megabytes))):
            storage.write_json_lines(file, ({"text": text} for text in chosen))
        tokenizer = folder / "tokenizer"
        bertie("tokenizer", "train", train_file, "--vocab-size", ENTRIES, "--out", tokenizer)
        for name, file, share in (("train", train_file, 0.02), ("dev", dev_file, 0.9)):
            words = ("--tokenizer", tokenizer, "--eval-share", share, "--duplicates", "keep")
            bertie("prepare", file, *words, "--out", folder / name)
    return folder / "train", folder / "dev"


def python_files() -> list[str]:
    """Return the source files of Python's standard library."""
    library = Path(sysconfig.get_path("stdlib"))
    paths = sorted(path for path in library.rglob("*.py") if "site-packages" not in path.parts)
    return [path.read_text(encoding="utf-8", errors="ignore") for path in paths]


def documents(files: list[str]) -> list[str]:
    found = list[str]()
    for file in files:
        with lzma.open(file, "rt", encoding="utf-8") if file.endswith(".xz") else open(file, encoding="utf-8") as lines:
            found += [json.loads(line)["text"] for line in lines]
    return found


def cut(texts: list[str], size: int) -> list[str]:
    """Return the first texts of a list, of about `size` bytes together."""
    sizes = accumulate(len(text.encode()) for text in texts)
    return [text for text, end in zip(texts, sizes, strict=True) if end <= size]


def bertie(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "bertie", *map(str, words)], check=True)


def show(found: list[dict[str, Any]], out: Path) -> None:
    """Print all losses, write them to OUT.json, and draw them to OUT.svg: one curve for each size of text."""
    print("| Text | " + " | ".join(f"{point['steps']:,} steps" for point in found[0]["points"]) + " |")
    print("|---" * (1 + len(found[0]["points"])) + "|")
    languages = sorted({row["language"] for row in found})
    style = dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor"), GREY)
    with plt.rc_context({**style, "svg.hashsalt": "text", "svg.fonttype": "none", "font.family": "sans-serif"}):  # pyright: ignore[reportArgumentType]
        figure, plots = plt.subplots(
            1, len(languages), figsize=(4.5 * len(languages), 3.4), layout="constrained", squeeze=False
        )
        for row in sorted(found, key=lambda row: (row["language"], row["megabytes"])):
            points, name = row["points"], f"{row['megabytes']} MB"
            cells = " | ".join(f"{point['nats_per_byte']:.3f}" for point in points)
            print(f"| {row['language']}, {name} | {cells} |")
            axes = plots[0][languages.index(row["language"])]
            axes.plot(
                [point["steps"] for point in points],
                [point["nats_per_byte"] for point in points],
                label=name,
                marker=".",
            )
            axes.set(
                title=row["language"], xscale="log", xlabel="steps of 2,048 tokens", ylabel="held out, nats per byte"
            )
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend(frameon=False)
        figure.savefig(out.with_suffix(".svg"), transparent=True, metadata={"Date": None})
    storage.write_json(out.with_suffix(".json"), found)


if __name__ == "__main__":
    main()
