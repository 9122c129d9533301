"""Translation language modeling: models with language embeddings, from the recipe to prediction."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.small_recipes import pretraining

import bertie
from bertie.base.errors import UsageError, UserError
from bertie.batches.collate import collate
from bertie.batches.loader import Loader, Position, StepShape
from bertie.batches.translations import Translations
from bertie.checkpoints.read import read_checkpoint
from bertie.cli import main
from bertie.corpus.prepare import prepare
from bertie.corpus.readers import ReaderOptions
from bertie.corpus.shards import open_shards
from bertie.model.config import TransformerConfig
from bertie.objectives import MaskedLM
from bertie.objectives.masking import Masking
from bertie.objectives.objective import Labeling
from bertie.pretraining.pretrain import set_up
from bertie.pretraining.recipe import PretrainConfig
from bertie.training.distributed import SINGLE_PROCESS


@pytest.fixture(scope="module")
def config(tiny_config: TransformerConfig) -> PretrainConfig:
    size = replace(tiny_config, intermediate_size=128, language_embeddings=True, type_vocab_size=0, mlm_transform=False)
    return pretraining(size, Translations(max_length=48), (MaskedLM(),), 0.1, steps=8)


@pytest.fixture(scope="module")
def run(config: PretrainConfig, translated_shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    out = tmp_path_factory.mktemp("languages") / "run"
    bertie.pretrain(config, translated_shards, out, threads=1)
    return out


def shards_of(texts: dict[str, list[str]], languages: tuple[str, ...], translated_shards: Path, folder: Path) -> Path:
    """Prepare texts by language with the vocabulary of the translated shards. The records have one text each."""
    lines = [json.dumps({language: text}) for language, given in texts.items() for text in given]
    (folder / "text.jsonl").write_text("\n".join(lines))
    tokenizer = open_shards(translated_shards).tokenizer
    options = ReaderOptions(languages=languages)
    prepare([folder / "text.jsonl"], tokenizer, folder / "shards", eval_share=0.2, reader_options=options)
    return folder / "shards"


def test_a_run_takes_the_languages_of_the_shards_and_saves_them(config: PretrainConfig, run: Path) -> None:
    saved = json.loads((run / "config.json").read_text())
    assert saved["model_type"] == "xlm"
    assert saved["architectures"] == ["XLMWithLMHeadModel"]
    assert saved["id2lang"] == {"0": "xa", "1": "xb"}
    assert saved["lang2id"] == {"xa": 0, "xb": 1}
    assert (saved["n_langs"], saved["use_lang_emb"], saved["lang_id"]) == (2, True, 0)
    checkpoint = read_checkpoint(run)
    assert checkpoint.config == replace(config.model, vocab_size=500, languages=("xa", "xb"))
    weights = checkpoint.weights["encoder.embeddings.language.weight"]
    assert weights.shape == (2, 32)
    assert not torch.equal(weights[0], weights[1])


def test_a_model_without_language_embeddings_reads_translations(
    config: PretrainConfig, translated_shards: Path, tmp_path: Path
) -> None:
    """As XLM-R, it is not told the languages."""
    model = replace(config.model, language_embeddings=False, mlm_transform=True)
    bertie.pretrain(replace(config, model=model), translated_shards, tmp_path / "run", threads=1)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["model_type"] == "roberta"
    assert "encoder.embeddings.language.weight" not in read_checkpoint(tmp_path / "run").weights


def test_shards_that_do_not_fit_are_refused_before_the_run_begins(
    config: PretrainConfig, small_shards: Path, translated_shards: Path, small_texts: list[str], tmp_path: Path
) -> None:
    def refused(changed: PretrainConfig, shards: Path, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            bertie.pretrain(changed, shards, tmp_path / "run", threads=1)
        assert not (tmp_path / "run").exists()

    refused(config, small_shards, UserError, r'layout\.kind "translations" .* --languages')
    named = replace(config, model=replace(config.model, languages=("xa", "fr")))
    refused(named, translated_shards, UsageError, r"model\.languages lacks xb")
    texts = {"xa": small_texts[:100], "xb": small_texts[100:200]}
    single = shards_of(texts, ("xa", "xb"), translated_shards, tmp_path)
    refused(config, single, UsageError, r"no training document .* set layout\.translation_prob to 0")
    alone = replace(config, layout=Translations(max_length=48, translation_prob=0.0))
    assert bertie.pretrain(alone, single, tmp_path / "run", threads=1)["eval"]["step"] == 8


def test_another_run_continues_with_some_of_the_languages(
    config: PretrainConfig, run: Path, translated_shards: Path, small_texts: list[str], tmp_path: Path
) -> None:
    """The language ids are those of the model, not those of the shards."""
    shards = shards_of({"xb": small_texts[:100]}, ("xb",), translated_shards, tmp_path)
    layout = Translations(max_length=48, translation_prob=0.0)
    changed = replace(config, layout=layout, init_from=str(run))
    setup = set_up(changed, shards, tmp_path / "run", 1, SINGLE_PROCESS)
    assert getattr(setup.config.model, "languages", ()) == ("xa", "xb")
    [step] = islice(setup.feed.steps(0, Position()), 1)
    for micro in [*step.micro_batches, *setup.eval_sets[0][""]]:
        ordinary = np.repeat(micro.batch.example == -1, micro.batch.ragged.lengths)
        assert set(micro.batch.language_ids[ordinary].tolist()) == {1}  # type: ignore[index]


@pytest.mark.parametrize("masking", ["words", "spans", "ngrams"])
def test_whole_words_of_translations_are_masked(masking: Masking, translated_shards: Path) -> None:
    shards = open_shards(translated_shards)
    loader = Loader(shards.train, shards.tokenizer, Translations(max_length=48), StepShape(1, 512), seed=0)
    [row] = next(loader.steps(Position())).all_rows
    assert row.word_starts.dtype == bool
    after, targets, _ = MaskedLM(masking=masking).label(row, Labeling(shards.tokenizer, np.random.default_rng(0)))
    masked = np.zeros(512, bool)
    masked[targets.index[targets.weight > 0]] = True
    inside = ~row.word_starts & ~np.isin(row.input_ids, shards.tokenizer.special_ids)
    assert (masked[1:] == masked[:-1])[inside[1:]].all()  # a subword is masked with the subword before it
    assert masked[inside].any()
    assert (after.input_ids != row.input_ids).sum() > 30


# The language in fine-tuning and prediction


def test_texts_have_the_language_that_the_caller_chooses(run: Path) -> None:
    first, named, second = (bertie.load(run, language=name) for name in ("", "xa", "xb"))
    text = ["The sun is in the ban."]
    np.testing.assert_array_equal(first.embed(text), named.embed(text))
    assert np.abs(first.embed(text) - second.embed(text)).max() > 1e-3
    states = second.hidden_states(text)[0]
    batch = collate(second._sequences(list(text)), 48)
    given = replace(batch, language_ids=np.ones(len(batch.input_ids), np.int32)).tensors()
    with torch.inference_mode():
        expected = first.model.encoder(given).last.numpy()
    np.testing.assert_allclose(states[-1], expected, atol=1e-6)
    with pytest.raises(UsageError, match="language is 'fr': choose from the model's, xa, xb"):
        bertie.load(run, language="fr")


def test_a_model_without_language_embeddings_has_no_language(pretrained: Path) -> None:
    with pytest.raises(UsageError, match="language is 'en', but the model has no language embeddings: omit it"):
        bertie.load(pretrained, language="en")


def test_a_fine_tuned_model_keeps_the_language_of_its_texts(run: Path, tmp_path: Path, small_texts: list[str]) -> None:
    rows = [{"text": text[:50], "label": ("no", "yes")[i % 2]} for i, text in enumerate(small_texts[:16])]
    recipe: dict[str, Any] = {"extends": "classify", "max_length": 32, "training": {"steps": 3, "precision": "fp32"}}
    bertie.finetune(recipe | {"language": "xb"}, rows, run, tmp_path / "xb", dev=rows, threads=1)
    assert json.loads((tmp_path / "xb" / "config.json").read_text())["lang_id"] == 1
    assert read_checkpoint(tmp_path / "xb").config.language == "xb"  # type: ignore[union-attr]

    def probabilities(**options: str) -> list[float]:
        found = bertie.load(tmp_path / "xb", **options).predict(["The sun is in the ban."])
        return list(found[0].probabilities.values())

    assert probabilities() == probabilities(language="xb") != probabilities(language="xa")
    with pytest.raises(UsageError, match="language is 'fr': choose from the model's, xa, xb"):
        bertie.finetune(recipe | {"language": "fr"}, rows, run, tmp_path / "fr", dev=rows, threads=1)
    assert not (tmp_path / "fr").exists()


def test_commands_take_the_language(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for language in ("xa", "xb"):
        assert main(["fill-mask", str(run), "The [MASK] is in the ban.", "--language", language, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
        out = tmp_path / f"{language}.npy"
        assert main(["embed", str(run), "The sun.", "--out", str(out), "--language", language]) == 0
    assert found[0] != found[1]
    assert not np.array_equal(np.load(tmp_path / "xa.npy"), np.load(tmp_path / "xb.npy"))
    assert main(["fill-mask", str(run), "The [MASK].", "--language", "fr"]) == 2
    assert "choose from the model's, xa, xb" in capsys.readouterr().err
