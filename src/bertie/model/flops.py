"""Floating-point operations of a training step, for the utilization of the hardware."""

from __future__ import annotations

import numpy as np

from bertie.contracts import MicroBatch
from bertie.model.characters import Characters
from bertie.model.config import TransformerConfig
from bertie.model.encoder import EncoderConfig
from bertie.model.lstm import LstmConfig
from bertie.model.model import Model
from bertie.model.span_boundary import POSITION_SIZE
from bertie.model.xlnet import XlnetConfig


def model_flops(model: Model, micro: MicroBatch) -> float:
    """Return the `training_flops` of a model with all its parts."""
    generator = None if model.generator is None else model.generator.config
    teacher = None if model.teacher is None else model.teacher.encoder.config
    return training_flops(model.encoder.config, micro, generator, teacher)


def training_flops(
    config: EncoderConfig,
    micro: MicroBatch,
    generator: TransformerConfig | None = None,
    teacher: TransformerConfig | None = None,
) -> float:
    """Return the floating-point operations of the matrix products in one forward and backward pass.

    A product of [n, k] and [k, m] takes 2·n·k·m operations, and its backward pass twice as many. Counted are:

    - all layers except the last, at T tokens, including filler (with two streams, also at Q rows);
    - in the last layer, keys and values at T tokens, and everything else at Q rows;
    - attention within each sequence, without padding;
    - logits over the vocabulary at the P predicted positions;
    - a CNN over characters once for each distinct token.

    Not counted are element-wise operations, heads with a few classes, and layers that are recomputed to save memory. The
    result is 0 if the hidden states are cached.

    Args:
        config: Configuration of the encoder.
        micro: Micro-batch of NumPy arrays.
        generator: Configuration of ELECTRA's generator, if there is one. Its last layer runs at the masked positions.
        teacher: Configuration of the teacher of a distillation, if there is one. It has no backward pass.
    """
    if micro.hidden_states is not None:
        return 0.0
    products = 0.0
    if isinstance(config, LstmConfig):
        products = _lstm(config, micro)
    elif isinstance(config, TransformerConfig):
        products = _transformer(config, micro, micro.rows)
    elif isinstance(config, XlnetConfig):
        products = _xlnet(config, micro)
    if generator is not None:
        products += _transformer(generator, micro, micro.rows[np.unique(micro.targets["mlm"].index)])
    width = config.hidden_size
    transformer = isinstance(config, TransformerConfig)
    embedding = config.embedding_width if transformer else width
    vocabulary = width * config.vocab_size
    heads = {"clm": vocabulary, "bilm": vocabulary, "plm": vocabulary, "rtd": width * width}
    heads["mlm"] = _masked_lm(generator or config) if transformer else 0
    heads["distil"] = heads["mlm"]
    heads["sbo"] = (2 * width + POSITION_SIZE) * width + embedding * (width + config.vocab_size)
    training = 6.0 * float(products + sum(len(t.label) * heads.get(name, 0) for name, t in micro.targets.items()))
    if teacher is None:
        return training
    imitated = len(micro.targets["distil"].label) * _masked_lm(teacher)
    return training + 2.0 * (_transformer(teacher, micro, micro.rows) + imitated)


def _masked_lm(config: TransformerConfig) -> int:
    """Return the multiplications of a prediction of the masked-LM head."""
    transform = config.hidden_size * config.embedding_width if config.mlm_transform else 0
    return transform + config.embedding_width * config.vocab_size


def _transformer(config: TransformerConfig, micro: MicroBatch, positions: np.ndarray) -> float:
    """Return the multiplications of a forward pass through a Transformer, with the last layer at some positions."""
    width, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    lengths = micro.batch.ragged.lengths.astype(np.float64)
    tokens, rows = lengths.sum(), len(positions)
    queries = np.diff(np.searchsorted(positions, micro.batch.ragged.cu_seqlens))  # of each sequence, in the last layer
    feed_forward = width * inner * (3 if config.gated else 2)
    per_token = tokens * (4 * width * width + feed_forward)
    attended = sum(_attended(lengths, config.window(layer)) for layer in range(layers - 1))
    last = (
        tokens * 2 * width * width + rows * (2 * width * width + feed_forward) + 2 * width * (lengths * queries).sum()
    )
    embedding = config.embedding_width
    projection = tokens * embedding * width if embedding != width else 0
    return float(projection + (layers - 1) * per_token + 2 * width * attended + last)


def _attended(lengths: np.ndarray, window: int | None) -> float:
    """Return the number of pairs of tokens that attend to each other."""
    reach = lengths - 1 if window is None else np.minimum(window, lengths - 1)
    return float((lengths * (2 * reach + 1) - reach * (reach + 1)).sum())


def _xlnet(config: XlnetConfig, micro: MicroBatch) -> float:
    """Return the multiplications of a forward pass through XLNet's layers, with an order those of both streams.

    A query has three products with each of its keys: with the key, with its distance, and with its value. All distances
    between tokens are projected once per layer.
    """
    width, layers = config.hidden_size, config.num_hidden_layers
    per_row = 2 * width * width + 2 * width * config.intermediate_size  # queries, output, feed-forward
    lengths = micro.batch.ragged.lengths.astype(np.float64)
    tokens, rows = lengths.sum(), len(micro.rows)
    queries = np.diff(np.searchsorted(micro.rows, micro.batch.ragged.cu_seqlens))  # of each sequence
    shared = tokens * 2 * width * width + 2 * lengths.max() * width * width  # keys, values, distances
    last = shared + rows * per_row + 3 * width * (lengths * queries).sum()
    layer = shared + tokens * per_row + 3 * width * (lengths**2).sum()
    if micro.batch.order is not None:
        layer += last - shared
    return float((layers - 1) * layer + last)


def _lstm(config: LstmConfig, micro: MicroBatch) -> float:
    """Return the multiplications of a forward pass through two stacks of LSTMs: gates and projections, without padding."""
    size, cells = config.hidden_size // 2, config.cell_size
    projection = cells * size if cells > size else 0
    per_token = config.num_hidden_layers * 2 * (8 * cells * size + projection)
    tokens = micro.batch.ragged.lengths.astype(np.float64).sum()
    if not isinstance(config.input, Characters):
        return float(tokens * per_token)
    return float(tokens * per_token + len(np.unique(micro.batch.input_ids)) * _characters(config.input, size))


def _characters(config: Characters, size: int) -> int:
    """Return the multiplications of a CNN over the characters of one entry."""
    positions = [config.max_characters - width + 1 for width in range(1, len(config.filters) + 1)]
    filters = sum(n * count * width for width, (n, count) in enumerate(zip(positions, config.filters, strict=True), 1))
    highways = config.highway_layers * 2 * config.features**2
    return config.character_size * filters + highways + config.features * size
