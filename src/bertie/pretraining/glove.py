"""GloVe: static word vectors from co-occurrence counts (Pennington, Socher and Manning 2014).

The vectors minimize Σ f(x_ij) (w_i · c_j + a_i + b_j − log x_ij)² over all pairs of tokens that co-occur x_ij times, with
f(x) = min(1, (x / x_max)^α). The result is w + c. Pairs at distance d in the text count 1 / d.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertie.base import console, runtime, seeding, storage
from bertie.base.config import AboveZero, Count, Size, ranges
from bertie.base.errors import UserError
from bertie.checkpoints.folder import write_manifest, write_model
from bertie.checkpoints.model_card import About
from bertie.corpus.cooccurrence import cooccurrence_counts
from bertie.corpus.remote_shards import ShardCache
from bertie.corpus.shards import open_shards
from bertie.corpus.token_corpus import Corpus
from bertie.model.encoder import build_encoder
from bertie.model.encoders.static import StaticConfig
from bertie.model.model import Model

BATCH = 8192  # pairs per update
ALPHA = 0.75
INITIAL_SQUARES = 1.0  # AdaGrad's sums of squared gradients at the start, as in the authors' code


@dataclass(frozen=True)
class GloveConfig:
    """Settings of GloVe. The defaults are the paper's, except for the size."""

    hidden_size: Size = 256
    """Size of the vectors."""
    window: Size = 10
    """Tokens on either side that count as context."""
    epochs: Count = 25
    """Passes over the co-occurrence counts. The paper has 50 for vectors of fewer than 300 dimensions. 0: random vectors, from
    which `bertie finetune embed-static` starts best."""
    x_max: AboveZero = 100.0
    """Count from which a pair has full weight."""
    learning_rate: AboveZero = 0.05
    """Learning rate of AdaGrad."""
    seed: Count = 0
    """Random seed of the initial vectors and of the order of the pairs."""

    __post_init__ = ranges("")


def glove(
    shards: str | Path,
    out: str | Path,
    settings: GloveConfig = GloveConfig(),
    *,
    threads: int = 0,
    cache: ShardCache = ShardCache(),
) -> dict[str, Any]:
    """Train GloVe vectors on token shards, and write them as a model folder that `bertie.load` and `finetune` read.

    Args:
        shards: Token shards, as `prepare` writes them: the folder, or the URL of its copy in an object store.
        out: Folder to create. It must not exist.
        settings: The settings.
        threads: Number of CPU threads; 0: all that this process may use.
        cache: Where to keep shards of an object store.

    Returns:
        {"model": folder, "pairs": number of distinct pairs, "losses": mean weighted squared error of each epoch}.

    Raises:
        UsageError: `out` exists, or there are no such shards.
        UserError: The shards are damaged, or no two tokens co-occur.
    """
    folder, runtime_threads = Path(out), runtime.use_threads(threads)
    storage.require_fresh(folder, "the vectors")
    opened = open_shards(shards, cache)
    size = opened.tokenizer.size
    vectors, pairs, losses = train_vectors(opened.train, size, settings)
    encoder = build_encoder(StaticConfig(settings.hidden_size, vocab_size=size))
    encoder.embeddings.word.weight.data.copy_(vectors)
    with storage.atomic_folder(folder) as temporary:
        about = f"GloVe vectors from {int(opened.train.shard_starts[-1]):,} tokens, {pairs:,} pairs, {settings.epochs} epochs."
        write_model(temporary, Model(encoder, {}), opened.tokenizer, about=About(about))
        write_manifest(temporary)
    console.info(
        f"{folder}: {size:,} vectors of size {settings.hidden_size}; {console.plural(runtime_threads, 'thread')}"
    )
    return {"model": str(folder), "pairs": pairs, "losses": losses}


def train_vectors(corpus: Corpus, size: int, settings: GloveConfig) -> tuple[Tensor, int, list[float]]:
    """Train the vectors.

    Returns:
        fp32 [size, hidden_size]; the number of pairs; the mean loss of each epoch.

    Raises:
        UserError: No two tokens co-occur.
    """
    counts = cooccurrence_counts(corpus, size, settings.window, torch.get_num_threads()).tocoo()
    if not counts.nnz:
        raise UserError("no two tokens of the text co-occur: prepare more text")
    rows, columns = (torch.from_numpy(part.astype(np.int64)) for part in (counts.row, counts.col))
    count = torch.from_numpy(counts.data).float()
    logs, weights = count.log(), (count / settings.x_max).pow(ALPHA).clamp(max=1.0)
    runtime.reseed_torch(settings.seed, seeding.WEIGHTS)
    width = settings.hidden_size
    word, context, word_bias, context_bias = (Table(size, columns_of, width) for columns_of in (width, width, 1, 1))
    losses = []
    with console.progress("GloVe", settings.epochs * len(count), "pairs") as bar:
        for _ in range(settings.epochs):
            total = 0.0
            for part in torch.randperm(len(count)).split(BATCH):
                i, j = rows[part], columns[part]
                w, c = word.values[i], context.values[j]
                error = (w * c).sum(1, keepdim=True) + word_bias.values[i] + context_bias.values[j] - logs[part, None]
                slope = 2 * weights[part, None] * error
                for table, index, gradient in (
                    (word, i, slope * c),
                    (context, j, slope * w),
                    (word_bias, i, slope),
                    (context_bias, j, slope),
                ):
                    table.update(index, gradient, settings.learning_rate)
                total += float((slope * error).sum()) / 2
                bar.advance(len(part), "")
            losses.append(total / len(count))
    return word.values + context.values, len(count), losses


class Table:
    """Vectors with AdaGrad's sums of squared gradients. Only the rows that occur in a batch are updated."""

    def __init__(self, size: int, columns: int, width: int):
        self.values = torch.empty(size, columns).uniform_(-0.5 / width, 0.5 / width)
        self.squares = torch.full((size, columns), INITIAL_SQUARES)

    def update(self, index: Tensor, gradient: Tensor, learning_rate: float) -> None:
        """Make one step with the sum of the gradients of each row."""
        rows, place = torch.unique(index, return_inverse=True)
        summed = gradient.new_zeros(len(rows), gradient.shape[1]).index_add_(0, place, gradient)
        squares = self.squares[rows] + summed.square()
        self.squares[rows] = squares
        self.values[rows] -= learning_rate * summed / squares.sqrt()
