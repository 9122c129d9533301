"""Train a vocabulary and prepare shards repeatedly, and check that every run gives the same bytes.

    python tests/long/same_bytes.py TEXT… --runs 24 [--python PYTHON …] [--ray]

Runs vary in the number of workers, the hash seed, the executor and the Python version. Every fourth run is killed three
times before it may finish. Work items are small, so a few megabytes of text suffice. Other interpreters (--python) need
bertie's dependencies, without torch. Prints one line per run; fails if runs differ.
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
from bertie.files import sources
from bertie.corpus import duplicates
from bertie.corpus.executors import make_executor
from bertie.corpus.prepare import prepare
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.corpus.vocabulary import train_tokenizer
sources.MIN_GROUP_BYTES = duplicates.PART_BYTES = 100_000
out, kind, workers, criterion, *texts = sys.argv[1:]
executor = make_executor(kind, int(workers), "local")
if not Path(out, "tokenizer").exists():
    train_tokenizer(texts, Path(out, "tokenizer"), vocab_size=8000, criterion=criterion, executor=executor)
tokenizer = Tokenizer.load(Path(out, "tokenizer"))
prepare(texts, tokenizer, Path(out, "shards"), shard_bytes=1_000_000, eval_share=0.05, executor=executor)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--python", nargs="*", default=[])
    parser.add_argument("--ray", action="store_true")
    args = parser.parse_args()
    variants = list(product([sys.executable, *args.python], range(1, 5)))
    digests: dict[str, set[str]] = {}
    for run in range(args.runs):
        python, workers = variants[run % len(variants)]
        criterion = ("frequency", "likelihood")[run // len(variants) % 2]
        kind = "ray" if args.ray and python == sys.executable and run % 3 == 2 else "local"
        started = time.monotonic()
        kills = 3 if run % 4 == 3 and kind == "local" else 0
        digest = run_child(python, ["-c", CHILD, "OUT", kind, str(workers), criterion, *args.texts], run, kills)
        digests.setdefault(criterion, set()).add(digest)
        print(
            f"{run + 1} {python} {kind} {workers} {criterion} {kills} kills {time.monotonic() - started:.0f} s {digest}",
            flush=True,
        )
    if any(len(distinct) > 1 for distinct in digests.values()):
        sys.exit("runs with the same criterion gave different bytes")


def run_child(python: str, arguments: list[str], run: int, kills: int) -> str:
    """Run to the end, after some kills, and return the digest of all files. OUT in the arguments: a new folder."""
    environment = {**os.environ, "PYTHONHASHSEED": str(run), "PYTHONPATH": str(SOURCE)}
    with tempfile.TemporaryDirectory() as folder:
        command = [python, *(folder if argument == "OUT" else argument for argument in arguments)]
        for kill in range(1, kills + 1):
            _run_and_kill(command, environment, Path(folder, ".shards.tmp-work"), kill * 20)
        subprocess.run(command, env=environment, check=True, stderr=subprocess.DEVNULL)
        digest = hashlib.sha256()
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                digest.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
        return digest.hexdigest()[:16]


def _run_and_kill(command: list[str], environment: dict[str, str], work: Path, files: int) -> None:
    """Start the command and kill it once it has written `files` files."""
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and sum(path.is_file() for path in list(work.rglob("*"))) < files:
            time.sleep(0.01)
        process.kill()


if __name__ == "__main__":
    main()
