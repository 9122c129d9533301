from __future__ import annotations

import subprocess
import sys

import numpy as np

from bertie.base import seeding

KINDS = [getattr(seeding, name) for name in dir(seeding) if name.isupper()]


def test_every_stream_has_its_own_number() -> None:
    assert sorted(KINDS) == list(range(len(KINDS)))


def test_a_stream_is_a_pure_function_of_its_key() -> None:
    first, second = (seeding.generator(3, seeding.PAIRS, 1, 2).random(5).tolist() for _ in range(2))
    assert first == second
    code = "from bertie.base import seeding; print(seeding.generator(3, seeding.PAIRS, 1, 2).random(5).tolist())"
    elsewhere = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert elsewhere.stdout.strip() == str(first)


def test_numbers_are_the_same_on_every_machine() -> None:
    """The meaning of a seed is part of the format: a new release must not change the data of a run."""
    assert seeding.generator(0, seeding.LAYOUT, 0).integers(0, 1000, 4).tolist() == [850, 636, 511, 269]
    assert seeding.torch_seed(0, seeding.DROPOUT, 1, 2) == 6775611746057050632


def test_neighboring_keys_give_unrelated_numbers() -> None:
    keys = [(seed, kind, epoch, step) for seed in (0, 1) for kind in KINDS for epoch in (0, 1) for step in (0, 1)]
    draws = np.array([seeding.generator(*key).random(200) for key in keys])
    assert len(np.unique(draws)) == draws.size
    correlation = np.corrcoef(draws)[np.triu_indices(len(keys), 1)]
    assert np.abs(correlation).max() < 0.35
    assert len({seeding.torch_seed(*key) for key in keys}) == len(keys)


def test_torch_seeds_fit_in_63_bits() -> None:
    seeds = [seeding.torch_seed(seed, seeding.DROPOUT) for seed in range(200)]
    assert min(seeds) >= 0
    assert 2**60 < max(seeds) < 2**63
