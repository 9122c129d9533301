"""One entry of the record: a model from a stated text in a stated processor time, and what it has learned.

    python benchmarks/record/record.py benchmarks/record/entries/modern-mini.toml --text TEXT --zorro ZORRO --glue GLUE \\
        --work FOLDER [--minutes 12] [--threads 1] [--seeds 0 1 2] [--tasks SST-2 MRPC RTE QNLI CoLA STS-B]
    python benchmarks/record/record.py table

README.md has the rules. TEXT: a folder of NAME.txt and NAME-dev.txt, such as a sample of BabyLM's text. ZORRO: a folder of files
with pairs of lines, the wrong sentence first. GLUE: a folder of GLUE's tasks. A finished part is not repeated. The result goes
into results.json, which has numbers only, and the rank of the entry is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import tomli_w

import bertie
from bertie.base import config, runtime, storage
from bertie.corpus.sentences import split_sentences
from bertie.corpus.shards import open_shards
from bertie.predict.likelihood import perplexity

sys.path.insert(0, str(Path(__file__).parents[1]))
from results import environment
from speedrun import held_out_loss

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
LINES = 40  # of a document
ENTRIES = 8000  # of the vocabulary
PAIRS = 200  # of each phenomenon of Zorro
REFERENCE = (
    70e9  # fp32 operations per second of one thread, in products of matrices: a core of an AMD EPYC with AVX-512
)
DEV_SHARE = 0.98  # of the documents of the dev text: shards need some in both splits
TASKS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "SST-2": ("classify", "accuracy", {"max_train_examples": 8000, "training": {"epochs": 2}}),
    "MRPC": ("classify", "f1", {"training": {"epochs": 3}}),
    "RTE": ("classify", "accuracy", {"training": {"epochs": 4}}),
    "QNLI": ("classify", "accuracy", {"max_train_examples": 8000, "training": {"epochs": 2}}),
    "CoLA": ("classify", "matthews", {"training": {"epochs": 3}}),
    "STS-B": ("regress", "spearman", {"training": {"epochs": 4}}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("entry", help="a TOML file, or: table")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--zorro", type=Path)
    parser.add_argument("--glue", type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--minutes", type=float, default=12, help="of processor time on the reference machine")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    args = parser.parse_args()
    if args.entry == "table":
        print(table(known()))
        return
    if None in (args.text, args.work):
        parser.error("needs --text and --work")
    entry = config.read(Path(args.entry))
    train, dev = prepared(args.text, args.work)
    seconds = 60 * args.minutes * REFERENCE / args.threads / rate()
    for seed in args.seeds:
        run = args.work / f"{entry['name']}-{seed}-{args.minutes:g}m"
        used = trained(entry, train, run, seconds, seed, args.threads)
        row = {"entry": entry["name"], "minutes": args.minutes, "threads": args.threads, "seed": seed, "used": used}
        row |= {
            "about": entry["about"],
            "machine": environment(args.threads),
            **judged(run, dev, args),
        }
        storage.write_json(RESULTS, [*(other for other in known() if not same(other, row)), row])
        print(row, flush=True)
    rows = known()
    print(table(rows))
    print(
        f"{entry['name']} has rank {[*ranked(rows, args.minutes)].index(entry['name']) + 1} of {args.minutes:g} minutes"
    )


def known() -> list[dict[str, Any]]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else []


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one[key] == other[key] for key in ("entry", "minutes", "threads", "seed"))


def rate() -> float:
    """Return the operations per second of one thread, in fp32."""
    runtime.use_threads(1)
    return runtime.matrix_rate("fp32", runtime.device())


def prepared(text: Path, work: Path) -> tuple[Path, Path]:
    """Return the shards of the training text and of the dev text, with one vocabulary."""
    work.mkdir(parents=True, exist_ok=True)
    files = {name: work / f"{name}.jsonl" for name in ("train", "dev")}
    for name, file in files.items():
        if not file.exists():
            chosen = [path for path in sorted(text.glob("*.txt")) if path.stem.endswith("-dev") == (name == "dev")]
            storage.write_json_lines(file, ({"text": each} for path in chosen for each in documents(path)))
    if not (work / "tokenizer").exists():
        command("tokenizer", "train", files["train"], "--vocab-size", ENTRIES, "--out", work / "tokenizer")
    for name, share in (("train", 0.02), ("dev", DEV_SHARE)):
        if not (work / name).exists():
            words = ("--tokenizer", work / "tokenizer", "--eval-share", share, "--duplicates", "keep")
            command("prepare", files[name], *words, "--out", work / name)
    return work / "train", work / "dev"


def documents(path: Path) -> Iterator[str]:
    """Yield documents of LINES lines, each with a sentence: the samples of BabyLM's text have no line ends."""
    lines = split_sentences(path.read_text(encoding="utf-8"))
    yield from ("\n".join(lines[start : start + LINES]) for start in range(0, len(lines), LINES))


