"""Vocabulary and shards of a text, made again and again: over workers, hash seeds, executors, kills and versions of Python.

    python tests/long/same_bytes.py TEXT… --runs 24 [--python PYTHON …] [--ray]

Pieces of work are made small, so that a few megabytes are many. Every fourth run is killed three times on its way. Other
interpreters need bertie's dependencies, without torch. Prints every run; fails where one gives other bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"
CHILD = """
import sys
from pathlib import Path
from bertie.text import duplicates, sources
from bertie.text.executors import executor
from bertie.text.prepare import prepare
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import train_tokenizer
sources.MIN_GROUP_BYTES = duplicates.PART_BYTES = 100_000
out, kind, workers, criterion, *texts = sys.argv[1:]
where = executor(kind, int(workers), "local")
if not Path(out, "tokenizer").exists():
    train_tokenizer(texts, Path(out, "tokenizer"), vocab_size=8000, exact=False, criterion=criterion, executor=where)
made = Tokenizer.load(Path(out, "tokenizer"))
prepare(texts, made, Path(out, "shards"), shard_bytes=1_000_000, eval_share=0.05, executor=where)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--python", nargs="*", default=[])
    parser.add_argument("--ray", action="store_true")
    args = parser.parse_args()
    ways = list(product([sys.executable, *args.python], range(1, 5)))
    found: dict[str, set[str]] = {}
    for run in range(args.runs):
        python, workers = ways[run % len(ways)]
        criterion = ("frequency", "likelihood")[run // len(ways) % 2]
        kind = "ray" if args.ray and python == sys.executable and run % 3 == 2 else "local"
        started = time.monotonic()
        kills = 3 if run % 4 == 3 and kind == "local" else 0
        digest = made(python, ["-c", CHILD, "OUT", kind, str(workers), criterion, *args.texts], run, kills)
        found.setdefault(criterion, set()).add(digest)
        print(
            f"{run + 1} {python} {kind} {workers} {criterion} {kills} kills {time.monotonic() - started:.0f} s {digest}",
            flush=True,
        )
    if any(len(digests) > 1 for digests in found.values()):
        sys.exit("not the same bytes")


def made(python: str, words: list[str], run: int, kills: int) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": str(run), "PYTHONPATH": str(SOURCE)}
    with tempfile.TemporaryDirectory() as folder:
        command = [python, *(folder if word == "OUT" else word for word in words)]
        for kill in range(1, kills + 1):
            _killed(command, environment, Path(folder, ".shards.tmp-work"), kill * 20)
        subprocess.run(command, env=environment, check=True, stderr=subprocess.DEVNULL)
        digest = hashlib.sha256()
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                digest.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
        return digest.hexdigest()[:16]


def _killed(command: list[str], environment: dict[str, str], work: Path, files: int) -> None:
    """End it, with no warning, once it has written so many files."""
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and sum(path.is_file() for path in list(work.rglob("*"))) < files:
            time.sleep(0.01)
        process.kill()


if __name__ == "__main__":
    main()
