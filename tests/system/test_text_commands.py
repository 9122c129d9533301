"""The commands that prepare text, as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bertie.cli import main
from bertie.corpus.shards import open_shards
from bertie.tokenizers.tokenizer import Tokenizer


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    lines = [f"The cat number {n} sat on mat {n * n}.\tTopic {n % 3}" for n in range(200)]
    (folder / "a.tsv").write_text("body\ttopic\n" + "\n".join(lines) + "\nno topic\n")
    (folder / "b.csv").write_text("topic,body\n" + "\n".join(f'x,"Dogs, {n} of them, ran home."' for n in range(100)))
    return folder


def run_json(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[dict, str]:
    """Run a command; return its JSON result and what it printed to stderr."""
    capsys.readouterr()
    assert main([*map(str, words), "--json"]) == 0
    out, said = capsys.readouterr()
    return json.loads(out.splitlines()[-1]), said


def test_tables_to_shards(texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    field = ("--text-field", "body", "--workers", "1")
    train = ("tokenizer", "train", texts, "--vocab-size", 90, *field)
    made, said = run_json(capsys, *train, "--user-tokens", "<url>", "--unused", 2, "--out", tmp_path / "tokenizer")
    assert "skipped 1 record: columns that do not match the first line" in said
    assert made["size"] == 90
    assert made["fit"]["pieces_per_word"] > 1
    likely, _ = run_json(capsys, *train, "--criterion", "likelihood", "--cased", "--out", tmp_path / "likely")
    assert likely["fingerprint"] != made["fingerprint"]
    flags = ("--tokenizer", tmp_path / "tokenizer", "--eval-share", 0.1, *field)
    prepared, said = run_json(capsys, "prepare", texts, *flags, "--min-characters", 27, "--out", tmp_path / "shards")
    assert prepared["skipped"] == {"columns that do not match the first line": 1}
    assert "left out" in said
    assert prepared["documents"] == sum(side["documents"] for side in prepared["splits"].values())
    checked, said = run_json(capsys, "prepare", "--check", tmp_path / "shards")
    assert checked["splits"] == prepared["splits"]
    assert "intact" in said
    file = tmp_path / "shards" / "train" / "00000.tokens.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    assert main(["prepare", "--check", str(tmp_path / "shards")]) == 1
    assert "00000.tokens.npy was altered" in capsys.readouterr().err
    assert main(["prepare", str(texts), *map(str, flags), "--strict", "--out", str(tmp_path / "none")]) == 1
    assert "1 column, but the first line has 2" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_check_takes_no_other_argument(texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", str(texts), "--check", str(tmp_path)]) == 2
    assert main(["prepare", str(texts), "--out", str(tmp_path / "out")]) == 2
    assert "--tokenizer" in capsys.readouterr().err


def test_inspect_compares_two_tokenizers(texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for size in (70, 110):
        words = ("--vocab-size", size, "--text-field", "body", "--out", tmp_path / str(size))
        run_json(capsys, "tokenizer", "train", texts, *words)
    folders = (tmp_path / "70", tmp_path / "110")
    alone, said = run_json(capsys, "tokenizer", "inspect", folders[0])
    assert alone["tokenizers"][0]["entries"] == 70
    assert "pieces_per_word" not in alone["tokenizers"][0]
    both, said = run_json(capsys, "tokenizer", "inspect", *folders, "--text", texts, "--text-field", "body")
    small, large = both["tokenizers"]
    assert small["pieces_per_word"] > large["pieces_per_word"] >= 1
    assert small["whole"] < large["whole"] <= 1
    assert small["words"] == large["words"] > 1000
    assert all(one > other for one, other in (word["pieces"] for word in both["apart"]))
    for words in ("pieces per word", "words kept whole", "longest entries of", "split differently"):
        assert words in said
    assert main(["tokenizer", "inspect", *map(str, [*folders, *folders])]) == 2


def test_a_vocabulary_that_does_not_fit_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.jsonl"
    words = [f"{'longword' * 13}{n} and word number {n}." for n in range(40)]
    text.write_text("".join(json.dumps({"text": word}) + "\n" for word in words))
    made, said = run_json(capsys, "tokenizer", "train", text, "--vocab-size", 50, "--out", tmp_path / "tokenizer")
    assert made["fit"]["unknown"] == pytest.approx(1 / 6)
    known = f"{100 * made['fit']['unknown_characters']:.1f} %"
    expected = f"warning: {tmp_path / 'tokenizer'}: 16.7 % of the words ({known} of the"
    assert expected in said
    seen, said = run_json(capsys, "tokenizer", "inspect", tmp_path / "tokenizer", "--text", text)
    assert seen["tokenizers"][0]["unknown"] == made["fit"]["unknown"]
    assert expected in said
    flags = ("--tokenizer", tmp_path / "tokenizer", "--eval-share", 0.2, "--out", tmp_path / "shards")
    prepared, said = run_json(capsys, "prepare", text, *flags)
    lost = prepared["unknown_characters"] / prepared["characters"]
    assert lost == pytest.approx(made["fit"]["unknown_characters"])
    share = f"16.7 % of the words ({100 * made['fit']['unknown_characters']:.1f} % of the characters) are [UNK]"
    assert f"warning: the corpus: {share}" in said
    assert share in (tmp_path / "shards" / "report.html").read_text()


def test_accents_of_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Él vio el año. " * 30)
    configs = []
    for number, flags in enumerate([(), ("--keep-accents", "keep"), ("--keep-accents", "strip"), ("--cased",)]):
        out = tmp_path / str(number)
        run_json(capsys, "tokenizer", "train", text, "--vocab-size", 24, *flags, "--out", out)
        configs.append(json.loads((out / "tokenizer_config.json").read_text())["strip_accents"])
        normalizer = json.loads((out / "tokenizer.json").read_text())["normalizer"]
        assert normalizer["strip_accents"] is configs[-1]
    assert configs == [False, False, True, None]


def test_encode_and_decode(small_tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_tokenizer.save(tmp_path)
    text = small_tokenizer.vocabulary[-1] + " [MASK]"
    assert main(["tokenizer", "encode", str(tmp_path), text, "x"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["text"] == text
    assert first["ids"][1:-1] == small_tokenizer.encode([text])[0].tolist()
    assert [text[a:b] for a, b in first["offsets"][1:2]] == [small_tokenizer.vocabulary[-1]]
    assert second["text"] == "x"
    decoded, _ = run_json(capsys, "tokenizer", "decode", tmp_path, *first["ids"][1:2])
    assert decoded == {"text": small_tokenizer.vocabulary[-1], "tokens": [small_tokenizer.vocabulary[-1]]}
    assert main(["tokenizer", "decode", str(tmp_path), "9999"]) == 1
    assert "9999 is not an id of this vocabulary" in capsys.readouterr().err


def test_extend(texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--text-field", "body")
    run_json(capsys, "tokenizer", "train", texts, "--vocab-size", 70, *flags, "--out", tmp_path / "old")
    (tmp_path / "new.txt").write_text("Dogs number their numbers.\n\n" * 20)
    made, _ = run_json(capsys, "tokenizer", "extend", tmp_path / "old", tmp_path / "new.txt", "--out", tmp_path / "new")
    assert made["size"] == 70 + len(made["added"])
    assert "numbers" in made["added"]
    words = ("--tokenizer", tmp_path / "new", "--out", tmp_path / "shards", "--eval-share", 0.1, *flags)
    run_json(capsys, "prepare", texts, *words)
    opened = open_shards(tmp_path / "shards")
    assert opened.tokenizer.vocabulary[70:] == made["added"]
    assert np.isin(np.arange(70, 70 + len(made["added"])), np.concatenate(opened.train.tokens)).any()


def test_vocabulary_of_line_breaks_without_punctuation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = tmp_path / "text.jsonl"
    lines = [json.dumps({"text": f"Cat {n}, again.\nIt sat\n\non mat {n}!"}) for n in range(60)]
    texts.write_text("\n".join(lines))
    flags = ("--vocab-size", 60, "--drop-punctuation", "--line-breaks", "--user-tokens", "C++")
    run_json(capsys, "tokenizer", "train", texts, *flags, "--out", tmp_path / "tokenizer")
    run_json(
        capsys, "prepare", texts, "--tokenizer", tmp_path / "tokenizer", "--eval-share", 0.2, "--out", tmp_path / "out"
    )
    opened = open_shards(tmp_path / "out")
    assert opened.tokenizer.vocabulary[5:7] == ["\n", "C++"]
    assert not {",", ".", "!"} & set(opened.tokenizer.vocabulary)
    text = opened.tokenizer.decode(opened.train.slice(0, int(opened.train.document_starts[1]))[0])
    assert text.replace(" ", "").count("\n") == 3
    assert main(["tokenizer", "encode", str(tmp_path / "tokenizer"), "cat,\nC++."]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == ["[CLS]", "cat", "\n", "C++", "[SEP]"]
