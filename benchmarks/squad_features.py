"""Speed of SQuAD features on one core: `Span.encode`, and `datasets.map` with the functions of run_qa.py.

    python benchmarks/squad_features.py --vocab vocab.txt --out FILE.json FILE.json … [--rounds 3]

bertie  questions → windows of 384 tokens with stride 128, targets, offsets and possible answer starts
peer    a fast tokenizer on pairs, padded windows of 384 tokens that overlap by 128, in batches of 1,000; for file names
        with "train" start and end of the answer, for others offsets of the context and example ids, as in that script

Reading files does not count for either side. Each side runs in its own process, bound to the same core, in turn. Time
is processor time of all threads, which other work on the machine affects little. Wall-clock time is recorded too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from bertie.base import storage
from bertie.examples.left_out import valid_examples
from bertie.examples.squad import Question
from bertie.tasks.span import Span
from bertie.tokenizers.tokenizer import Tokenizer
from results import environment

LENGTH, STRIDE = 384, 128
WAYS = ("bertie", "peer")
Columns = dict[str, list[Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--vocab", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        way, folder = args.one
        print(json.dumps(globals()[way](args.files[0], Path(folder))))
        return
    told: dict[str, Any] = {"environment": environment(1), "length": LENGTH, "stride": STRIDE, "files": {}}
    told["environment"]["versions"] |= {name: metadata.version(name) for name in ("datasets", "transformers")}
    with tempfile.TemporaryDirectory() as folder:
        words = args.vocab.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        Tokenizer.build(words).save(Path(folder) / "tokenizer")
        for path in args.files:
            told["files"][path.name] = compare(path, folder, args)
            storage.write_json(args.out, told)
    print(json.dumps(told, indent=2))


def compare(path: Path, folder: str, args: argparse.Namespace) -> dict[str, Any]:
    """Measure features per second of each side, in turn. Return them with ratios of medians and of rounds."""
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(args.rounds):
        for way in WAYS:
            command = [sys.executable, __file__, str(path), "--vocab", "-", "--out", "-", "--one", way, folder]
            usual = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            env = os.environ | usual | {"HF_DATASETS_CACHE": f"{folder}/cache"}
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env)
            runs[way].append(json.loads(done.stdout.splitlines()[-1]))
            print(path.name, way, runs[way][-1], file=sys.stderr, flush=True)
    rates = {way: [run["features"] / run["processor_seconds"] for run in found] for way, found in runs.items()}
    return {
        "features a second": {way: median(found) for way, found in rates.items()},
        "times the peer's": {
            "of medians": median(rates["bertie"]) / median(rates["peer"]),
            "of rounds": [a / b for a, b in zip(rates["bertie"], rates["peer"], strict=True)],
        },
        "runs": runs,
    }


def _timed(questions: list[Question], work: Callable[[], int]) -> dict[str, float]:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    wall, processor = time.monotonic(), time.process_time()
    features = work()
    seconds = {"seconds": time.monotonic() - wall, "processor_seconds": time.process_time() - processor}
    return {"questions": len(questions), "features": features, **seconds}


def _questions(path: Path) -> list[Question]:
    return valid_examples(Span().reader.read(path), str(path))


def bertie(path: Path, folder: Path) -> dict[str, float]:
    questions, tokenizer = _questions(path), Tokenizer.load(folder / "tokenizer")
    tokenizer.encode_with_offsets(["once"])
    return _timed(questions, lambda: len(Span(doc_stride=STRIDE).encode(questions, tokenizer, LENGTH)))


def peer(path: Path, folder: Path) -> dict[str, float]:
    import datasets
    import transformers

    datasets.disable_progress_bars()
    questions = _questions(path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "tokenizer")
    tokenizer("once")
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps(_row(question)) + "\n" for question in questions))
    data = datasets.load_dataset("json", data_files=str(rows), split="train", cache_dir=str(folder / "cache"))
    features = _training_features if "train" in path.name else _features

    def work() -> int:
        made = data.map(
            lambda batch: features(tokenizer, batch),
            batched=True,
            remove_columns=data.column_names,
            load_from_cache_file=False,
        )
        return len(made)

    return _timed(questions, work)


def _row(question: Question) -> dict[str, Any]:
    answers = question.answers or ()
    said = {"text": [each.text for each in answers], "answer_start": [each.start for each in answers]}
    return {"id": question.id, "question": question.question, "context": question.context, "answers": said}


def _windows(tokenizer: Any, batch: Columns) -> Any:
    return tokenizer(
        [question.lstrip() for question in batch["question"]],
        batch["context"],
        truncation="only_second",
        max_length=LENGTH,
        stride=STRIDE,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        padding="max_length",
    )


def _features(tokenizer: Any, batch: Columns) -> Any:
    """Add example ids, and keep the offsets of context tokens only."""
    windows = _windows(tokenizer, batch)
    examples = windows.pop("overflow_to_sample_mapping")
    windows["example_id"] = [batch["id"][example] for example in examples]
    for number, offsets in enumerate(windows["offset_mapping"]):
        sides = windows.sequence_ids(number)
        windows["offset_mapping"][number] = [
            pair if side == 1 else None for pair, side in zip(offsets, sides, strict=True)
        ]
    return windows


def _training_features(tokenizer: Any, batch: Columns) -> Any:
    """Add the first and last token of the answer in each window, by a search from both ends of the context."""
    windows = _windows(tokenizer, batch)
    examples, all_offsets = windows.pop("overflow_to_sample_mapping"), windows.pop("offset_mapping")
    windows["start_positions"], windows["end_positions"] = [], []
    for number, offsets in enumerate(all_offsets):
        start = end = windows["input_ids"][number].index(tokenizer.cls_token_id)
        answers = batch["answers"][examples[number]]
        if answers["answer_start"]:
            begins = answers["answer_start"][0]
            stops = begins + len(answers["text"][0])
            sides = windows.sequence_ids(number)
            low = sides.index(1)
            high = len(sides) - 1
            while sides[high] != 1:
                high -= 1
            if offsets[low][0] <= begins and stops <= offsets[high][1]:
                while low < len(offsets) and offsets[low][0] <= begins:
                    low += 1
                while offsets[high][1] >= stops:
                    high -= 1
                start, end = low - 1, high + 1
        windows["start_positions"].append(start)
        windows["end_positions"].append(end)
    return windows


if __name__ == "__main__":
    main()
