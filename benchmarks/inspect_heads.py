"""Cost of looking at all heads: statistics and divergences of a BERT-base, and transformers' forward pass without them.

    python benchmarks/inspect_heads.py en_ewt-ud-dev.conllu bert-base-uncased.txt --out benchmarks/results/inspect.json
        [--rounds 1]

Both sides have random weights of BERT-base's size and read the same sentences, with one thread, each in a process of its
own. transformers runs its eager attention, which is the one that could return probabilities, without returning them: in
padded batches of 32 sentences, in the order of the file and sorted by length. bertie also reads and tokenizes the file.
Prints seconds of processor time and of the clock, and the peak resident memory at 500 and at all sentences.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from bertie.base import runtime, storage
from bertie.base.contracts import Sequence
from bertie.batches.collate import collate
from bertie.inspect.attention import Group, read_attention
from bertie.inspect.heads.clusters import HeadDivergence
from bertie.inspect.heads.statistics import HeadStatistics
from bertie.inspect.texts import TextFile
from bertie.model.config import TransformerConfig
from bertie.model.model import Model
from bertie.model.transformer import TransformerEncoder
from bertie.tokenizers import truncation
from bertie.tokenizers.tokenizer import Tokenizer
from results import environment

BATCH = 32
FEW = 500
WAYS = ("sorted", "bertie", "file order")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("treebank", type=Path)
    parser.add_argument("vocabulary", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--texts", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        print(json.dumps(measure(args.way, args.treebank, args.vocabulary, args.texts)))
        return
    results: dict[str, Any] = {"environment": environment(1), "few": run("bertie", args, FEW), "rounds": []}
    for _ in range(args.rounds):
        results["rounds"].append({way: run(way, args, 0) for way in WAYS})
        last = results["rounds"][-1]
        last["ratio"] = round(last["bertie"]["processor_seconds"] / last["sorted"]["processor_seconds"], 3)
        last["memory_ratio"] = round(last["bertie"]["peak_memory"] / results["few"]["peak_memory"], 3)
        print({name: last[name] for name in ("ratio", "memory_ratio")}, flush=True)
        if args.out:
            storage.write_json(args.out, results)


def run(way: str, args: argparse.Namespace, texts: int) -> dict[str, Any]:
    command = [sys.executable, __file__, str(args.treebank), str(args.vocabulary), "--way", way, "--texts", str(texts)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    print(way, found, flush=True)
    return found


def measure(way: str, treebank: Path, vocabulary: Path, texts: int) -> dict[str, Any]:
    """Run one side. Return its sentences, tokens, seconds, and the peak resident memory in bytes."""
    runtime.use_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(vocabulary, Path(folder) / "vocab.txt")
        tokenizer = Tokenizer.load(Path(folder))
    file = TextFile(treebank, tokenizer, 512, max_texts=texts)
    if way == "bertie":
        encoder = TransformerEncoder(TransformerConfig(12, 768, 12, 3072, vocab_size=tokenizer.size))
        model, analyses = Model(encoder, {}).eval(), [HeadStatistics(encoder, tokenizer), HeadDivergence(encoder, 0)]

        def see(group: Group, layer: int, probabilities: torch.Tensor) -> None:
            for analysis in analyses:
                analysis.see(group, layer, probabilities)

        warm(lambda: encoder(torch_batch(tokenizer)))
        started = (time.process_time(), time.perf_counter())
        for sequences in file.blocks():
            read_attention(model, sequences, see)
        tables = [table.name for analysis in analyses for table in analysis.tables()]
        assert "heads" in tables
    else:
        sequences = [sequence for block in file.blocks() for sequence in block]
        theirs = their_model(tokenizer.size)
        warm(lambda: theirs(input_ids=torch.ones(2, 16, dtype=torch.int64)))
        started = (time.process_time(), time.perf_counter())
        if way == "sorted":
            sequences.sort(key=len)
        with torch.inference_mode():
            for start in range(0, len(sequences), BATCH):
                theirs(**padded(sequences[start : start + BATCH], tokenizer.pad_id))
    ended = (time.process_time(), time.perf_counter())
    return {
        **{"sentences": file.texts, "tokens": file.tokens},
        "processor_seconds": round(ended[0] - started[0], 2),
        "seconds": round(ended[1] - started[1], 2),
        "peak_memory": runtime.peak_memory(),
    }


def warm(forward: Any) -> None:
    with torch.inference_mode():
        forward()


def torch_batch(tokenizer: Tokenizer) -> Any:
    return collate(truncation.encode(tokenizer, ["a warm up"] * 4), 8).tensors()


def their_model(vocabulary: int) -> torch.nn.Module:
    import transformers  # pyright: ignore[reportMissingImports]

    config: Any = transformers.BertConfig(vocab_size=vocabulary)  # the sizes of BERT-base are its defaults
    config._attn_implementation = "eager"
    return transformers.BertModel(config, add_pooling_layer=False).eval()


def padded(sequences: list[Sequence], pad_id: int) -> dict[str, torch.Tensor]:
    rows = [torch.as_tensor(sequence.input_ids, dtype=torch.int64) for sequence in sequences]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad_id)
    lengths = torch.tensor([len(row) for row in rows])
    return {"input_ids": ids, "attention_mask": (torch.arange(ids.shape[1]) < lengths[:, None]).long()}


if __name__ == "__main__":
    main()
