"""Probes and hidden states of models of every family with attention, loaded from folders of transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.parity.test_families import CASES, LENGTHS, SIZES, Case, loaded, pad_id_of, padded, saved, sequences

import bertie
from bertie.inspect.attention import read_hidden
from bertie.inspect.heads.layers import LayerStates, Sample
from bertie.inspect.probes.probes import inspect_probes
from bertie.tokenizers.tokenizer import Tokenizer

FAMILIES = {"bert": Case("Bert", SIZES, (), (), segments=True)} | {n: c for n, c in CASES.items() if n != "xlnet"}
TREES = (
    "1\tThe\t_\tDET\t_\t_\t2\tdet\t_\t_\n2\tgat\t_\tNOUN\t_\t_\t0\troot\t_\t_\n3\t.\t_\tPUNCT\t_\t_\t2\tpunct\t_\t_\n\n"
)


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("bert", "gpt2") else pytest.param(name, marks=pytest.mark.slow)
        for name in FAMILIES
        if name != "deberta-v2"  # its attention cannot be shown
    ],
)
def test_every_family_is_probed(name: str, small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = saved(FAMILIES[name].model("Model"), tmp_path / "model", small_tokenizer)
    (tmp_path / "a.conllu").write_text(TREES * 12)
    trees = tmp_path / "a.conllu"
    part = inspect_probes(bertie.load(folder), trees, trees, epochs=30)
    tables = {table.name: table.rows() for table in part.tables}
    labels = [row["accuracy"] for row in tables["layer_probes"] if row["model"] == "trained"]
    assert min(labels) == 1  # the same sentence every time
    assert len(labels) == 2 * 3
    uas = {row["probe"]: row["uas"] for row in tables["dependency_probes"] if row["model"] == "trained"}
    assert uas["attention and vectors"] == 1


@pytest.mark.parametrize("name", FAMILIES)
def test_sampled_states_agree_with_transformers(name: str, small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    case = FAMILIES[name]
    folder = saved(case.model("Model"), tmp_path / "theirs", small_tokenizer)
    theirs = loaded("", folder)
    with torch.inference_mode():
        expected = theirs(**padded(case, pad_id_of(theirs)), output_hidden_states=True).hidden_states
    given = sequences(case)
    sample = Sample.draw([given], bertie.load(folder).tokenizer, 64, 0)
    states = LayerStates("m", sample)
    states.add(given)
    read_hidden(bertie.load(folder).model, given, states.see_hidden, "test")
    places = [(s, t) for s, n in enumerate(LENGTHS) for t in range(n)]
    counted = [place for place in places if not np.isin(given[place[0]].input_ids[place[1]], sample.special)]
    assert len(sample.tokens) == len(counted)
    for layer, found in enumerate(states.states):
        wanted = torch.stack([expected[layer][s, t] for s, t in counted])
        torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-4)
