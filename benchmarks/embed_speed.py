"""Speed of text embeddings: bertie and `encode` of sentence-transformers, with the same model.

    OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false python benchmarks/embed_speed.py MODEL SST-2/train.tsv SICK.txt
        --out benchmarks/results/embed_speed.json [--rounds 3]

Both sides embed the first 2,000 sentences of SST-2's training file and the first 500 of SICK, alternating in one
process with one thread. Prints texts per second (of the median round), their ratio, and the largest difference between
two vectors' values. Fails if that is above 1e-5.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer  # pyright: ignore[reportMissingImports]

import bertie
from bertie.base import storage
from bertie.checkpoints.find import find_model_folder
from bertie.examples.left_out import valid_examples
from bertie.examples.reader import Reader
from bertie.examples.texts import LabeledTexts
from results import environment
from sick import sick

TOLERANCE = 1e-5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("sst2", type=Path)
    parser.add_argument("sick", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    measured_on = environment(1)
    sets = {
        "SST-2": [each.text for each in valid_examples(Reader(LabeledTexts()).read(args.sst2), str(args.sst2))[:2000]]
    }
    sets["SICK"] = [each.text for each in sick(args.sick, "relatedness_score")[:500]]
    theirs = SentenceTransformer(args.model, device="cpu")
    ours = bertie.load(args.model, threads=1)
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for name, texts in sets.items():
        seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
        found: dict[str, np.ndarray] = {}
        for _ in range(args.rounds):
            for who, work in (("ours", ours.embed), ("theirs", theirs.encode)):
                found[who], took = timed(work, texts)
                seconds[who].append(took)
        difference = float(np.abs(found["ours"] - found["theirs"]).max())
        rates = {who: round(len(texts) / float(np.median(took)), 1) for who, took in seconds.items()}
        ratio = round(rates["ours"] / rates["theirs"], 2)
        results[name] = {"texts": len(texts), "texts_per_second": rates, "ratio": ratio, "difference": difference}
        results[name]["seconds"] = seconds
        print(f"{name}: ours {rates['ours']}, theirs {rates['theirs']} texts/s, ratio {ratio}, ", end="")
        print(f"largest difference {difference:.1e}")
        if difference > TOLERANCE:
            raise SystemExit(f"{name}: the vectors differ by {difference:.1e}")
    versions = {name: importlib.metadata.version(name) for name in ("sentence-transformers", "transformers")}
    weights = storage.sha256(find_model_folder(args.model) / "model.safetensors")
    storage.write_json(
        args.out, {"weights": weights, "peers": versions, "environment": measured_on, "results": results}
    )


def timed(work: Callable[[list[str]], np.ndarray], texts: list[str]) -> tuple[np.ndarray, float]:
    started = time.perf_counter()
    return work(texts), time.perf_counter() - started


if __name__ == "__main__":
    main()
