"""All probes of a model, from the files to the tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.unit.inspect.conftest import conllu, random_heads

from bertie.base.errors import UsageError, UserError
from bertie.inspect.probes.dependency_probes import ATTENTION, RIGHT, VECTORS
from bertie.inspect.probes.probes import inspect_probes, split, untrained
from bertie.inspect.probes.structural_probe import CHAIN
from bertie.inspect.tables import InputFindings
from bertie.predict.load import load
from bertie.predict.predictor import Predictor


def write_treebank(path: Path, small_texts: list[str], count: int, seed: int) -> Path:
    """Write sentences of the synthetic language with random trees."""
    rng = np.random.default_rng(seed)
    blocks = []
    for text in small_texts[:count]:
        words = [*text.split(".")[0].split(), "."]
        rows = [
            f"{word} {head + 1} {'root' if head < 0 else 'punct' if word == '.' else 'dep:x'} {'NX'[word[-1] != 'n']}"
            for word, head in zip(words, random_heads(rng, len(words)), strict=True)
        ]
        blocks.append(conllu(*rows))
    path.write_text("".join(blocks))
    return path


@pytest.fixture(scope="module")
def treebanks(small_texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("treebanks")
    train = write_treebank(folder / "train.conllu", small_texts, 20, 0)
    return train, write_treebank(folder / "test.conllu", small_texts[50:], 12, 1)


def content(part: InputFindings) -> dict[str, dict[str, list[object]]]:
    return {table.name: table.plain() for table in part.tables}


@pytest.fixture(scope="module")
def found(predictor: Predictor, treebanks: tuple[Path, Path]) -> InputFindings:
    torch.manual_seed(1)
    return inspect_probes(predictor, *treebanks, epochs=1)


def test_tables_have_both_models_all_layers_and_the_baselines(
    predictor: Predictor, treebanks: tuple[Path, Path]
) -> None:
    before = {name: tensor.clone() for name, tensor in predictor.model.state_dict().items()}
    part = inspect_probes(predictor, *treebanks, epochs=1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in predictor.model.state_dict().items())
    assert all(parameter.grad is None for parameter in predictor.model.parameters())
    tables = {table.name: table.rows() for table in part.tables}
    probes = [(row["model"], row["probe"]) for row in tables["dependency_probes"]]
    assert len(probes) == len(set(probes)) == 8 + 3
    assert {("trained", ATTENTION), ("untrained", VECTORS), ("", RIGHT)} <= set(probes)
    layers = [(row["model"], row["layer"]) for row in tables["structural_probe"]]
    assert layers == [*(("trained", i) for i in range(3)), (CHAIN, None), *(("untrained", i) for i in range(3))]
    assert len(tables["layer_probes"]) == 2 * 2 * 3
    assert part.facts["train"]["sentences"] == 20
    assert part.facts["test"]["words"] == tables["dependency_probes"][0]["words"]
    assert part.facts["vectors"] == predictor.folder.name
    assert len(part.summary) == 5


def test_results_depend_on_the_seed_only(
    predictor: Predictor, treebanks: tuple[Path, Path], found: InputFindings
) -> None:
    first = content(found)
    torch.manual_seed(2)
    assert content(inspect_probes(predictor, *treebanks, epochs=1)) == first
    other = content(inspect_probes(predictor, *treebanks, epochs=1, seed=1))
    assert other["structural_probe"] != first["structural_probe"]


def test_vectors_of_another_model_are_used(
    predictor: Predictor, treebanks: tuple[Path, Path], pretrained: Path, found: InputFindings
) -> None:
    other = load(pretrained)
    torch.manual_seed(0)
    torch.nn.init.normal_(other.model.encoder.embeddings.word.weight)  # pyright: ignore[reportArgumentType]
    before = content(found)
    after = content(inspect_probes(predictor, *treebanks, epochs=1, vectors=other))
    assert after["dependency_probes"]["uas"][0] == before["dependency_probes"]["uas"][0]
    assert after["dependency_probes"]["uas"][1:3] != before["dependency_probes"]["uas"][1:3]
    assert after["structural_probe"] == before["structural_probe"]


def test_the_untrained_model_has_the_shape_and_other_weights(predictor: Predictor) -> None:
    state = torch.get_rng_state()
    models = [untrained(predictor.model, seed) for seed in (0, 0, 1)]
    assert torch.equal(torch.get_rng_state(), state)
    tables = [model.encoder.embeddings.word.weight for model in models]
    assert torch.equal(tables[0], tables[1])
    assert not torch.equal(tables[0], tables[2])
    assert tables[0].std() < 0.03 < predictor.model.encoder.embeddings.word.weight.std()
    assert tables[0].shape == predictor.model.encoder.embeddings.word.weight.shape


def test_held_out_sentences_are_not_trained_on() -> None:
    train, held_out = split(25)
    assert held_out == [9, 19]
    assert sorted(train + held_out) == list(range(25))
    assert split(9) == (list(range(9)), list(range(9)))


def test_sentences_of_one_word_have_no_arcs(predictor: Predictor, tmp_path: Path) -> None:
    path = tmp_path / "one.conllu"
    path.write_text(conllu("go 0 root _") * 3)
    part = inspect_probes(predictor, path, path, epochs=1)
    tables = {table.name: table.rows() for table in part.tables}
    assert {row["uas"] for row in tables["dependency_probes"]} == {1}
    assert {row["uuas"] for row in tables["structural_probe"]} == {None}
    assert {row["task"] for row in tables["layer_probes"]} == {"relation"}  # no word has a part of speech
    assert "UUAS unknown: too few test sentences" in part.summary[2]


def test_what_cannot_be_read_is_said(
    predictor: Predictor, treebanks: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.conllu"
    roots, long = conllu("a 0 x", "b 0 x"), conllu(*(f"go {i} x" for i in range(79)))
    bad.write_text(roots + "1\tgo\n\n" + long + conllu("go 0 root"))
    facts = inspect_probes(predictor, treebanks[0], bad, epochs=1).facts["test"]
    assert (facts["sentences"], facts["too_long"], facts["not_trees"]) == (1, 1, 1)
    printed = capsys.readouterr().err
    assert all(text in printed for text in ("bad.conllu:4", "1 sentence with more", "1 sentence whose arcs"))
    bad.write_text(roots)
    with pytest.raises(UserError, match="no sentence is a tree"):
        inspect_probes(predictor, treebanks[0], bad, epochs=1)
    with pytest.raises(UsageError, match="no such file"):
        inspect_probes(predictor, treebanks[0], tmp_path / "none.conllu", epochs=1)


@pytest.mark.slow
def test_a_real_model_knows_more_than_the_baselines(minilm: Path, shared_data: Path, tmp_path: Path) -> None:
    paths = []
    for part, count in (("train", 600), ("dev", 150)):
        blocks = (shared_data / "treebank" / f"en_ewt-ud-{part}.conllu").read_text(encoding="utf-8").split("\n\n")
        paths.append(tmp_path / f"{part}.conllu")
        paths[-1].write_text("\n\n".join(blocks[:count]) + "\n\n", encoding="utf-8")
    part = inspect_probes(load(minilm), paths[0], paths[1], epochs=3)
    tables = {table.name: table.rows() for table in part.tables}
    uas = {(row["model"], row["probe"]): row["uas"] for row in tables["dependency_probes"]}
    assert uas["trained", ATTENTION] > uas["", RIGHT] + 0.1
    assert uas["trained", VECTORS] > uas["trained", ATTENTION] + 0.1
    assert uas["untrained", VECTORS] < uas["", RIGHT] + 0.05
    uuas = {(row["model"], row["layer"]): row["uuas"] for row in tables["structural_probe"]}
    assert uuas["trained", 3] > max(uuas[CHAIN, None], uuas["trained", 0], uuas["untrained", 3]) + 0.05
    labels = {(row["model"], row["task"], row["layer"]): row for row in tables["layer_probes"]}
    best = labels["trained", "part of speech", 2]
    assert best["accuracy"] > best["usual_label"] + 0.05
    assert best["selectivity"] > labels["untrained", "part of speech", 2]["selectivity"] + 0.2
