from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import changed, model_of, saved

import bertie
from bertie.base.errors import UsageError, UserError
from bertie.checkpoints.find import MODEL_FILES
from bertie.cli import main
from bertie.examples.texts import Example
from bertie.model.config import TransformerConfig
from bertie.predict.predictor import Predictor
from bertie.tasks import Classify
from bertie.tasks.inference import SEQUENCES_AT_ONCE
from bertie.tasks.span import Span
from bertie.tokenizers.tokenizer import Tokenizer

LABELS = ("bad", "good", "so-so")


@pytest.fixture(scope="module")
def tuned(tiny_config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    purpose = {"kind": "classify", "text": "review", "label": "stars", "labels": list(LABELS), "max_length": 20}
    model = model_of(tiny_config, Classify(labels=LABELS), seed=1)
    return saved(tmp_path_factory.mktemp("tuned"), model, small_tokenizer, purpose).folder


def load(folder: Path) -> Predictor:
    return bertie.load(folder, threads=1)


def test_loading_draws_no_random_weights(tuned: Path) -> None:
    state = torch.get_rng_state()
    load(tuned)
    assert torch.equal(torch.get_rng_state(), state)


def test_questions_without_ids_get_consecutive_ids(
    tiny_config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    model = saved(tmp_path, model_of(tiny_config, Span()), small_tokenizer, {"kind": "span", "max_length": 16})
    found = model.predict([("who", "ka")] * (SEQUENCES_AT_ONCE + 3))
    assert [each.id for each in found] == [str(i) for i in range(1, SEQUENCES_AT_ONCE + 4)]


def test_hidden_states_of_every_layer(pretrained: Path, small_texts: list[str]) -> None:
    model = load(pretrained)
    texts = [small_texts[0][:60], "", small_texts[1][:30]]
    found = model.hidden_states(texts)
    for states, text in zip(found, texts, strict=True):
        assert states.shape == (3, len(model.tokenizer.encode([text])[0]) + 2, 32)
        assert states.dtype == np.float32
        np.testing.assert_allclose(model.hidden_states([text])[0], states, atol=1e-5)
    [pair] = model.hidden_states([(texts[0], texts[2])])
    assert pair.shape[1] == found[0].shape[1] + found[2].shape[1] - 1
    assert model.hidden_states([]) == []


def test_long_texts_are_truncated(pretrained: Path, small_texts: list[str]) -> None:
    assert load(pretrained).hidden_states([" ".join(small_texts[:5])])[0].shape[1] == 64


def test_fill_mask_refuses_bad_text(pretrained: Path) -> None:
    model = load(pretrained)
    for text in ("no mask", "[mask]"):
        with pytest.raises(UsageError, match=r"there is no \[MASK\]"):
            model.fill_mask(text)
    with pytest.raises(UserError, match="the text has 63 tokens, but the model reads at most 62"):
        model.fill_mask("[MASK]" + " in" * 62)
    with pytest.raises(UsageError, match="expected a text and got a NoneType"):
        model.fill_mask(None)  # type: ignore[arg-type]


def test_fill_mask_ignores_the_padding_of_the_vocabulary(pretrained: Path, tmp_path: Path) -> None:
    """Rows of the embedding matrix beyond the tokenizer's entries are never predicted, however probable."""
    shutil.copytree(pretrained, tmp_path, dirs_exist_ok=True)
    weights = load_file(tmp_path / "model.safetensors")
    name, bias = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"
    weights[name] = torch.cat([weights[name], weights[name][:12]])
    weights[bias] = torch.cat([weights[bias], torch.full((12,), 50.0)])
    save_file(weights, tmp_path / "model.safetensors")
    changed(tmp_path / "config.json", vocab_size=512)
    [guesses] = load(tmp_path).fill_mask("[MASK]", top_k=1000)
    assert len(guesses) == 500


def test_predictions_do_not_depend_on_the_batch(tuned: Path, small_texts: list[str]) -> None:
    model = load(tuned)
    assert model.max_length == 20
    texts = [text[: 20 + 7 * (i % 9)] for i, text in enumerate(small_texts[:40])]
    predictions = model.predict(texts)
    for prediction in predictions:
        assert list(prediction.probabilities) == list(LABELS)
        assert sum(prediction.probabilities.values()) == pytest.approx(1)
        assert prediction.label == max(LABELS, key=prediction.probabilities.__getitem__)
    assert len({prediction.label for prediction in predictions}) > 1
    for text, prediction in zip(texts[:5], predictions, strict=False):
        [alone] = model.predict([text])
        assert alone.probabilities == pytest.approx(prediction.probabilities, abs=1e-5)


def test_the_number_of_truncated_texts_is_reported(
    tuned: Path, small_texts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    model = load(tuned)
    long = " ".join(small_texts)
    model.predict(["ka du", long, long])
    assert f"truncated 2 of 3 examples to {model.max_length} tokens" in capsys.readouterr().err
    model.predict(["ka du"])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("ending", [".jsonl", ".tsv", ".csv"])
def test_a_line_that_is_not_text_gives_one_error(tuned: Path, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"x{ending}"
    lines = [b"review"] + [b"ka du"] * 3 if ending != ".jsonl" else [b'{"review": "ka du"}'] * 4
    lines[2] = lines[2].replace(b"du", b"d\xe9")
    path.write_bytes(b"\n".join(lines))
    found = list(load(tuned).predict_file(path))
    wrong = 2 if ending == ".jsonl" else 1
    assert [isinstance(each, UserError) for each in found] == [i == wrong for i in range(len(lines) - (wrong == 1))]
    assert f"x{ending}:3: not UTF-8" in str(found[wrong])


def test_rows_before_an_unclosed_quote_are_predicted(tuned: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('review\nka du\nka\n"du\nin\n')
    found = load(tuned).predict_file(path)
    assert [next(found).label for _ in range(2)]
    with pytest.raises(UserError, match=r"x.csv:4: not valid CSV"):
        next(found)


def test_every_form_of_input_is_accepted(tuned: Path) -> None:
    model = load(tuned)
    forms = ["in the", {"review": "in the"}, {"review": "in the", "stars": "good"}, Example("in the", None, None, "")]
    found = model.predict(forms)  # type: ignore[arg-type]
    for other in found[1:]:
        assert other.probabilities == pytest.approx(found[0].probabilities, abs=1e-6)
    [pair] = model.predict([("in the", "and the")])
    [same] = model.predict([Example("in the", "and the", None, "")])
    assert pair.probabilities == pytest.approx(same.probabilities, abs=1e-6)
    assert pair.probabilities != pytest.approx(found[0].probabilities, abs=1e-4)


def test_predict_stream_is_lazy(tuned: Path) -> None:
    taken = 0

    def endless() -> object:
        nonlocal taken
        while True:
            taken += 1
            yield "in the"

    stream = load(tuned).predict_stream(endless())  # type: ignore[arg-type]
    next(stream)
    assert taken == SEQUENCES_AT_ONCE


def test_evaluate_scores_files_and_examples(tuned: Path, tmp_path: Path, small_texts: list[str]) -> None:
    model = load(tuned)
    texts = [text[:60] for text in small_texts[:30]]
    guesses = [prediction.label for prediction in model.predict(texts)]
    rows = [{"review": t, "stars": g if i % 3 else "good"} for i, (t, g) in enumerate(zip(texts, guesses, strict=True))]
    right = sum(row["stars"] == guess for row, guess in zip(rows, guesses, strict=True))
    path = tmp_path / "dev.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for data in (rows, path, str(path)):
        found = model.evaluate(data)  # type: ignore[arg-type]
        assert found["scores"]["accuracy"] == pytest.approx(right / 30)
        assert found["examples"] == 30
    with pytest.raises(UserError, match=r"none of the classes"):
        model.evaluate([{"review": "in", "stars": "great"}])
    with pytest.raises(UserError, match="no examples in it"):
        model.evaluate([])


def test_evaluate_writes_a_folder(tuned: Path, tmp_path: Path, small_texts: list[str]) -> None:
    model = load(tuned)
    texts = [text[:40] for text in small_texts[:7]] * (SEQUENCES_AT_ONCE // 6)  # more than one batch
    path, out = tmp_path / "dev.jsonl", tmp_path / "new" / "out"
    path.write_text("".join(json.dumps({"review": t, "stars": LABELS[i % 3]}) + "\n" for i, t in enumerate(texts)))
    plain = model.evaluate(path)
    found = model.evaluate(path, out=out)
    assert found == {**plain, "seconds": found["seconds"], "out": str(out)}
    assert "<iframe srcdoc=" in found._repr_html_()  # type: ignore[attr-defined]
    assert texts[0] in model.predict(texts[:1])._repr_html_()  # type: ignore[attr-defined]
    told = json.loads((out / "scores.json").read_text())
    assert told["scores"] == plain["scores"]
    assert told["examples"] == len(texts) == sum(row["count"] for row in told["classes"].values())
    lines = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    for number, (line, prediction) in enumerate(zip(lines, model.predict(texts), strict=True)):
        assert line["label"] == prediction.label
        assert line["probabilities"] == pytest.approx(prediction.probabilities, abs=1e-4)
        assert (line["gold"], line["source"]) == (LABELS[number % 3], f"dev.jsonl:{number + 1}")
    assert "on dev.jsonl</h1>" in (out / "report.html").read_text()
    (out / "report.html").write_text("old")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:9]))
    assert main(["evaluate", str(tuned), "--data", str(path), "--out", str(out)]) == 0
    assert "9 examples" in (out / "report.html").read_text()
    path.write_text('{"review": "a", "stars": "great"}\n')
    with pytest.raises(UserError, match="is none of the classes"):
        model.evaluate(path, out=out)
    assert "9 examples" in (out / "report.html").read_text()
    path = path.rename(path.with_name("other.jsonl"))
    for place, message in ((out, "holds another evaluation"), (tuned, "already exists and is not an evaluation")):
        with pytest.raises(UsageError, match=message):
            model.evaluate(path, out=place)
    assert [each.name for each in out.parent.iterdir()] == ["out"]


def test_predict_needs_a_task(pretrained: Path) -> None:
    with pytest.raises(UserError, match="was not fine-tuned for a task"):
        load(pretrained).predict(["a"])


def test_what_is_no_list_of_texts_or_pairs_is_refused(pretrained: Path, tuned: Path) -> None:
    states, predict = load(pretrained).hidden_states, load(tuned).predict
    for verb in (states, predict):
        for odd in ("in the", {"text": "in the"}, Path("in"), None):
            with pytest.raises(UsageError, match="put it in brackets"):
                verb(odd)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="two texts and this one has 3"):
            verb([("a", "b", "c")])  # type: ignore[list-item]
    with pytest.raises(UserError, match="is not a text but of type list"):
        states([["a", "b"]])  # type: ignore[list-item]
    with pytest.raises(UserError, match="half of a surrogate pair"):
        states(["in", "\ud800"])
    with pytest.raises(UsageError, match="not both"):
        states(["in", ("in", "the")])


@pytest.mark.parametrize(
    ("name", "by_others", "message"),
    [
        ("bert.pooler.dense.weight", False, r"model\.safetensors lacks the weights of heads\.classify"),
        ("classifier.bias", True, r"model\.safetensors lacks the weights of "),
        ("classifier.weight", True, r"model\.safetensors lacks the output layer of "),
    ],
)
def test_missing_weights_are_named(tuned: Path, tmp_path: Path, name: str, by_others: bool, message: str) -> None:
    shutil.copytree(tuned, tmp_path, dirs_exist_ok=True)
    if by_others:
        (tmp_path / "task.json").unlink()
    weights = load_file(tmp_path / "model.safetensors")
    del weights[name]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=message):
        load(tmp_path)


def test_labels_must_match_the_head(tuned: Path, tmp_path: Path) -> None:
    shutil.copytree(tuned, tmp_path, dirs_exist_ok=True)
    for name, key, value in (("task", "labels", ["a", "b"]), ("config", "id2label", {"0": "a", "1": "b"})):
        changed(tmp_path / f"{name}.json", **{key: value})
        with pytest.raises(UserError, match=rf"{name}\.json names 2 labels and the head has 3 outputs"):
            load(tmp_path)
        (tmp_path / "task.json").unlink(missing_ok=True)  # as in other models


def test_other_labels_are_refused(tuned: Path, tmp_path: Path) -> None:
    """In another order, each label would be predicted under the name of another one."""
    assert bertie.load(tuned, task=Classify(text="words"), threads=1).task.labels == LABELS
    for labels in (LABELS[::-1], LABELS[:2]):
        with pytest.raises(UsageError, match=f"the model was trained with {', '.join(LABELS)}, in this order"):
            bertie.load(tuned, task=Classify(labels=labels), threads=1)
    shutil.copytree(tuned, tmp_path, dirs_exist_ok=True)
    (tmp_path / "task.json").unlink()  # as in other models, with LABEL_0 …
    renamed = bertie.load(tmp_path, task=Classify(labels=("a", "b", "c")), threads=1)
    [plain] = load(tmp_path).predict(["the big ship"])
    [found] = renamed.predict(["the big ship"])
    assert list(found.probabilities.values()) == list(plain.probabilities.values())
    assert list(found.probabilities) == ["a", "b", "c"]


def test_the_model_is_in_evaluation_mode(pretrained: Path, tiny_config: TransformerConfig) -> None:
    model = load(pretrained)
    assert not model.model.training
    assert model.task is None
    assert model.max_length == 64
    assert replace(tiny_config) == model.model.encoder.config


def test_max_length_is_that_of_pretraining(pretrained: Path, tmp_path: Path) -> None:
    shutil.copytree(pretrained, tmp_path, dirs_exist_ok=True)
    (tmp_path / "config.toml").write_text('[layout]\nkind = "pairs"\nmax_length = 24\n')
    assert load(tmp_path).max_length == 24
    [states] = load(tmp_path).hidden_states(["the " * 60])
    assert states.shape[1] == 24
    step = tmp_path / "checkpoints" / "step-00000001"
    step.mkdir(parents=True)
    for name in MODEL_FILES:
        if (pretrained / name).is_file():  # WordPiece and byte-level BPE have different files
            (step / name).write_bytes((pretrained / name).read_bytes())
    assert load(step).max_length == 24


def test_malformed_phases_are_refused(pretrained: Path, tmp_path: Path) -> None:
    shutil.copytree(pretrained, tmp_path, dirs_exist_ok=True)
    (tmp_path / "config.toml").write_text("phases = [1]\n")
    with pytest.raises(UserError, match=r"config.toml: phases is "):
        load(tmp_path)


def test_a_run_may_be_in_a_folder_called_checkpoints(
    pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(pretrained, tmp_path / "checkpoints" / "mine")
    (run / "config.toml").write_text('[layout]\nkind = "pairs"\nmax_length = 24\n')
    shutil.copytree(pretrained, run / "checkpoints" / "step-00000001")
    assert load(run).max_length == 24
    monkeypatch.chdir(run / "checkpoints")
    assert load(Path("step-00000001")).max_length == 24
