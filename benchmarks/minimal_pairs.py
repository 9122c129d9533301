"""Speed of scoring minimal pairs: bertie and three loops over transformers' BertForMaskedLM, with the same models.

    OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false python benchmarks/minimal_pairs.py VOCAB.txt
        tests/unit/predict/minimal_pairs.jsonl --out benchmarks/results/minimal_pairs.json [--rounds 3]

The models have random weights: BERT-base's shape and that of bertie's `mini`, both with BERT's uncased vocabulary. The
sentences are the same for all sides. All compute the same pseudo-log-likelihoods, in turn in one process with one thread:

    one mask at a time   a forward pass per token, as in many published scripts
    per sentence         a batch with all masked copies of a sentence
    sorted batches       masked copies of all sentences, sorted by length, in batches of 64, with the vocabulary only at masks:
                         what a user can get out of transformers with some work
    bertie               `bertie minimal-pairs`

Seconds are CPU time of the process, which is the wall time of one thread on a machine that does nothing else; the file has
the wall time, too. Prints sentences per second (of the median round) and the largest difference between two scores. Fails
if that is above 1e-3.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

import bertie
from bertie.base import storage
from bertie.examples.left_out import valid_examples
from bertie.predict.minimal_pairs import MinimalPair, ScoredPair, read_pairs, score_pairs
from bertie.predict.predictor import Predictor
from results import environment

TOLERANCE = 1e-3  # of a sum over the tokens of a sentence, in nats
BATCH = 64  # masked copies of a batch
SHAPES: dict[str, dict[str, Any]] = {
    "BERT-base": {},
    "mini": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024},
}
PAIRS = {"BERT-base": 15, "mini": 150}  # every n-th pair, so that the slowest loop takes a minute


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vocabulary", type=Path)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    measured_on = environment(1)
    pairs = valid_examples(read_pairs(args.pairs), str(args.pairs))
    results: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        chosen = pairs[:: -(-len(pairs) // PAIRS[name])]
        results[name] = compare(name, shape, chosen, args.vocabulary, args.rounds)
    versions = {name: importlib.metadata.version(name) for name in ("transformers", "torch")}
    storage.write_json(args.out, {"peers": versions, "environment": measured_on, "results": results})


def compare(
    name: str, shape: dict[str, Any], pairs: list[MinimalPair], vocabulary: Path, rounds: int
) -> dict[str, Any]:
    """Let the sides take turns over the same pairs."""
    torch.manual_seed(0)
    theirs = BertForMaskedLM(BertConfig(**shape)).eval()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        theirs.save_pretrained(folder)
        shutil.copy(vocabulary, folder / "vocab.txt")
        ours = bertie.load(folder, threads=1)
        ours.tokenizer.save(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.set_num_threads(1)
    texts = [text for pair in pairs for text in (pair.good, pair.bad)]
    sides: dict[str, Callable[[], list[float]]] = {
        "one mask at a time": lambda: [one_mask_at_a_time(theirs, tokenizer, text) for text in texts],
        "per sentence": lambda: [per_sentence(theirs, tokenizer, text) for text in texts],
        "sorted batches": lambda: sorted_batches(theirs, tokenizer, texts),
        "bertie": lambda: by_bertie(ours, pairs),
    }
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    wall: dict[str, list[float]] = {side: [] for side in sides}
    found: dict[str, np.ndarray] = {}
    for _ in range(rounds):
        for side, score in sides.items():
            started, started_wall = time.process_time(), time.perf_counter()
            with torch.inference_mode():
                found[side] = np.array(score())
            seconds[side].append(time.process_time() - started)
            wall[side].append(time.perf_counter() - started_wall)
    rates = {side: len(texts) / float(np.median(taken)) for side, taken in seconds.items()}
    ratios = {}
    for side, taken in seconds.items():
        each = sorted(a / b for a, b in zip(taken, seconds["bertie"], strict=True))
        ratios[side] = {"median": round(rates["bertie"] / rates[side], 2), "low": each[0], "high": each[-1]}
    difference = max(float(np.abs(scores - found["bertie"]).max()) for scores in found.values())
    tokens = sum(map(len, tokenizer(texts, add_special_tokens=False)["input_ids"]))
    print(f"{name}: {len(texts)} sentences, {tokens / len(texts):.1f} tokens each, largest difference {difference:.1e}")
    for side, rate in rates.items():
        print(f"  {side:<20} {rate:8.2f} sentences/s, bertie is {ratios[side]['median']:.2f} times as fast")
    if difference > TOLERANCE:
        raise SystemExit(f"{name}: the scores differ by {difference:.1e}")
    sizes = {"sentences": len(texts), "tokens": tokens, "difference": difference}
    return {**sizes, "sentences_per_second": rates, "times_as_fast": ratios, "seconds": seconds, "wall_seconds": wall}


def one_mask_at_a_time(model: BertForMaskedLM, tokenizer: Any, text: str) -> float:
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    total = 0.0
    for position in range(1, ids.shape[1] - 1):
        masked = ids.clone()
        masked[0, position] = tokenizer.mask_token_id
        total += float(model(masked).logits[0, position].log_softmax(-1)[ids[0, position]])
    return total


def per_sentence(model: BertForMaskedLM, tokenizer: Any, text: str) -> float:
    [ids] = tokenizer(text, return_tensors="pt")["input_ids"]
    positions = torch.arange(1, len(ids) - 1)
    copies = ids.repeat(len(positions), 1)
    rows = torch.arange(len(positions))
    copies[rows, positions] = tokenizer.mask_token_id
    log_p = model(copies).logits[rows, positions].log_softmax(-1)
    return float(log_p[rows, ids[positions]].double().sum())


def sorted_batches(model: BertForMaskedLM, tokenizer: Any, texts: list[str]) -> list[float]:
    copies = []
    for number, ids in enumerate(tokenizer(texts)["input_ids"]):
        for position in range(1, len(ids) - 1):
            masked = [*ids[:position], tokenizer.mask_token_id, *ids[position + 1 :]]
            copies.append((masked, position, ids[position], number))
    copies.sort(key=lambda copy: len(copy[0]))
    totals = np.zeros(len(texts))
    for start in range(0, len(copies), BATCH):
        ids, positions, tokens, numbers = zip(*copies[start : start + BATCH], strict=True)
        batch = tokenizer.pad({"input_ids": list(ids)}, return_tensors="pt")
        rows = torch.arange(len(ids))
        hidden = model.bert(**batch).last_hidden_state[rows, list(positions)]
        log_p = model.cls(hidden).log_softmax(-1)[rows, list(tokens)]
        np.add.at(totals, list(numbers), log_p.double().numpy())
    return totals.tolist()


def by_bertie(model: Predictor, pairs: list[MinimalPair]) -> list[float]:
    scored = [each for each in score_pairs(model.token_model(), pairs) if isinstance(each, ScoredPair)]
    return [score for each in scored for score in (each.good, each.bad)]


if __name__ == "__main__":
    main()
