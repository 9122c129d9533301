"""ELECTRA's generator, which replaces masked tokens by samples before the encoder reads them (Clark et al. 2020).

The generator is a smaller Transformer over the embeddings of the encoder, with the masked-LM head. The encoder is the
discriminator: its head tells which tokens were replaced.

T  packed tokens
P  predictions of masked language modeling
D  hidden size of the generator
V  vocabulary entries
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bertie.base.contracts import Loss, MicroBatch, ReplacementTargets, Targets
from bertie.base.errors import UsageError
from bertie.model.attention.attention import AttentionKind
from bertie.model.config import TransformerConfig
from bertie.model.embeddings import Embeddings, SharedEmbeddings
from bertie.model.encoder import Encoder
from bertie.model.heads.vocabulary_heads import MaskedLMHead
from bertie.model.losses.losses import cross_entropy
from bertie.model.transformer import TransformerEncoder

GENERATOR_HEAD = "mlm"
"""Kind of the objective that trains the generator. Its head reads the generator instead of the encoder."""
SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")


def generator_config(encoder: TransformerConfig, sizes: dict[str, Any]) -> TransformerConfig:
    """Return the configuration of a generator: its own `SIZES`, and the settings and the embeddings of the encoder.

    Raises:
        UsageError: A size is missing or invalid.
    """
    if wrong := [name for name in SIZES if type(sizes.get(name)) is not int]:
        raise UsageError(f"generator.{wrong[0]} is {sizes.get(wrong[0])!r}: expected an integer")
    changes = {name: sizes[name] for name in SIZES}
    return replace(encoder, **changes, embedding_size=encoder.embedding_width, mlm_transform=True)


def generator_sizes(generator: TransformerConfig) -> dict[str, int]:
    """Return the `SIZES` of a generator."""
    return {name: getattr(generator, name) for name in SIZES}


def build_generator(
    config: TransformerConfig | None, encoder: Encoder, attention: AttentionKind = "automatic"
) -> TransformerEncoder | None:
    """Build a generator over the embeddings of an encoder. Between embeddings and layers, it has its own projection.

    Args:
        config: Its configuration. None: there is no generator.
        encoder: The encoder, which is a Transformer if there is a generator.
        attention: The attention implementation.
    """
    if config is None:
        return None
    assert isinstance(encoder.embeddings, Embeddings)
    return TransformerEncoder(config, attention, SharedEmbeddings(encoder.embeddings, config))


def fill_masks(generator: TransformerEncoder, head: MaskedLMHead, micro: MicroBatch) -> tuple[Loss, MicroBatch]:
    """Predict the masked tokens, and replace them by samples from the predicted distributions.

    No gradient flows through the samples. The random numbers come with the targets, so the samples depend neither on the
    micro-batch nor on a generator's state, and the samples of the evaluation set are fixed.

    Args:
        generator: The generator.
        head: Its masked-LM head.
        micro: A micro-batch with the targets of masked language modeling, and `ReplacementTargets`.

    Returns:
        The loss of masked language modeling, and the micro-batch for the encoder. It has the samples in place of the
        masked tokens. The label of a `ReplacementTargets` is now 1 if the token differs from the original one, else 0.
    """
    masked = micro.targets[GENERATOR_HEAD]
    [(kind, tokens)] = [item for item in micro.targets.items() if isinstance(item[1], ReplacementTargets)]
    input_ids = micro.batch.input_ids
    position_P = masked.index  # there is a replacement target at every token, so rows are positions
    rows_P = distinct_rows(position_P, len(input_ids))
    x_PD = generator(micro.batch, rows_P).last[torch.searchsorted(rows_P, position_P)]
    logits_PV = head.logits(x_PD)
    sample_P = sample(logits_PV.detach(), tokens.draw[position_P])
    # Placeholders share one position, so they add 0 instead of assigning a token.
    change_P = torch.where(masked.weight > 0, sample_P - input_ids[position_P], 0)
    filled_T = input_ids.index_add(0, position_P, change_P)
    replaced = Targets(tokens.index, (filled_T != tokens.label).long(), tokens.weight)
    others = {name: targets for name, targets in micro.targets.items() if name != GENERATOR_HEAD}
    batch = replace(micro.batch, input_ids=filled_T)
    return cross_entropy(logits_PV, masked), replace(micro, batch=batch, targets=others | {kind: replaced})


def distinct_rows(position_P: Int[Tensor, " P"], tokens: int) -> Int[Tensor, " P"]:
    """Return P distinct positions, sorted, that include all given ones. Unlike `unique`, it has a fixed size.

    Args:
        position_P: Positions, some of which may be equal.
        tokens: Number of positions in total, at least P.
    """
    needed_T = torch.zeros(tokens, dtype=torch.int64, device=position_P.device).index_fill(0, position_P, 1)
    return needed_T.argsort(descending=True, stable=True)[: len(position_P)].sort().values


def sample(logits_PV: Float[Tensor, "P V"], draw_P: Float[Tensor, " P"]) -> Int[Tensor, " P"]:
    """Sample an entry of each row from its softmax: the first whose cumulative probability exceeds the draw.

    One random number per row is enough. Adding Gumbel noise to the logits takes one per entry, which is slower on a CPU.

    Args:
        logits_PV: Logits.
        draw_P: Uniform random numbers in [0, 1).
    """
    dtype = torch.promote_types(logits_PV.dtype, torch.float32)
    cumulative_PV = logits_PV.softmax(-1, dtype=dtype).cumsum(-1)
    threshold_P1 = draw_P[:, None].to(dtype) * cumulative_PV[:, -1:]  # the last sum is 1 except for rounding
    entry_P1 = torch.searchsorted(cumulative_PV, threshold_P1, right=True)
    return entry_P1[:, 0].clamp(max=logits_PV.shape[1] - 1)
