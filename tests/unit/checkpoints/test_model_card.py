"""The metadata of model cards, as huggingface_hub reads them: only facts, and those of the source."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import EvalResult, ModelCard, ModelCardData

import bertie
from bertie.base.errors import UsageError
from bertie.checkpoints.folder import write_model
from bertie.checkpoints.model_card import FILE, About, CardFacts, CardResults, metadata_of, write_card
from bertie.finetuning.recipe import FinetuneConfig, FinetuneTraining
from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder
from bertie.model.model import Model
from bertie.objectives import MaskedLM
from bertie.pretraining.initial_weights import new_model
from bertie.tasks import Classify, Embed, Regress
from bertie.tasks.task import build_head
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.training.optimizers import AdamW
from bertie.training.schedules import LinearDecay

FACTS = CardFacts("apache-2.0", ("en", "de"), ("nyu-mll/glue",))


def card(folder: Path) -> ModelCardData:
    """Read a card as strictly as the hub's client does."""
    loaded = ModelCard.load(folder / FILE, ignore_metadata_errors=False)
    assert isinstance(loaded.data, ModelCardData)
    return loaded.data


@pytest.fixture
def model(tiny_config: TransformerConfig) -> Model:
    encoder = build_encoder(tiny_config)
    head = build_head(Classify(labels=("a", "b")), tiny_config, tiny_config.hidden_size)
    return Model(encoder, {"classify": head})


def written(folder: Path, model: Model, tokenizer: Tokenizer, about: About = About(), **task: Any) -> Path:
    folder.mkdir()
    write_model(folder, model, tokenizer, task or None, about)
    return folder


def test_a_card_says_only_what_is_known(tmp_path: Path, model: Model, small_tokenizer: Tokenizer) -> None:
    found = card(written(tmp_path / "out", model, small_tokenizer)).to_dict()
    known = {"library_name": "transformers", "pipeline_tag": "text-classification", "tags": ["bert", "bertie"]}
    assert found == known


def test_facts_and_results_are_in_the_form_of_the_hub(tmp_path: Path, model: Model, small_tokenizer: Tokenizer) -> None:
    scores = {"accuracy": 0.75, "matthews": 0.5, "f1": math.nan}
    about = About("Trained.", FACTS, "google-bert/bert-base-cased", "finetune", CardResults(scores, "dev: part.tsv"))
    found = card(written(tmp_path / "out", model, small_tokenizer, about))
    assert found.license == "apache-2.0"
    assert (found.language, found.datasets) == (["en", "de"], ["nyu-mll/glue"])
    assert found.base_model == "google-bert/bert-base-cased"
    assert found["base_model_relation"] == "finetune"
    assert found.metrics == ["accuracy", "matthews_correlation"]
    names = {"task_type": "text-classification", "dataset_type": "unknown", "dataset_name": "dev: part.tsv"}
    assert found.eval_results == [
        EvalResult(**names, metric_type="accuracy", metric_value=0.75, metric_name="accuracy"),
        EvalResult(**names, metric_type="matthews_correlation", metric_value=0.5, metric_name="matthews"),
    ]


def test_the_library_is_one_that_loads_the_model(
    tmp_path: Path, tiny_config: TransformerConfig, small_tokenizer: Tokenizer
) -> None:
    encoder = build_encoder(tiny_config)
    vectors = Model(encoder, {"embed": build_head(Embed(), tiny_config, tiny_config.hidden_size)})
    found = card(written(tmp_path / "vectors", vectors, small_tokenizer, kind="embed", max_length=16))
    assert (found.library_name, found.pipeline_tag) == ("sentence-transformers", "sentence-similarity")
    scores = Model(encoder, {"regress": build_head(Regress(), tiny_config, tiny_config.hidden_size)})
    folder = written(tmp_path / "scores", scores, small_tokenizer)
    values = json.loads((folder / "config.json").read_text())
    values["sbert_ce_default_activation_function"] = "torch.nn.modules.activation.Sigmoid"
    (folder / "config.json").write_text(json.dumps(values))
    write_card(folder, scores, (), About())
    assert (card(folder).library_name, card(folder).pipeline_tag) == ("sentence-transformers", "text-ranking")
    own = new_model(TransformerConfig(**{**vars(tiny_config), "norm_position": "pre"}), (MaskedLM(),), 0)
    found = card(written(tmp_path / "own", own, small_tokenizer))
    assert (found.library_name, found.pipeline_tag) == ("bertie", "feature-extraction")


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"license": "Apache License 2.0"}, "card.license is 'Apache License 2.0'.*apache-2.0"),
        ({"language": ("English",)}, "card.language is 'English'"),
        ({"datasets": ("https://hub/x",)}, "card.datasets is"),
    ],
)
def test_names_that_the_hub_does_not_know_are_refused(facts: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        CardFacts(**facts)


def test_a_fine_tuned_run_and_its_conversion_say_where_they_come_from(pretrained: Path, tmp_path: Path) -> None:
    """The base model is named by the cache of downloads; a copy keeps all of it."""
    cached = tmp_path / "models--me--small" / "snapshots" / ("0" * 40)
    cached.parent.mkdir(parents=True)
    cached.symlink_to(pretrained)
    rows = "text\tlabel\n" + "".join(f"the gudon {number}\t{'ab'[number % 2]}\n" for number in range(8))
    (tmp_path / "dev.tsv").write_text(rows)
    training = FinetuneTraining(steps=2, batch_size=4, precision="fp32")
    config = FinetuneConfig(Classify(), AdamW(), LinearDecay(), training, max_length=16, card=CardFacts("mit"))
    tuned = bertie.finetune(config, tmp_path / "dev.tsv", cached, tmp_path / "run", dev=tmp_path / "dev.tsv", threads=1)
    found = card(tmp_path / "run")
    assert (found.base_model, found["base_model_relation"], found.license) == ("me/small", "finetune", "mit")
    assert found.language is None
    assert found.eval_results is not None
    values = {each.metric_name: each.metric_value for each in found.eval_results}
    assert values == pytest.approx(tuned.scores, abs=1e-6)
    assert {each.dataset_name for each in found.eval_results} == {"dev.tsv"}
    assert "Fine-tuned from me/small." in (tmp_path / "run" / FILE).read_text()
    bertie.convert(tmp_path / "run", tmp_path / "out", "torch", threads=1, card=CardFacts(language=("en",)))
    copied = card(tmp_path / "out").to_dict()
    assert copied == found.to_dict() | {"language": ["en"]}


METADATA = "license: other\nlicense_name: own\nwidget: [1]\nmodel-index:\n- name: x\n  results: []"


def test_metadata_of_a_source_are_kept_if_they_hold_for_a_copy(tmp_path: Path) -> None:
    assert metadata_of(tmp_path, scores=True) == {}
    (tmp_path / FILE).write_text(f"---\n{METADATA}\n---\n# Title\n")
    kept = {"license": "other", "license_name": "own"}
    assert metadata_of(tmp_path, scores=True) == kept | {"eval_results": []}
    assert metadata_of(tmp_path, scores=False) == kept


@pytest.mark.parametrize(
    "metadata",
    [
        "- a list",
        "license: !!python/object/apply:os.system [false]",
        "model-index: 7",
    ],
)
def test_damaged_metadata_are_a_warning(metadata: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / FILE).write_text(f"---\n{metadata}\n---\n")
    assert metadata_of(tmp_path, scores=True) == {}
    [line] = capsys.readouterr().err.splitlines()
    assert f"{tmp_path / FILE}: its metadata cannot be read and is not kept" in line
