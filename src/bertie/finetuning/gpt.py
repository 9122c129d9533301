"""GPT's part in fine-tuning (Radford et al. 2018, sections 3.2 and 3.3): its input tokens, and its auxiliary loss.

The tokens are a matter of the tokenizer and of the model's settings, which a run saves, so tasks and prediction know nothing
of them.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from bertie.base import console, runtime, seeding
from bertie.base.contracts import Batch, Targets
from bertie.base.errors import UsageError
from bertie.checkpoints.read import Checkpoint
from bertie.checkpoints.vocabulary_growth import rows_by_entry
from bertie.finetuning.recipe import FinetuneConfig
from bertie.model.config import TransformerConfig
from bertie.model.encoder import Encoder, build_encoder
from bertie.model.head_facts import HeadFacts, with_facts
from bertie.model.heads.text_pooling import pooling_facts, resolve_pooling
from bertie.model.heads.vocabulary_heads import BringsVocabularyHead, auxiliary_head, next_token_targets
from bertie.model.initialization import no_weights
from bertie.model.model import Model
from bertie.tokenizers.gpt_inputs import with_gpt_inputs

LM = "lm"
"""Name of the auxiliary loss, in metrics.jsonl as lm_loss."""
FACTS = HeadFacts("auxiliary LM", "the next word", "text-generation", "next")
NEW_TOKENS = 2  # number of the random stream after seeding.WEIGHTS; 0 and 1 are heads and layers


def prepared(config: FinetuneConfig, checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with the input tokens that the configuration asks for.

    Entries that the vocabulary lacks get random vectors, a pure function of the seed.

    Raises:
        UsageError: The model cannot have these tokens, or the auxiliary loss.
    """
    if config.input_tokens == "gpt":
        checkpoint = _with_gpt_inputs(config, checkpoint)
    if config.lm_weight:
        _require_next_token(config, checkpoint)
    return checkpoint


def auxiliary_heads(config: FinetuneConfig, encoder: Encoder) -> dict[str, nn.Module]:
    """Return the head of the auxiliary loss, if there is one."""
    return {LM: with_facts(auxiliary_head(encoder.embeddings.word), FACTS)} if config.lm_weight else {}


def auxiliary_targets(config: FinetuneConfig, batch: Batch) -> dict[str, Targets]:
    """Return the targets of the auxiliary loss, if there is one. batch: NumPy arrays."""
    if not config.lm_weight:
        return {}
    return {LM: next_token_targets(batch, pooling_facts(config.task.text_pooling).separate != "")}


def auxiliary_weights(config: FinetuneConfig) -> dict[str, float]:
    """Return the factor of the auxiliary loss, if there is one."""
    return {LM: config.lm_weight} if config.lm_weight else {}


def _with_gpt_inputs(config: FinetuneConfig, checkpoint: Checkpoint) -> Checkpoint:
    encoder = checkpoint.config
    if not (isinstance(encoder, TransformerConfig) and encoder.causal):
        raise UsageError(f"input_tokens gpt needs a causal Transformer, unlike {checkpoint.folder}: set it to model")
    tokenizer = with_gpt_inputs(checkpoint.tokenizer)
    encoder = replace(encoder, pooler_act="none", classifier_pooling="token")
    new = tokenizer.vocabulary[checkpoint.tokenizer.size :]
    if not new:
        return replace(checkpoint, tokenizer=tokenizer, config=encoder)
    if config.frozen:
        raise UsageError(f"frozen keeps the random vectors of the new tokens {', '.join(new)}: remove frozen")
    console.info(f"added {console.plural(len(new), 'token')} to the vocabulary: {' '.join(new)}")
    names = rows_by_entry(encoder, lambda config: Model(build_encoder(config), {}))
    runtime.reseed_torch(config.seed, seeding.WEIGHTS, NEW_TOKENS)

    def grown(rows: Tensor) -> Tensor:
        random = torch.randn(len(new), *rows.shape[1:]) * encoder.initializer_range
        return torch.cat([rows[: checkpoint.tokenizer.size], random.to(rows.dtype)])

    weights = {name: grown(rows) if name in names else rows for name, rows in checkpoint.weights.items()}
    encoder = replace(encoder, vocab_size=tokenizer.size)
    return replace(checkpoint, tokenizer=tokenizer, config=encoder, weights=weights)


def _require_next_token(config: FinetuneConfig, checkpoint: Checkpoint) -> None:
    """Raise UsageError if the auxiliary loss cannot be computed."""
    encoder, where = checkpoint.config, checkpoint.folder
    if "next" not in encoder.vocabulary_heads or not encoder.causal:
        raise UsageError(f"lm_weight needs a causal model, but {where} predicts no next token: set it to 0")
    with no_weights():
        has_own_head = isinstance(build_encoder(encoder), BringsVocabularyHead)
    if has_own_head or encoder.embedding_width != encoder.hidden_size:
        raise UsageError(f"lm_weight needs a head of word embeddings alone, unlike {where}: set it to 0")
    if config.task.unit == "batch":
        raise UsageError(
            f"lm_weight does not work with {config.task.kind}, whose loss compares a whole batch: set it to 0"
        )
    pooling = config.task.text_pooling
    pooling = "token" if pooling is None else resolve_pooling(pooling, encoder)
    if pooling != "token" and not pooling_facts(pooling).reads_all:
        raise UsageError(f"lm_weight needs task.pooling token, not {pooling}: set it, or lm_weight to 0")
