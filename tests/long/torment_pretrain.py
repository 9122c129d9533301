"""Inject random faults into a larger pre-training, and compare it with a run without faults. Not run by pytest.

    python tests/long/torment_pretrain.py 35 [--recipe tiny] [FLAGS OF bertie pretrain]

trains BERT-tiny (2 layers, hidden size 128), or another recipe with other flags, on Python's documentation. It injects each
kind of fault the given number of times: kills, kills during a save, SIGTERM, a full disk, a flipped byte, a truncated file. It
prints how often each fault hit a running command, and the files that differ at the end. If there are any, the exit code is 1.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

from environments import parser_of
from killing import Nursery, nursery
from torment import torment

from bertie.corpus.prepare import prepare
from bertie.corpus.vocabulary import train_tokenizer
from bertie.demo.corpus import python_documents

STEPS = 150
FLAGS = (
    "--training.batch-size 16 --training.eval-every 20 --training.checkpoint-every 7 --model.hidden-dropout-prob 0.1"
)


def command(recipe: str, flags: list[str], shards: Path, out: Path) -> list[str]:
    places = ["--data", str(shards), "--out", str(out), "--training.steps", str(STEPS)]
    fixed = ["--training.precision", "fp32", "--threads", "1"]
    return ["pretrain", recipe, *places, *(flags or FLAGS.split()), *fixed]


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
    parser = parser_of(__doc__)
    parser.add_argument("each", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--recipe", default="tiny")
    asked, flags = parser.parse_known_args()
    started, wrong = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as name, nursery(Path(name)) as place:
        folder = Path(name)
        shards = make_shards(folder)
        alone, recipe = folder / "alone", partial(command, asked.recipe, flags, shards)
        run_out(place, recipe(alone))
        rng = random.Random(asked.seed)
        for landed, found in torment(place, recipe, folder, alone, rng, asked.each, 25):
            wrong += bool(found)
            print(f"{sum(landed.values())}: {landed}; different: {found or 'nothing'}", flush=True)
    print(f"{time.monotonic() - started:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
