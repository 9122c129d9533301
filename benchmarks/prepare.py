"""Speed of corpus preparation and vocabulary training: bertie and common alternatives, on the same files and cores.

    python benchmarks/prepare.py FILE.jsonl.xz … --work FOLDER --out FILE.json [--rounds 3] [--what prepare,vocabulary]

prepare     bertie      `bertie prepare`: reading, duplicates, sentences, tokens, shards with checksums
            tokenizers  reading and `encode_batch_fast` of the same sentences; splitting into sentences does not count
            datasets    `load_dataset` and two `map`s as in run_mlm.py of transformers (tokenize, then rows of 512)
vocabulary  bertie      `bertie tokenizer train`, 30,000 entries
            tokenizers  reading and `train_from_iterator` of its WordPiece trainer, unchanged

The alternatives run in turn, each in its own process. Memory is the largest resident set of that process or of one of
its children.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from bertie.base import runtime, storage
from bertie.corpus.sentences import split_sentences
from bertie.tokenizers.tokenizer import NormalizerOptions, Tokenizer
from results import environment

CHARACTERS = 2_000_000  # per call of the peer
HELD_OUT = 50  # one document in so many measures the vocabularies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--what", default="vocabulary,prepare")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(globals()[args.one](args.files, args.work)))
        return
    args.work.mkdir(parents=True, exist_ok=True)
    megabytes = sum(len(json.loads(line)["text"].encode()) for line in _lines(args.files)) / 1e6
    told: dict[str, Any] = {"environment": environment(runtime.use_threads()), "megabytes": megabytes}
    for what in args.what.split(","):
        told[what] = compare(what, args)
        storage.write_json(args.out, told)
    print(json.dumps(told, indent=2))


def compare(what: str, args: argparse.Namespace) -> dict[str, Any]:
    """Measure seconds and memory of each alternative, in turn. Return them with ratios of medians and of rounds."""
    ways = {"prepare": ("tokenizers", "bertie", "datasets"), "vocabulary": ("tokenizers", "bertie")}[what]
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for _ in range(args.rounds):
        for way in ways:
            runs[way].append(_measured(f"{what}_{way}", args))
            print(what, way, runs[way][-1], file=sys.stderr, flush=True)
    seconds = {way: median(run["seconds"] for run in found) for way, found in runs.items()}
    ratios = {
        way: {
            "of medians": seconds[way] / seconds["bertie"],
            "of rounds": [p["seconds"] / o["seconds"] for p, o in zip(runs[way], runs["bertie"], strict=True)],
        }
        for way in ways
        if way != "bertie"
    }
    return {"seconds": seconds, "times bertie's": ratios, "runs": runs}


def _measured(name: str, args: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, __file__, *map(str, args.files), "--work", str(args.work), "--out", "-", "--one", name]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def _timed(work: Callable[[], Any]) -> dict[str, float]:
    started = time.monotonic()
    more = work()
    usages = [resource.getrusage(who).ru_maxrss / 1e6 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {"seconds": time.monotonic() - started, "gigabytes": max(usages), **(more if isinstance(more, dict) else {})}


def _lines(files: list[Path]) -> Iterator[bytes]:
    for file in files:
        with lzma.open(file) as lines:
            yield from lines


def _bertie(*words: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "bertie", *map(str, words)], check=True, stdout=sys.stderr)


def vocabulary_bertie(files: list[Path], work: Path) -> dict[str, float]:
    shutil.rmtree(work / "tokenizer", ignore_errors=True)
    told = _timed(lambda: _bertie("tokenizer", "train", *files, "--out", work / "tokenizer"))
    return told | _coverage(Tokenizer.load(work / "tokenizer"), files)


def vocabulary_tokenizers(files: list[Path], work: Path) -> dict[str, float]:  # noqa: ARG001 - same signature as the others
    import tokenizers
    from tokenizers import models, pre_tokenizers, trainers

    backend = tokenizers.Tokenizer(models.WordPiece({}, unk_token="[UNK]"))
    backend.normalizer = NormalizerOptions().normalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=30_000, special_tokens=special, show_progress=False)
    texts = (json.loads(line)["text"] for line in _lines(files))
    told = _timed(lambda: backend.train_from_iterator(texts, trainer))
    vocabulary = backend.get_vocab()
    return told | _coverage(Tokenizer.build(sorted(vocabulary, key=vocabulary.__getitem__)), files)


def _coverage(tokenizer: Tokenizer, files: list[Path]) -> dict[str, float]:
    """Return the subwords per word on every HELD_OUT-th document."""
    texts = [json.loads(line)["text"] for number, line in enumerate(_lines(files)) if number % HELD_OUT == 0]
    words = Tokenizer.build(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])  # every word is one token, [UNK]
    pieces, whole = (sum(map(len, each.encode(texts))) for each in (tokenizer, words))
    return {"pieces_per_word": pieces / whole}


def prepare_bertie(files: list[Path], work: Path) -> dict[str, float]:
    shutil.rmtree(work / "shards", ignore_errors=True)
    flags = ("--tokenizer", work / "tokenizer", "--out", work / "shards")
    return _timed(lambda: _bertie("prepare", *files, *flags))


def prepare_tokenizers(files: list[Path], work: Path) -> dict[str, float]:
    backend = Tokenizer.load(work / "tokenizer").backend.engine
    seconds = 0.0
    started = time.monotonic()
    documents: list[str] = []
    for line in chain(_lines(files), [None]):
        if line:
            documents.append(json.loads(line)["text"])
        if not line or sum(map(len, documents)) > CHARACTERS:
            seconds += time.monotonic() - started
            cut = [sentence for text in documents for sentence in split_sentences(text)]
            started = time.monotonic()
            backend.encode_batch_fast(cut, add_special_tokens=False)
            documents = []
    seconds += time.monotonic() - started
    return {"seconds": seconds, "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6}


def prepare_datasets(files: list[Path], work: Path) -> dict[str, float]:
    cache = work / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    os.environ["HF_DATASETS_CACHE"] = str(cache)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import datasets
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(work / "tokenizer")
    length = 512

    def tokenize(rows: dict[str, list[str]]) -> Any:
        return tokenizer(rows["text"], return_special_tokens_mask=True)

    def rows_of(found: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        joined = {name: [i for ids in parts for i in ids] for name, parts in found.items()}
        total = len(joined["input_ids"]) // length * length
        return {name: [ids[i : i + length] for i in range(0, total, length)] for name, ids in joined.items()}

    def work_() -> None:
        loaded = [
            datasets.load_dataset("json", data_files=str(file), split="train").select_columns("text") for file in files
        ]
        data = datasets.concatenate_datasets(loaded)
        columns = data.column_names
        data = data.map(tokenize, batched=True, num_proc=2, remove_columns=columns)
        data.map(rows_of, batched=True, num_proc=2)

    return _timed(work_)


if __name__ == "__main__":
    main()
