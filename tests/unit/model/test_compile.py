from __future__ import annotations

import subprocess
import sys

import pytest

# Runs in its own process, because pytest checks the shapes of all functions in bertie.model, which changes compilation.
SCRIPT = """
import numpy as np, torch
import torch.nn.attention.varlen
from bertie.batches.collate import collate, join
from bertie.contracts import Sequence, Targets
from bertie.model.model import Model
from bertie.model.config import TransformerConfig
from bertie.model.vocabulary_heads import MaskedLMHead
from bertie.model.encoder import Encoder, build_encoder
from bertie.model.initialization import initialize_weights

T, graphs = 96, []
size = TransformerConfig(4, 32, 2, 64, 500, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)

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
        batch = collate([Sequence(i, np.zeros(len(i), np.int32), np.ones(len(i), bool)) for i in ids], 96)
        index = np.sort(rng.choice(T, 3 * len(lengths), replace=False))
        targets = Targets(index, batch.input_ids[index], np.ones(len(index), np.float32))
        yield join([(batch, {"mlm": targets})]).tensors()

def gradients(model, micro):
    model.zero_grad()
    model(micro)["mlm"].total.backward()
    return [parameter.grad for parameter in model.parameters()]

for recompute, attention in ((False, "dense"), (True, "dense"), (False, "varlen"), (True, "varlen")):
    plain, compiled, counts = new(False, attention), new(recompute, attention), []
    compiled.encoder.compile_layers(counting, half=attention == "varlen")
    torch._dynamo.reset()
    graphs.clear()
    for micro in batches():
        torch.testing.assert_close(gradients(compiled, micro), gradients(plain, micro))
        counts.append(len(graphs))
        with torch.no_grad():
            compiled(micro)
    print(*counts)
"""


@pytest.mark.slow
def test_layers_are_compiled_once_for_any_number_of_sequences() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    graphs = [[int(count) for count in line.split()] for line in done.stdout.splitlines()]
    assert all(len(set(counts)) == 1 for counts in graphs)
    dense, _, varlen, varlen_recomputed = (counts[0] for counts in graphs)
    assert varlen == varlen_recomputed == 2  # the last layer, and all others
    assert dense > 2
