"""The Reformer at long texts: memory of activations by depth, and time per token by length, beside full attention.

    OMP_NUM_THREADS=1 python benchmarks/reformer.py --out benchmarks/results/reformer.json [--rounds 3]

The model is that of `mini-reformer`, with random weights, random tokens, and positions and buckets for the longest length.

- Memory: the bytes that autograd holds after a forward pass of the encoder at 4,096 tokens, without the weights, at 2 to 12
  layers. `stored` is the same encoder with layers that are not reversible.
- Time: the processor time of a forward and backward pass of the encoder, in fp32, which other programs disturb least. `full`
  is a causal Transformer with as many layers, of the size of a stream. The lengths are measured in turn, in rounds; each value
  is the median of the rounds, in microseconds per token.

Prints whether the memory at 12 layers is within 5 % of that at 2, and the time per token at the longest length at most 1.5 times
that at the shortest. The exit code is 1 if not.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertie.base import config, runtime, storage
from bertie.base.contracts import Batch, Sequence
from bertie.batches.collate import collate
from bertie.model.config import TransformerConfig
from bertie.model.encoder import EncoderConfig, build_encoder
from bertie.model.encoders.reformer_config import ReformerConfig
from bertie.model.initialization import initialize_weights
from bertie.pretraining.recipe import PretrainConfig
from results import environment

VOCABULARY, LENGTHS, FULL, DEPTHS, TOKENS = 8000, (2048, 4096, 8192, 16384), (2048, 4096, 8192), (2, 4, 8, 12), 4096
MOST_MEMORY, MOST_TIME = 1.05, 1.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    results: dict[str, Any] = {"environment": environment(runtime.use_threads())}
    size = long_size()
    memory = {
        kind: {depth: saved_bytes(with_depth(size, depth), all_layers) for depth in DEPTHS}
        for kind, all_layers in (("reversible", False), ("stored", True))
    }
    for kind, by_depth in memory.items():
        print(
            f"{kind:10} " + ", ".join(f"{depth} layers: {n / 1e6:.2f} MB" for depth, n in by_depth.items()), flush=True
        )
    full = TransformerConfig(
        *(len(size.attn_layers), size.stream_size, size.num_attention_heads, size.intermediate_size),
        vocab_size=VOCABULARY,
        max_position_embeddings=max(LENGTHS),
        type_vocab_size=0,
        causal=True,
        norm_position="pre",
        hidden_act="gelu_tanh",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    encoders = {"reformer": encoder_of(size), "full": encoder_of(full)}
    taken: dict[tuple[str, int], list[float]] = {("reformer", n): [] for n in LENGTHS} | {("full", n): [] for n in FULL}
    for encoder in encoders.values():
        one_pass(encoder, 512)  # the first pass takes longer
    for _ in range(args.rounds):
        for kind, length in taken:
            taken[kind, length].append(one_pass(encoders[kind], length) / length * 1e6)
    times = {key: median(own) for key, own in taken.items()}
    for (kind, length), value in times.items():
        print(f"{kind:10} {length:6,} tokens: {value:.0f} µs per token", flush=True)
    growth = memory["reversible"][DEPTHS[-1]] / memory["reversible"][DEPTHS[0]]
    slower = times["reformer", LENGTHS[-1]] / times["reformer", LENGTHS[0]]
    faster = [length for length in FULL if times["reformer", length] < times["full", length]]
    print(f"memory at {DEPTHS[-1]} layers: {growth:.3f} times that at {DEPTHS[0]} (at most {MOST_MEMORY})")
    print(f"time per token at {LENGTHS[-1]:,}: {slower:.2f} times that at {LENGTHS[0]:,} (at most {MOST_TIME})")
    print(
        f"faster than full attention from {faster[0]:,} tokens on" if faster else "nowhere faster than full attention"
    )
    results |= {
        "saved_bytes": memory,
        "microseconds_per_token": {f"{kind} {length}": own for (kind, length), own in taken.items()},
        **{"memory_ratio": growth, "time_ratio": slower, "faster_from": faster[0] if faster else None},
    }
    if args.out:
        storage.write_json(args.out, results)
    sys.exit(growth > MOST_MEMORY or slower > MOST_TIME)


def long_size() -> ReformerConfig:
    """Return the size of the recipe, for the longest length."""
    size = config.load(PretrainConfig, "mini-reformer", "pretrain").model
    assert isinstance(size, ReformerConfig)
    longest = max(LENGTHS)
    return replace(size, vocab_size=VOCABULARY, max_position_embeddings=longest, axial_pos_shape=(64, longest // 64))


def with_depth(size: ReformerConfig, layers: int) -> ReformerConfig:
    """Return the size with another number of layers."""
    return replace(size, attn_layers=size.attn_layers[:2] * (layers // 2))


def batch_of(length: int) -> Batch:
    """Return a batch of one sequence of random tokens."""
    ids = np.random.default_rng(0).integers(5, VOCABULARY, length).astype(np.int32)
    return collate([Sequence(ids, np.zeros_like(ids), np.ones(length, bool))], length).tensors()


def encoder_of(size: EncoderConfig) -> Any:
    """Build an encoder for training."""
    encoder = build_encoder(size)
    torch.manual_seed(0)
    initialize_weights(encoder, 0.02)
    return encoder.train()


def saved_bytes(size: ReformerConfig, all_layers: bool) -> int:
    """Return the bytes that autograd holds after a forward pass, without the weights."""
    encoder = encoder_of(size)
    weights = {parameter.untyped_storage().data_ptr() for parameter in encoder.parameters()}
    saved: dict[int, Tensor] = {}

    def record(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            saved[tensor.untyped_storage().data_ptr()] = tensor  # the reference keeps the address from being used again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        output = encoder(batch_of(TOKENS), all_layers=all_layers)
    del output
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


def one_pass(encoder: Any, length: int) -> float:
    """Return the processor time of a forward and backward pass, in seconds."""
    batch = batch_of(length)
    encoder.zero_grad()
    start = time.process_time()
    encoder(batch).last.square().sum().backward()
    return time.process_time() - start


if __name__ == "__main__":
    main()
