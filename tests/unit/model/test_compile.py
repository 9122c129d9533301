from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# Runs in its own process, because pytest checks the shapes of all functions in bertie.model, which changes compilation.
SCRIPT = """
import itertools
import numpy as np, torch
import torch.nn.attention.varlen
from encoders import sequences
from bertie.batches.collate import collate, join
from bertie.base.contracts import Sequence, Targets
from bertie.model import layers; from bertie.model.kernels import short_attention
from bertie.model.attention.attention import varlen
from bertie.model.model import Model
from bertie.model.config import TransformerConfig
from bertie.model.heads.vocabulary_heads import MaskedLMHead
from bertie.model.encoder import Encoder, build_encoder
from bertie.model.initialization import initialize_weights

T, graphs = 96, []
size = TransformerConfig(4, 64, 2, 64, 500, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)

def counting(graph, inputs):
    graphs.append(graph)
    return graph.forward

def varlen_attn(q, k, v, *bounds, window_size):  # for torch's kernel, which needs a GPU
    return q * v.mean() + k.mean()

torch.nn.attention.varlen.varlen_attn = varlen_attn

def new(recompute, attention):
    torch.manual_seed(0)
    encoder = build_encoder(size, attention)
    encoder.recompute = recompute
    model = Model(encoder, {"mlm": MaskedLMHead(size, encoder.embeddings.word)})
    initialize_weights(model, 0.1)
    return model

def batches():
    rng = np.random.default_rng(0)
    for lengths in ((40, 56), (96,), (10, 20, 30, 36), (1, 95), (48, 24, 24)):
        ids = [rng.integers(0, 500, n).astype(np.int32) for n in lengths]
        batch = collate(sequences(*ids), 96)
        index = np.sort(rng.choice(T, 3 * len(lengths), replace=False))
        targets = Targets(index, batch.input_ids[index], np.ones(len(index), np.float32))
        yield join([(batch, {"mlm": targets})]).tensors()

def gradients(model, micro):
    model.zero_grad()
    model(micro)["mlm"].total.backward()
    return [parameter.grad for parameter in model.parameters()]

def short(qkv, rotation, cu_seqlens, longest, left, right):  # for the kernels, which need a GPU, too
    assert rotation is None and left == right == -1
    return varlen_attn(*qkv.unbind(1), window_size=None), qkv.new_zeros(qkv.shape[2], len(qkv))

def short_gradient(d_mixed, mixed, level, qkv, *_):
    q, _, v = qkv.unbind(1)
    one = torch.ones_like(q) / q.numel()
    return torch.stack([d_mixed * v.mean(), d_mixed.sum() * one, (d_mixed * q).sum() * one], 1)

short_attention.short_attention.register_kernel("cpu")(short)
short_attention.short_attention_backward.register_kernel("cpu")(short_gradient)
short_attention.DEVICE, layers.HALVES = "cpu", (torch.float32,)
layers.automatic = layers.IMPLEMENTATIONS["automatic"] = lambda x: varlen(x)

for recompute, attention in itertools.product((False, True), ("dense", "varlen", "automatic")):
    plain, compiled, counts = new(False, attention), new(recompute, attention), []
    compiled.encoder.compile_layers(counting, half=attention != "dense")
    torch._dynamo.reset()
    graphs.clear()
    for micro in batches():
        torch.testing.assert_close(gradients(compiled, micro), gradients(plain, micro))
        counts.append(len(graphs))
        with torch.no_grad():
            compiled(micro)
    nodes = {str(node.target) for graph in graphs for node in graph.graph.nodes}
    print(*counts, "bertie.short_attention.default" in nodes)
"""


@pytest.mark.slow
def test_layers_are_compiled_once_for_any_number_of_sequences() -> None:
    here = Path(__file__).parent  # for encoders.py
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=here, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert all(len(set(counts)) == 1 for *counts, _ in lines)
    dense, varlen, short = ({(line[0], line[-1]) for line in lines[start::3]} for start in range(3))
    assert varlen == {("2", "False")}  # the last layer, and all others
    assert short == {("2", "True")}
    assert len(dense) == 1
    assert int(min(dense)[0]) > 2