def trained(entry: dict[str, Any], shards: Path, run: Path, seconds: float, seed: int, threads: int) -> float:
    """Train the entry, unless it is done. Return the processor seconds that it took."""
    if not (log := run.with_suffix(".json")).exists():
        recipe = run.with_suffix(".toml")
        recipe.write_text(tomli_w.dumps(entry.get("recipe", {})))
        places = {"shards": shards, "out": run, "seconds": f"{seconds:.0f}", "seed": seed, "threads": threads}
        places |= {"recipe": recipe, "here": HERE}
        words = [word.format(**places) for word in entry["command"]]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *words], check=True, env=os.environ | {"OMP_NUM_THREADS": str(threads)})
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        storage.write_json(log, {"used": round(used, 1), "seconds": round(seconds, 1)})
    return json.loads(log.read_text())["used"]


def judged(folder: Path, dev: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Return what a model has learned: its loss, minimal pairs, and tasks."""
    scores: dict[str, Any] = {}
    model, shards = bertie.load(folder), open_shards(dev)
    if model.model.encoder.config.causal:
        texts = [json.loads(line)["text"][:400] for line in (args.work / "dev.jsonl").open(encoding="utf-8")][:1000]
        total = float(model.pseudo_log_likelihood(texts).sum())
        scores["nats_per_byte"] = -total / sum(len(text.encode()) for text in texts)
        scores["perplexity"] = perplexity(total, sum(map(len, shards.tokenizer.encode(texts))))
    else:
        scores["loss"] = held_out_loss(folder, shards, "documents")
    if args.zorro:
        groups = bertie.minimal_pairs(model, zorro(args.zorro, args.work))["groups"]
        scores["zorro"] = fmean(group["accuracy"] for group in groups if group["kind"] == "UID")
    if args.glue:
        scores["tasks"] = {name: tuned(folder, name, args) for name in args.tasks}
    return scores


def zorro(folder: Path, work: Path) -> Path:
    """Write the pairs as a file of minimal pairs."""
    out = work / "zorro.jsonl"
    rows: list[dict[str, str]] = []
    for path in sorted(folder.glob("*.txt")):
        lines = path.read_text(encoding="utf-8").splitlines()[: 2 * PAIRS]
        rows += [{"sentence_bad": bad, "sentence_good": good, "UID": path.stem} for bad, good in pairwise(lines)][::2]
    storage.write_json_lines(out, rows)
    return out


def tuned(model: Path, name: str, args: argparse.Namespace) -> float:
    """Fine-tune a model on a task, unless it is done, and return its main score on the dev set."""
    kind, metric, settings = TASKS[name]
    out = model / "tasks" / name
    if not (scores := out / "dev" / "scores.json").exists():
        recipe = out.with_name(f"{name}.toml")
        recipe.parent.mkdir(exist_ok=True)
        recipe.write_text(tomli_w.dumps({"extends": kind, **settings}))
        train = next(path for path in ("train.tsv", "train-subset.tsv") if (args.glue / name / path).exists())
        files = ("--train", args.glue / name / train, "--dev", args.glue / name / "dev.tsv")
        command("finetune", recipe, *files, "--model", model, "--out", out, "--threads", args.threads)
    return json.loads(scores.read_text())["scores"][metric]


def command(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "bertie", *map(str, words)], check=True)


def mean_of_tasks(row: dict[str, Any]) -> float | None:
    return fmean(row["tasks"].values()) if row.get("tasks") else None


def ranked(rows: list[dict[str, Any]], minutes: float) -> dict[str, list[dict[str, Any]]]:
    """Return the runs of each entry with a budget, the entry with the highest mean of Zorro and the tasks first."""
    entries: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["minutes"] == minutes:
            entries.setdefault(row["entry"], []).append(row)

    def score(runs: list[dict[str, Any]]) -> float:
        parts = [[row.get("zorro"), mean_of_tasks(row)] for row in runs]
        return fmean(part for row in parts for part in row if part is not None)

    return dict(sorted(entries.items(), key=lambda item: -score(item[1])))


def table(rows: list[dict[str, Any]]) -> str:
    """Return all entries in Markdown: means over the seeds, with their standard deviation."""
    lines = ["| minutes | rank | entry | loss | nats per byte | Zorro, % | tasks, % | seeds |", "|" + "---|" * 8]
    for minutes in sorted({row["minutes"] for row in rows}):
        for rank, (name, runs) in enumerate(ranked(rows, minutes).items(), 1):
            cells = [
                shown([row.get("loss") for row in runs], 1),
                shown([row.get("nats_per_byte") for row in runs], 1),
                shown([row.get("zorro") for row in runs], 100),
                shown([mean_of_tasks(row) for row in runs], 100),
            ]
            lines.append(f"| {minutes:g} | {rank} | {name} | {' | '.join(cells)} | {len(runs)} |")
    return "\n".join(lines)


def shown(values: list[float | None], factor: int) -> str:
    numbers = [factor * value for value in values if value is not None]
    if not numbers:
        return "–"
    digits = 1 if factor == 100 else 3
    spread = f" ± {stdev(numbers):.{digits}f}" if len(numbers) > 1 else ""
    return f"{fmean(numbers):.{digits}f}{spread}"


if __name__ == "__main__":
    main()
