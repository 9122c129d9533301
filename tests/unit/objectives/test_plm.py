from __future__ import annotations

import numpy as np
import pytest

from bertie.base.contracts import Batch, Sequence
from bertie.batches.collate import collate, filler
from bertie.model.encoders.xlnet import XlnetConfig
from bertie.objectives import PermutationLM
from bertie.objectives.objective import Labeling
from bertie.tokenizers.tokenizer import Tokenizer

CONFIG = XlnetConfig(
    2, 32, 4, 64, vocab_size=500, max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
)


def row(tokenizer: Tokenizer, lengths: list[int], seed: int = 0, pieces: int = 2) -> Batch:
    """A row of 256 tokens, with filler. Every word has `pieces` subwords."""
    rng = np.random.default_rng(seed)
    made = []
    for n in lengths:
        ids = np.concatenate([[tokenizer.cls_id], rng.integers(60, 500, n - 2), [tokenizer.sep_id]]).astype(np.int32)
        made.append(Sequence(ids, np.zeros(n, np.int32), (np.arange(n) - 1) % pieces == 0))
    return collate([*made, *filler(256 - sum(lengths), tokenizer.pad_id, 64)], 64)


def labeled(
    tokenizer: Tokenizer, seed: int = 0, lengths: tuple[int, ...] = (64, 40, 3, 64, 50), **settings: str | float
) -> tuple[Batch, Batch, dict[str, np.ndarray]]:
    """Return a row before and after the objective, and its targets without placeholders."""
    before = row(tokenizer, list(lengths), seed)
    after, targets, _ = PermutationLM(**settings).label(before, Labeling(tokenizer, np.random.default_rng(seed)))  # type: ignore[arg-type]
    assert len(targets.index) == len(targets.label) == len(targets.weight)
    real = targets.weight > 0
    return before, after, {"all": targets.index, "index": targets.index[real], "label": targets.label[real]}


@pytest.mark.parametrize("masking", ["spans", "tokens"])
@pytest.mark.parametrize("seed", range(5))
def test_targets_have_random_ranks_and_everything_else_is_context(
    small_tokenizer: Tokenizer, seed: int, masking: str
) -> None:
    before, after, targets = labeled(small_tokenizer, seed, masking=masking)
    assert after.input_ids is before.input_ids
    order = after.order
    assert order is not None
    assert order.dtype == np.int32
    assert np.flatnonzero(order).tolist() == targets["index"].tolist()
    assert before.input_ids[targets["index"]].tolist() == targets["label"].tolist()
    assert not np.isin(targets["label"], small_tokenizer.special_ids).any()
    for start, end, example in zip(
        before.ragged.cu_seqlens, before.ragged.cu_seqlens[1:], before.example, strict=False
    ):
        ranks = np.sort(order[start:end][order[start:end] > 0])
        assert ranks.tolist() == list(range(1, len(ranks) + 1))
        assert (len(ranks) > 0) == (example == -1)


def test_the_order_is_uniform(small_tokenizer: Tokenizer) -> None:
    """The first target of a sequence has every rank equally often, also if it is the first token of a span."""
    ranks = []
    for seed in range(400):
        _, after, targets = labeled(small_tokenizer, seed, lengths=(32,), plm_probability=0.2)
        assert after.order is not None
        ranks.append((after.order[targets["index"][0]] - 1) / (len(targets["index"]) - 1))
    assert np.mean(ranks) == pytest.approx(0.5, abs=0.06)
    assert np.std(ranks) == pytest.approx(0.35, abs=0.05)


@pytest.mark.parametrize("share", [0.1667, 0.3])
@pytest.mark.parametrize("masking", ["spans", "tokens"])
def test_about_one_token_in_k_is_predicted(small_tokenizer: Tokenizer, share: float, masking: str) -> None:
    counts = []
    for seed in range(20):
        _, _, targets = labeled(small_tokenizer, seed, plm_probability=share, masking=masking)
        assert len(targets["all"]) == int(np.ceil(share * 256))  # the same for every row of this size
        counts.append(len(targets["index"]))
    ordinary = 64 + 40 + 3 + 64 + 50 - 2 * 5
    assert np.mean(counts) == pytest.approx(share * ordinary, rel=0.05)


def test_spans_have_one_to_five_whole_words(small_tokenizer: Tokenizer) -> None:
    lengths = np.zeros(60)
    for seed in range(60):
        _, _, targets = labeled(small_tokenizer, seed, lengths=(64, 64, 64, 64))
        runs = np.split(targets["index"], np.flatnonzero(np.diff(targets["index"]) > 1) + 1)
        assert all(len(run) % 2 == 0 and run[0] % 2 == 1 for run in runs)  # words begin at odd positions
        lengths += np.bincount([len(run) // 2 for run in runs], minlength=60)
    assert lengths[1] > lengths[2] > lengths[5] > 0
    assert lengths[6:].sum() < 0.1 * lengths.sum()  # only where two spans touch
