"""`bertie inspect`: inputs, the folder that it writes, and what it reports."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet
import pytest

import bertie
from bertie import cli
from bertie.base.errors import UsageError, UserError
from bertie.checkpoints.folder import write_model
from bertie.inspect.inspect import NEEDS
from bertie.inspect.mentions import GAP_COLUMNS
from bertie.model.encoder import build_encoder
from bertie.model.encoders.lstm import LstmConfig
from bertie.model.model import Model
from bertie.tokenizers.tokenizer import NormalizerOptions, Tokenizer

TEXTS = ["The gat go the gatun.", "go, go", "", "the " * 80, "\x00", "a fet"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.jsonl"
    rows = [json.dumps({"text": line}) for line in TEXTS]
    path.write_text("\n".join([*rows[:3], '{"text": 3}', *rows[3:]]) + "\n")
    return path


def test_a_folder_with_every_table_is_written(
    pretrained: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    code = cli.main(["inspect", str(pretrained), "--text", str(text), "--out", str(out), "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    result = json.loads(captured.out.splitlines()[-1])
    numbers = json.loads((out / "inspect.json").read_text())
    assert (numbers["layers"], numbers["heads"]) == (2, 4)
    assert numbers["text"] == result["text"]
    assert {name: result["text"][name] for name in ("texts", "truncated", "empty", "unreadable")} == {
        "texts": 4,
        "truncated": 1,
        "empty": 2,
        "unreadable": 1,
    }
    assert {"heads", "uniform_head", "distances", "sentence_attention"} <= set(result["tables"])
    assert {f"{name}.csv" for name in result["tables"]} == {path.name for path in (out / "tables").glob("*.csv")}
    assert list(numbers["tables"]["sentence_attention"]) == ["meaning"]  # its numbers are many
    for name in result["tables"]:
        table = pyarrow.parquet.read_table(out / "tables" / f"{name}.parquet")
        stored = numbers["tables"][name]
        assert name == "sentence_attention" or table.to_pydict() == stored["columns"]
        assert list(stored["meaning"]) == table.column_names
        assert (out / "tables" / f"{name}.csv").is_file()
    assert "truncated 1 of 4 texts to 64 tokens" in captured.err
    assert "2 texts without tokens" in captured.err
    assert "text.jsonl:4" in captured.err
    assert "to [SEP]: most in head" in captured.err


def test_a_treebank_and_mentions_are_read(pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = "1\tthe\t_\tDET\t_\t_\t2\tdet\t_\t_\n2\tgat\t_\tNOUN\t_\t_\t0\troot\t_\t_\n\n"
    (tmp_path / "a.conllu").write_text(30 * tree)
    mentions = "\t".join(["1", "fatun, gat, he", "he", "12", "fatun", "0", "TRUE", "gat", "7", "FALSE", "u"])
    (tmp_path / "gap.tsv").write_text("\n".join(["\t".join(GAP_COLUMNS), *(30 * [mentions])]) + "\n")
    out, inputs = (
        tmp_path / "out",
        ["--treebank", str(tmp_path / "a.conllu"), "--coreference", str(tmp_path / "gap.tsv")],
    )
    code = cli.main(["inspect", str(pretrained), *inputs, "--out", str(out), "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    result = json.loads(captured.out.splitlines()[-1])
    numbers = json.loads((out / "inspect.json").read_text())
    assert result["tables"] == ["relations", "relation_heads", "coreference_best", "coreference"]  # no long sentence
    assert (numbers["treebank"]["sentences"], numbers["coreference"]["texts"]) == (30, 30)
    for name in result["tables"]:
        stored = numbers["tables"][name]
        assert list(stored["meaning"]) == list(stored["columns"])
        assert pyarrow.parquet.read_table(out / "tables" / f"{name}.parquet").to_pydict() == stored["columns"]
    assert numbers["tables"]["relations"]["columns"]["accuracy"][-1] == 1  # a word has one other word
    assert "antecedent, masculine pronoun: head " in captured.err
    assert "(nearest mention: 0.0 %)" in captured.err


def test_an_earlier_inspection_is_replaced_and_other_folders_are_not(
    pretrained: Path, text: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    bertie.inspect_model(pretrained, bertie.Inspection(text=text), out)
    first = (out / "inspect.json").read_bytes()
    bertie.inspect_model(pretrained, bertie.Inspection(text=text), out)
    assert (out / "inspect.json").read_bytes() == first
    bertie.inspect_model(pretrained, bertie.Inspection(text=text, max_texts=2), out)
    assert json.loads((out / "inspect.json").read_text())["text"]["texts"] == 2
    (out / "notes.txt").touch()
    with pytest.raises(UsageError, match="already exists"):
        bertie.inspect_model(pretrained, bertie.Inspection(text=text), out)
    with pytest.raises(UsageError, match="already exists"):
        bertie.inspect_model(pretrained, bertie.Inspection(text=text), pretrained)


def test_a_failed_inspection_leaves_nothing_behind(pretrained: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(UserError, match="no texts in it"):
        bertie.inspect_model(pretrained, bertie.Inspection(text=tmp_path / "empty.txt"), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.txt"]


def test_wrong_arguments_are_refused(pretrained: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(UsageError, match="give --text"):
        bertie.inspect_model(pretrained, bertie.Inspection(), out)
    with pytest.raises(UsageError, match="no such file"):
        bertie.inspect_model(pretrained, bertie.Inspection(text=tmp_path / "none.txt"), out)
    with pytest.raises(UsageError, match="max_texts is -1"):
        bertie.Inspection(max_texts=-1)
    with pytest.raises(UsageError, match="read several times: give a file"):
        bertie.Inspection(text=Path("-"))
    for name, needed in NEEDS.items():
        value = 1 if name == "max_texts" else "x"
        with pytest.raises(
            UsageError, match=f"--{name.replace('_', '-')} is for what --{needed.replace('_', '-')} names"
        ):
            bertie.Inspection(**{name: value})
    (tmp_path / "two.jsonl").write_text('{"left": "a", "right": "b"}\n')
    with pytest.raises(UsageError, match="Name one with --text-column"):
        bertie.inspect_model(pretrained, bertie.Inspection(text=tmp_path / "two.jsonl"), out)
    bertie.inspect_model(pretrained, bertie.Inspection(text=tmp_path / "two.jsonl", text_column="left"), out)
    assert not list(tmp_path.glob(".out*"))


def test_models_without_attention_are_refused(
    small_tokenizer: Tokenizer, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model").mkdir()
    write_model(tmp_path / "model", Model(build_encoder(LstmConfig(2, 16, 16, 500)), {}), small_tokenizer)
    out = ["--out", str(tmp_path / "out")]
    for command in (["inspect", "--text", str(text)], ["prune-heads", "--heads", "1.1"]):
        assert cli.main([*command, str(tmp_path / "model"), *out]) == 1
        assert "of the kind lstm, whose heads cannot be inspected" in capsys.readouterr().err
    assert not list(tmp_path.glob("*out*"))


def test_a_model_that_computes_no_numbers_is_refused(pretrained: Path, text: Path, tmp_path: Path) -> None:
    model = bertie.load(pretrained)
    for parameter in model.model.encoder.parameters():
        parameter.data *= 1e30  # finite, but not what the layers compute
    with pytest.raises(UserError, match="the hidden states are NaN or infinity"):
        bertie.inspect_model(model, bertie.Inspection(text=text), tmp_path / "out")
    assert not list(tmp_path.glob("*out*"))


def test_probes_are_trained_on_one_treebank_and_tested_on_another(
    pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    word = "{0}\t{1}\t_\tNOUN\t_\t_\t{2}\tx\t_\t_\n"
    sentence = word.format(1, "gat", 2) + word.format(2, "go", 0) + word.format(3, "fet", 2) + "\n"
    train, test = tmp_path / "train.conllu", tmp_path / "test.conllu"
    train.write_text(sentence * 8)
    test.write_text(sentence * 4)
    arguments = ["inspect", str(pretrained), "--out", str(tmp_path / "out"), "--treebank-train", str(train)]
    copy = shutil.copytree(pretrained, tmp_path / "copy")
    more = ["--treebank", str(test), "--json", "--vectors", str(copy), "--probe-epochs", "2"]
    assert cli.main([*arguments, *more]) == 0
    probes = json.loads(capsys.readouterr().out.splitlines()[-1])["probes"]
    assert (probes["train"]["file"], probes["test"]["file"]) == ("train.conllu", "test.conllu")
    assert (probes["epochs"], probes["vectors"]) == (2, "copy")
    words = ["inspect", str(pretrained), "--out", str(tmp_path / "out"), "--treebank", str(test), "--vectors", "x"]
    assert cli.main(words) == 2
    assert "omit --vectors" in capsys.readouterr().err
    assert cli.main(arguments) == 2
    assert "add --treebank" in capsys.readouterr().err


@pytest.mark.parametrize("drop", [False, True])
def test_measures_without_test_data_are_left_out_of_the_page(pretrained: Path, tmp_path: Path, drop: bool) -> None:
    word = "{0}\t{1}\t_\t{2}\t_\t_\t{3}\tx\t_\t_\n"
    train, test = tmp_path / "train.conllu", tmp_path / "test.conllu"
    train.write_text((word.format(1, "gat", "NOUN", 2) + word.format(2, "go", "VERB", 0) + "\n") * 4)
    test.write_text((word.format(1, ".", "_", 0) + "\n") * 2)  # no arcs, and no parts of speech
    model = bertie.load(pretrained)
    if drop:  # not even a word
        model = replace(
            model, tokenizer=Tokenizer.build(model.tokenizer.vocabulary, NormalizerOptions(drop_punctuation=True))
        )
    given = bertie.Inspection(treebank=test, treebank_train=train, probe_epochs=1)
    bertie.inspect_model(model, given, tmp_path / "out")
    page = (tmp_path / "out" / "inspect.html").read_text()
    assert "structural probe" in page
    assert "right-branching chain" not in page


def test_layers_are_compared_with_those_of_other_models(
    pretrained: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copies = [str(shutil.copytree(pretrained, tmp_path / name)) for name in ("one", "two")]
    arguments = ["inspect", str(pretrained), "--out", str(tmp_path / "out"), "--compare", *copies, "--json"]
    assert cli.main([*arguments, "--text", str(text), "--loss-tokens", "0"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out.splitlines()[-1])["geometry"]["compared"] == ["one", "two"]
    assert "CKA with the same layer of another model" in (tmp_path / "out" / "inspect.html").read_text()
    assert "one: the same hidden states in all layers" in captured.err
    assert cli.main(arguments) == 2
    assert "add --text" in capsys.readouterr().err


def test_the_layers_of_checkpoints_are_drawn_by_step(pretrained: Path, text: Path, tmp_path: Path) -> None:
    names = ["step-00000002", "step-00000010", "step-00000100", "other"]
    copies = tuple(str(shutil.copytree(pretrained, tmp_path / name)) for name in names)
    given = bertie.Inspection(text=text, compare=copies, loss_tokens=0)
    bertie.inspect_model(pretrained, given, tmp_path / "out")
    page = (tmp_path / "out" / "inspect.html").read_text()
    assert (
        page.count(
            "CKA with the same layer of a checkpoint against step of the checkpoint: embeddings, layer 1, layer 2"
        )
        == 1
    )
    assert f"mean cosine against layer: {pretrained.name}, other" in page
    assert f"CKA with the same layer of another model against layer: {pretrained.name}, other" in page
