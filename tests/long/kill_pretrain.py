"""Kill a larger pre-training many times and compare it with one that was left alone. Not run by pytest.

    python tests/long/kill_pretrain.py 200

trains BERT-tiny (2 layers, 128 wide) on Python's documentation, kills it as often as told, and prints how often, how
many of these kills fell into the writing of a checkpoint, and what differs in the end: nothing, or it exits with 1.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

from killing import Nursery, Toll, differences, disturb, nursery

from bertie.demo.corpus import python_documents
from bertie.text.prepare import prepare
from bertie.text.vocabulary import train_tokenizer

STEPS = 150
FLAGS = (
    "--training.batch-size 16 --training.eval-every 20 --training.checkpoint-every 7 --model.hidden-dropout-prob 0.1"
)


def command(shards: Path, out: Path) -> list[str]:
    places = ["--data", str(shards), "--out", str(out), "--training.steps", str(STEPS)]
    return ["pretrain", "tiny", *places, *FLAGS.split(), "--training.precision", "fp32", "--threads", "1"]


def make_shards(folder: Path) -> Path:
    text = folder / "text.jsonl"
    text.write_text("".join(json.dumps({"text": document.text}) + "\n" for document in python_documents()))
    tokenizer = train_tokenizer([text], folder / "tokenizer", vocab_size=4000)
    prepare([text], tokenizer, folder / "shards", eval_share=0.05)
    return folder / "shards"


def run_out(place: Nursery, argv: list[str]) -> None:
    code, text = place.run(argv)
    if code:
        raise SystemExit(f"exit code {code}: {text}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("kills", type=int)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rng, total, started = random.Random(asked.seed), Toll(), time.monotonic()
    with tempfile.TemporaryDirectory() as name, nursery(Path(name)) as place:
        folder = Path(name)
        shards = make_shards(folder)
        alone = folder / "alone"
        run_out(place, command(shards, alone))
        wrong = 0
        while total.kills < asked.kills:
            run = folder / f"run{total.kills}"
            toll = disturb(place, command(shards, run), run, rng, asked.kills - total.kills, pause=3)
            run_out(place, command(shards, run))
            found = differences(run, alone)
            total = Toll(total.kills + toll.kills, total.in_saves + toll.in_saves)
            wrong += bool(found)
            print(f"{total.kills} kills, {total.in_saves} in saves; different: {found or 'nothing'}", flush=True)
    print(f"{time.monotonic() - started:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
