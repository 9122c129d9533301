"""Next sentence prediction, and sentence order prediction, of pre-trained models."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal, cast

import numpy as np

from bertie.base.contracts import Batch, Sequence
from bertie.base.errors import UsageError, UserError
from bertie.batches.sentence_pairs import IS_NEXT
from bertie.checkpoints.find import run_settings
from bertie.model.head_facts import facts_of
from bertie.model.heads.heads import PooledHead
from bertie.model.model import Model
from bertie.predict.likelihood import with_nan
from bertie.tasks.encoding import softmax
from bertie.tasks.inference import infer, require_finite
from bertie.tokenizers import truncation
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.tokenizers.truncation import TokenizedText

PairObjective = Literal["next sentence", "sentence order"]


def pair_objective(folder: Path) -> PairObjective:
    """Return what the head for sentence pairs was trained on.

    A run says so in its config.toml. Other models, such as Google's BERT, were trained on next sentences.
    """
    layout = run_settings(folder).get("layout")
    swapped = isinstance(layout, dict) and layout.get("negatives") == "swapped"
    return "sentence order" if swapped else "next sentence"


def next_sentence(
    model: Model, tokenizer: Tokenizer, folder: Path, max_length: int, pairs: Iterable[tuple[str, str]]
) -> np.ndarray:
    """Return the probability that the second text of each pair follows the first one.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        folder: Its folder, for messages.
        max_length: Tokens in the longest sequence.
        pairs: Pairs of texts.

    Returns:
        float64 [pairs]. NaN, with a warning, for a pair that is too long or has a text without tokens.

    Raises:
        UsageError: An item is no pair.
        UserError: The model has no head for sentence pairs, its hidden states are not finite, or every pair is refused.
    """
    head = next((head for head in model.heads.values() if facts_of(head).shape == "pair"), None)
    if head is None:
        raise UserError(
            f"{folder} has no head for next sentence prediction: use a model that was pre-trained with the objective nsp and "
            "not fine-tuned"
        )
    pair_list = list(pairs)
    if wrong := [pair for pair in pair_list if isinstance(pair, str) or len(pair) != 2]:
        raise UsageError(f"a pair has two texts: {str(wrong[0])[:60]!r}")
    columns = [truncation.tokenize(tokenizer, [pair[side] for pair in pair_list]) for side in (0, 1)]
    numbered = enumerate(zip(*columns, strict=True), 1)
    encoded = [_encode(tokenizer, parts, max_length, number) for number, parts in numbered]

    def compute(batch: Batch, _: list[Sequence]) -> list[np.ndarray]:
        first_SD = model.encoder(batch, batch.ragged.cu_seqlens[:-1]).last
        require_finite(first_SD)
        return list(softmax(cast(PooledHead, head).logits(first_SD).float().cpu().numpy())[:, IS_NEXT])

    computed = iter(infer(model, [pair for pair in encoded if isinstance(pair, Sequence)], compute))
    return with_nan(pair if isinstance(pair, UserError) else float(next(computed)) for pair in encoded)


def _encode(
    tokenizer: Tokenizer, parts: tuple[TokenizedText, ...], max_length: int, number: int
) -> Sequence | UserError:
    [sequence] = truncation.to_sequences(tokenizer, parts, max_length)
    if not all(len(part.ids) for part in parts):
        return UserError(f"pair {number:,} has a text without tokens: remove it")
    if sequence.truncated:
        return UserError(
            f"pair {number:,} has {sequence.truncated:,} tokens more than the {max_length:,} that the model reads with "
            "special tokens: shorten it"
        )
    return sequence
