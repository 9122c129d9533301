from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from bertie.base.contracts import FILLER, Batch, Sequence, Targets
from bertie.batches.collate import collate, filler
from bertie.corpus.cooccurrence import cooccurrence_vectors
from bertie.corpus.shards import open_shards
from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder
from bertie.model.initialization import initialize_weights
from bertie.model.model import Model
from bertie.objectives.label_row import label_row
from bertie.objectives.masking import Masking
from bertie.objectives.mlm import MaskedLM
from bertie.objectives.objective import Labeling
from bertie.tokenizers.special_tokens import LINE_BREAK
from bertie.tokenizers.tokenizer import Tokenizer


def rows_of(tokenizer: Tokenizer, count: int, tokens: int = 1024) -> list[Batch]:
    """Rows of pairs of random ordinary subwords, with some filler at the end."""
    rng = np.random.default_rng(0)
    ordinary = np.setdiff1d(np.arange(tokenizer.size), tokenizer.special_ids)
    rows = []
    for _ in range(count):
        sequences, left = [], tokens - 9
        while left >= 12:
            n = min(left, int(rng.integers(12, 65)))
            ids = rng.choice(ordinary, n).astype(np.int32)
            ids[[0, n // 2, n - 1]] = [tokenizer.cls_id, tokenizer.sep_id, tokenizer.sep_id]
            sequences.append(Sequence(ids, np.zeros(n, np.int32), np.ones(n, bool), pair_label=0))
            left -= n
        rows.append(collate([*sequences, *filler(left + 9, tokenizer.pad_id, 64)], 64))
    return rows


def corrupted(objective: MaskedLM, batch: Batch, tokenizer: Tokenizer, seed: int = 0) -> tuple[Batch, Targets]:
    return objective.label(batch, Labeling(tokenizer, np.random.default_rng(seed)))[:2]


def predicted(targets: Targets) -> np.ndarray:
    """Positions of the targets, without placeholders."""
    return targets.index[targets.weight > 0]


@pytest.fixture(scope="module")
def batches(small_tokenizer: Tokenizer) -> list[Batch]:
    return rows_of(small_tokenizer, 150)


def test_shares_of_masked_random_and_unchanged_tokens(batches: list[Batch], small_tokenizer: Tokenizer) -> None:
    selected = ordinary = masked = unchanged = changed = 0
    for number, batch in enumerate(batches):
        after, targets = corrupted(MaskedLM(), batch, small_tokenizer, number)
        positions = predicted(targets)
        new, old = after.input_ids[positions], batch.input_ids[positions]
        ordinary += (~np.isin(batch.input_ids, small_tokenizer.special_ids)).sum()
        selected += len(positions)
        masked += (new == small_tokenizer.mask_id).sum()
        unchanged += (new == old).sum()
        changed += ((new != small_tokenizer.mask_id) & (new != old)).sum()
    assert selected > 20_000
    assert selected / ordinary == pytest.approx(0.15, abs=0.002)
    noise = 4 * math.sqrt(0.8 * 0.2 / selected)
    assert masked / selected == pytest.approx(0.8, abs=noise)
    same = 1 / (small_tokenizer.size - 5)  # probability that a random subword is the original one
    assert unchanged / selected == pytest.approx(0.1 * (1 + same), abs=noise)
    assert changed / selected == pytest.approx(0.1 * (1 - same), abs=noise)


def test_only_ordinary_tokens_are_selected_and_replaced(batches: list[Batch], small_tokenizer: Tokenizer) -> None:
    for number, batch in enumerate(batches[:30]):
        after, targets = corrupted(MaskedLM(), batch, small_tokenizer, number)
        positions = predicted(targets)
        assert len(set(positions.tolist())) == len(positions)
        assert not np.isin(batch.input_ids[positions], small_tokenizer.special_ids).any()
        is_filler = np.repeat(batch.example == FILLER, batch.ragged.lengths)
        assert not is_filler[positions].any()
        assert targets.label[targets.weight > 0].tolist() == batch.input_ids[positions].tolist()
        elsewhere = np.setdiff1d(np.arange(len(batch.input_ids)), positions)
        assert (after.input_ids[elsewhere] == batch.input_ids[elsewhere]).all()
        # The replacement is [MASK] or an ordinary subword.
        others = np.setdiff1d(small_tokenizer.special_ids, [small_tokenizer.mask_id])
        assert not np.isin(after.input_ids[positions], others).any()
        for name in ("token_type_ids", "position_ids", "word_starts", "pair_label", "example", "ragged"):
            assert getattr(after, name) is getattr(batch, name)


def test_every_sequence_has_its_share_of_targets(batches: list[Batch], small_tokenizer: Tokenizer) -> None:
    batch = batches[0]
    _, targets = corrupted(MaskedLM(), batch, small_tokenizer)
    owner = np.searchsorted(batch.ragged.cu_seqlens, predicted(targets), side="right") - 1
    found = np.bincount(owner, minlength=len(batch.pair_label))
    ordinary = batch.ragged.lengths - 3
    expected = np.maximum(1, np.rint(0.15 * ordinary))
    is_pair = batch.example != FILLER
    assert found[is_pair].tolist() == expected[is_pair].tolist()
    assert not found[~is_pair].any()


def test_every_position_is_selected_equally_often(small_tokenizer: Tokenizer) -> None:
    """Over many draws, each of the 20 ordinary tokens of a sequence is selected with probability 3/20."""
    ids = np.array([small_tokenizer.cls_id, *range(20, 40), small_tokenizer.sep_id], np.int32)
    batch = collate([Sequence(ids, np.zeros(22, np.int32), np.ones(22, bool))], 64)
    counts = np.zeros(22)
    for seed in range(4000):
        _, targets = corrupted(MaskedLM(), batch, small_tokenizer, seed)
        counts[predicted(targets)] += 1
    assert counts[[0, 21]].tolist() == [0, 0]
    assert np.abs(counts[1:21] / 4000 - 0.15).max() < 5 * math.sqrt(0.15 * 0.85 / 4000)


def test_a_row_of_filler_has_only_placeholder_targets(small_tokenizer: Tokenizer) -> None:
    after, targets = corrupted(MaskedLM(), collate(filler(100, small_tokenizer.pad_id, 64), 64), small_tokenizer)
    assert targets.weight.tolist() == [0.0] * 15
    assert set(after.input_ids.tolist()) == {small_tokenizer.pad_id}


def test_configured_shares_are_used(batches: list[Batch], small_tokenizer: Tokenizer) -> None:
    after, targets = corrupted(
        MaskedLM(mlm_probability=0.4, mask_replace_prob=1.0, random_replace_prob=0.0), batches[0], small_tokenizer
    )
    assert (after.input_ids[predicted(targets)] == small_tokenizer.mask_id).all()
    assert len(predicted(targets)) > 0.35 * 1024
    after, targets = corrupted(MaskedLM(mask_replace_prob=0.0, random_replace_prob=0.0), batches[0], small_tokenizer)
    assert after.input_ids.tolist() == batches[0].input_ids.tolist()
    assert len(predicted(targets)) > 100


def test_every_epoch_step_and_row_selects_other_tokens(batches: list[Batch], small_tokenizer: Tokenizer) -> None:
    def selected(seed: int, *stream: int) -> list[int]:
        return label_row(batches[0], (MaskedLM(),), small_tokenizer, seed, *stream)[1]["mlm"].index.tolist()

    streams = [(0, 2, 0, 0, 0), (1, 2, 0, 0, 0), (0, 2, 1, 0, 0), (0, 2, 0, 1, 0), (0, 2, 0, 0, 1)]
    found = [selected(*stream) for stream in streams]
    assert len({tuple(one) for one in found}) == len(streams)
    assert found == [selected(*stream) for stream in streams]


def test_unigram_initialization_sets_the_bias_to_log_frequencies(
    tiny_config: TransformerConfig, small_shards: Path
) -> None:
    shards = open_shards(small_shards)
    counts = np.bincount(np.concatenate(shards.train.tokens), minlength=500)
    frequencies = np.log((counts + 1) / (counts + 1).sum())
    for objective, expected in (
        (MaskedLM(), np.zeros(500)),
        (MaskedLM(initialization="unigram"), frequencies),
        (MaskedLM(initialization="cooccurrence"), frequencies),
    ):
        encoder = build_encoder(tiny_config)
        words = encoder.embeddings.word.weight.detach().clone()
        head = objective.head(encoder)
        objective.initialize(Model(encoder, {"mlm": head}), shards)
        assert head.bias.detach().numpy() == pytest.approx(expected, abs=1e-5)
        assert torch.equal(encoder.embeddings.word.weight, words) == (objective.initialization != "cooccurrence")


def test_cooccurrence_initialization_sets_the_embeddings(tiny_config: TransformerConfig, small_shards: Path) -> None:
    shards = open_shards(small_shards)
    encoder = build_encoder(tiny_config)
    initialize_weights(encoder, 0.02)
    before = encoder.embeddings.word.weight.detach().clone()
    objective = MaskedLM(initialization="cooccurrence")
    objective.initialize(Model(encoder, {"mlm": objective.head(encoder)}), shards)
    after = encoder.embeddings.word.weight.detach()
    with ThreadPoolExecutor(1) as pool:
        vectors = torch.from_numpy(cooccurrence_vectors(pool, shards.train, *after.shape))
    known = vectors.norm(dim=1) > 0
    assert 0 < (~known).sum() < 250  # special tokens and rare subwords have no vectors
    assert torch.equal(after[~known], before[~known])
    assert after[known].norm(dim=1) == pytest.approx(4 * float(before.norm(dim=1).mean()), rel=1e-4)
    assert torch.cosine_similarity(after[known], vectors[known]).min() > 0.9999


@pytest.mark.parametrize("masking", ["tokens", "words"])
def test_line_breaks_are_predicted_like_other_tokens(small_tokenizer: Tokenizer, masking: Masking) -> None:
    tokenizer = Tokenizer.build([*small_tokenizer.vocabulary, LINE_BREAK], user_tokens=[LINE_BREAK])
    selected = replaced = total = 0
    for number, batch in enumerate(rows_of(tokenizer, 20)):
        ordinary = np.flatnonzero(~np.isin(batch.input_ids, tokenizer.special_ids))
        batch.input_ids[ordinary[::20]] = tokenizer.line_break_id
        after, targets = corrupted(MaskedLM(masking=masking), batch, tokenizer, number)
        breaks = batch.input_ids == tokenizer.line_break_id
        total += breaks.sum()
        selected += breaks[predicted(targets)].sum()
        replaced += (after.input_ids[breaks] == tokenizer.mask_id).sum()
    assert total > 500
    assert selected / total == pytest.approx(0.15, abs=0.05)
    assert replaced / selected == pytest.approx(0.8, abs=0.1)
