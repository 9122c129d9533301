"""Damaged and foreign model folders, unsuitable examples, and wrong usage: each gives one clear line."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.system.conftest import SMALL, names_setting

if TYPE_CHECKING:
    from bertie import Predictor

Refuse = Callable[..., str]
BERTIE = str(Path(sys.executable).with_name("bertie"))
FINETUNE = "--max-length 32 --training.epochs 1 --training.batch-size 8 --threads 1"


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    rows = [{"text": f"the {'big' if i % 2 else 'small'} ship", "label": "xy"[i % 2]} for i in range(16)]
    write(folder / "train.jsonl", *rows)
    write(folder / "dev.jsonl", *rows[:4])
    write(folder / "unseen.jsonl", rows[0], {"text": "b", "label": "z"})
    write(folder / "empty.jsonl")
    return folder


@pytest.fixture(scope="module")
def pretrained(small_shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from bertie.cli import main

    run = tmp_path_factory.mktemp("pretrained") / "run"
    assert main(["pretrain", "tiny", "--data", str(small_shards), "--out", str(run), *SMALL.split()]) == 0
    return run


def finetune(data: Path, model: Path | str, out: Path, *flags: str) -> list[str]:
    files = ["--train", str(data / "train.jsonl"), "--dev", str(data / "dev.jsonl")]
    return ["finetune", "classify", *files, "--model", str(model), "--out", str(out), *FINETUNE.split(), *flags]


@pytest.fixture(scope="module")
def classifier(data: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from bertie.cli import main

    run = tmp_path_factory.mktemp("classifier") / "run"
    assert main(finetune(data, pretrained, run)) in (0, 1)  # 1 if it learns nothing: see its manifest
    assert (run / "manifest.json").is_file()
    return run


@pytest.fixture
def model(classifier: Path, tmp_path: Path) -> Path:
    """A copy to damage, without the manifest, which would detect the damage."""
    folder = shutil.copytree(classifier, tmp_path / "model")
    (folder / "manifest.json").unlink()
    return folder


FLAGS = {
    "0": "training.batch-size training.row-tokens training.keep-checkpoints",
    "-1": "training.epochs training.steps training.max_grad_norm max-train-examples seed",
    "2": "hidden-dropout-prob",
    "3": "max-length",
    "513": "max-length",
    "nan": "training.learning-rate",
}


@pytest.mark.parametrize(("value", "flag"), [(value, flag) for value in FLAGS for flag in FLAGS[value].split()])
def test_flags_of_finetuning(
    refuse: Refuse, data: Path, pretrained: Path, tmp_path: Path, value: str, flag: str
) -> None:
    refuse(finetune(data, pretrained, tmp_path / "out", f"--{flag}", value), 2, names_setting(flag))


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--task.kind", "regress", "'regress'"),
        ("--task.labels", "x", "task.labels names one class, 'x'"),
        ("--task.text", "nosuch", "no column 'nosuch'; its columns are: text, label"),
    ],
)
def test_flags_of_the_task(
    refuse: Refuse, data: Path, pretrained: Path, tmp_path: Path, flag: str, value: str, words: str
) -> None:
    refuse(finetune(data, pretrained, tmp_path / "out", flag, value), 2, words)


@pytest.mark.parametrize(
    ("side", "name", "code", "words"),
    [
        ("--train", "nosuch.jsonl", 2, "no such file: {path}"),
        ("--dev", "nosuch.jsonl", 2, "no such file: {path}"),
        ("--train", "empty.jsonl", 1, "empty.jsonl: no examples in it"),
        ("--dev", "empty.jsonl", 1, "empty.jsonl: no examples in it"),
        ("--dev", "unseen.jsonl", 1, "unseen.jsonl:2: the label 'z' is none of the classes"),
    ],
)
def test_unsuitable_examples(
    refuse: Refuse, data: Path, pretrained: Path, tmp_path: Path, side: str, name: str, code: int, words: str
) -> None:
    path = data / name
    refuse([*finetune(data, pretrained, tmp_path / "out"), side, str(path)], code, words.format(path=path))


def test_folders_without_a_model(refuse: Refuse, data: Path, small_shards: Path, tmp_path: Path) -> None:
    refuse(finetune(data, small_shards, tmp_path / "out"), 2, f"{small_shards} holds no config.json")
    refuse(finetune(data, data / "train.jsonl", tmp_path / "out"), 2, f"{data / 'train.jsonl'} is a file")
    refuse(finetune(data, tmp_path / "nosuch", tmp_path / "out"), 2, f"{tmp_path / 'nosuch'} does not exist")
    refuse(["predict", "x" * 300, "text"], 2, "File name too long")
    refuse(["fill-mask", "a forgotten run [MASK]", "text"], 2, "is not a folder, and the download from the hub failed")


@pytest.mark.parametrize("where", ["http://127.0.0.1:9", pytest.param("http://nosuch.invalid", marks=pytest.mark.slow)])
def test_an_unreachable_hub_gives_one_line(where: str, tmp_path: Path) -> None:
    """Runs in a process of its own, because the hub's client reads its settings on import."""
    settings = {"HF_ENDPOINT": where, "HF_HOME": str(tmp_path)}
    command = [BERTIE, "predict", "nobody/nothing", "text"]
    # There are no endless retries: it takes about 3 s.
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=os.environ | settings, check=False)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("bertie: nobody/nothing is not a folder, and the download from the hub failed: ")


CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"hidden_size": -16}, "model.hidden_size is -16"),
    ({"num_hidden_layers": 1}, "describes a model without encoder.layers.1."),
    ({"hidden_act": ["gelu"]}, "hidden_act"),
    ({"id2label": {"0": "x"}}, "config.json names 1 labels and the head has 2 outputs"),
    ({"id2label": {"0": "x", "1": "x"}}, "two classes of id2label have the same name"),
]


@pytest.mark.parametrize(("change", "words"), CONFIGS, ids=[str(change) for change, _ in CONFIGS])
def test_wrong_config_json(refuse: Refuse, model: Path, change: dict[str, Any], words: str) -> None:
    (model / "task.json").unlink()  # as in other models
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | change))
    refuse(["predict", str(model), "text"], 1, words, str(model))


def test_files_that_are_no_pickled_weights(refuse: Refuse, model: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    refuse(["predict", str(model), "text"], 1, "pytorch_model.bin is")
    (model / "pytorch_model.bin").rename(model / "weights")
    (model / "model.safetensors.index.json").write_text("{}")
    refuse(["predict", str(model), "text"], 1, "model.safetensors.index.json")


def test_wrong_headers_of_safetensors(refuse: Refuse, model: Path) -> None:
    lie = b'{"a": {"dtype": "F32", "shape": [1000000], "data_offsets": [0, 4]}}'
    for content in (b"\xff" * 8, (2**62).to_bytes(8, "little") + b"{}", len(lie).to_bytes(8, "little") + lie + b"1234"):
        (model / "model.safetensors").write_bytes(content)
        refuse(["predict", str(model), "text"], 1, "model.safetensors is damaged")


def test_weights_of_another_shape(refuse: Refuse, model: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    good = load_file(model / "model.safetensors")
    query = "bert.encoder.layer.0.attention.self.query.weight"
    for weights, words in (
        ({"x": torch.ones(2)}, "lacks the weights encoder.embeddings.word.weight"),
        ({**good, query: good[query] * torch.nan}, f"is damaged: {query} holds NaN or infinity"),
        ({**good, query: torch.ones(3)}, "lacks the weights encoder.layers.0.attention.qkv.weight"),
        ({name: t for name, t in good.items() if "pooler" not in name}, "lacks the weights of heads.classify.pooler"),
        (
            {name: t for name, t in good.items() if name != "classifier.weight"},
            "lacks the weights of heads.classify.out",
        ),
    ):
        save_file(weights, model / "model.safetensors")
        refuse(["predict", str(model), "text"], 1, words)


@pytest.mark.parametrize("value", ["long", 100000, -5])
def test_a_maximum_length_outside_the_model_is_refused(refuse: Refuse, model: Path, value: object) -> None:
    told = json.loads((model / "task.json").read_text())
    (model / "task.json").write_text(json.dumps({**told, "max_length": value}))
    refuse(["predict", str(model), "text"], 1, "task.json: max_length is", "the model reads 4 to 512 tokens")


USAGE: list[tuple[str, int, str]] = [
    ("predict {classifier}", 2, "give either texts or --input FILE"),
    ("predict {classifier} text --input {data}/dev.jsonl", 2, "give either texts or --input FILE"),
    ("predict {classifier} --input {data}", 2, "is a folder: give a file"),
    ("predict {classifier} half\udcff", 2, "is not UTF-8"),
    ("predict {classifier} --input {data}/empty.jsonl", 1, "empty.jsonl: no examples in it"),
    ("predict {pretrained} text", 1, "was not fine-tuned for a task"),
    ("evaluate {pretrained} --data {data}/dev.jsonl", 1, "was not fine-tuned for a task"),
    ("evaluate {classifier} --data {data}/unseen.jsonl", 1, "unseen.jsonl:2: the label 'z' is none of the classes"),
    ("evaluate {classifier} --data {data}/dev.jsonl --out {data}", 2, "is not an evaluation: choose another --out"),
    ("fill-mask {pretrained} [mask]", 2, "there is no [MASK] in the text"),
    (f"fill-mask {{pretrained}} {'[MASK]' * 600}", 1, "the model reads at most 30: shorten it"),
    ("fill-mask {pretrained} [MASK] --top-k 0", 2, "give at least 1"),
    ("fill-mask {classifier} [MASK]", 1, "has no masked-LM head"),
]


@pytest.mark.parametrize(("line", "code", "words"), USAGE, ids=[ascii(line[-30:]) for line, _, _ in USAGE])
def test_wrong_usage(
    refuse: Refuse, data: Path, pretrained: Path, classifier: Path, line: str, code: int, words: str
) -> None:
    places = {"data": data, "pretrained": pretrained, "classifier": classifier}
    refuse([word.format(**places) for word in line.split()], code, words)


@pytest.fixture(scope="module")
def predictor(classifier: Path) -> Predictor:
    import bertie

    return bertie.load(classifier, threads=1)


def test_unusual_texts_are_accepted(predictor: Predictor) -> None:
    odd = ["", " ", "\0", "\u200b", "[MASK] [SEP]", "x" * 1_000_000, "word " * 200_000, "\N{PILE OF POO}" * 50]
    assert len(predictor.predict(odd)) == len(odd)
    for text, states in zip(odd, predictor.hidden_states(odd), strict=True):
        assert 2 <= states.shape[1] <= 32, text[:20]
    assert predictor.predict([]) == []
    assert predictor.hidden_states([]) == []


def test_a_closed_pipe_is_no_error(classifier: Path, tmp_path: Path) -> None:
    """Like `bertie predict … | head -1`, with more output than a pipe buffers, and with less."""
    path = write(tmp_path / "many.jsonl", *[{"text": "the big ship"}] * 1500)
    predict = ["predict", str(classifier), "--input", str(path)]
    for arguments in (predict, ["--help"]):
        command = [BERTIE, *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout
            assert process.stderr
            if arguments == predict:
                assert json.loads(process.stdout.readline())["label"] in "xy"
            process.stdout.close()
            assert process.stderr.read() == ""
        assert process.returncode == 0


def test_one_text_per_line_from_a_file_or_a_pipe(
    classifier: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    from bertie.cli import main

    texts = ["the big ship", "", "größe"]
    path = tmp_path / "new.txt"
    path.write_text("\n".join(texts), encoding="utf-8")
    found, stdin, (end, begin) = [], os.dup(0), os.pipe()
    os.write(begin, path.read_bytes())
    os.close(begin)
    os.dup2(end, 0)
    for given in (["--input", "-"], texts, ["--input", str(path)]):
        assert main(["predict", str(classifier), *given]) == 0
        found.append(capfdbinary.readouterr().out)
    os.dup2(stdin, 0)
    os.close(stdin)
    os.close(end)
    assert found[0] == found[1] == found[2]
    assert found[0].count(b"\n") == 3


def test_predictions_are_utf8_in_an_ascii_locale(
    classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bertie.cli import main

    path = write(tmp_path / "rows.jsonl", {"text": "the big ship"})
    saved = json.loads((classifier / "config.json").read_text())
    model = shutil.copytree(classifier, tmp_path / "model")
    (model / "manifest.json").unlink()
    (model / "task.json").unlink()
    (model / "config.json").write_text(json.dumps({**saved, "id2label": {"0": "gro\u00df", "1": "\u9f8d"}}))
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="ascii"))
    assert main(["predict", str(model), "--input", str(path)]) == 0
    assert set(json.loads(printed.getvalue().decode())["probabilities"]) == {"gro\u00df", "\u9f8d"}


def test_arguments_are_utf8_in_every_locale(
    classifier: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    from bertie.cli import main

    command = [BERTIE, "tokenizer", "encode", str(classifier)]
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"}
    word = "the gr\u00f6\u00dfe ship".encode()
    told = subprocess.run([*command, word], stdout=-1, env=plain, check=True).stdout
    assert main([*command[1:], word.decode()]) == 0
    assert told == capfdbinary.readouterr().out != b""
    text = tmp_path / "text.txt"
    text.write_text("the big ship")
    train = [BERTIE, "tokenizer", "train", str(text), "--vocab-size", "21"]
    for argv, code, words in (
        ([*command, b"gr\xf6\xdfe"], 2, "is not UTF-8: rename the file, or convert the text"),
        ([*train, "--out", word], 1, "the locale is ascii, which cannot encode this file name"),
    ):
        done = subprocess.run(argv, capture_output=True, text=True, env=plain, check=False)
        [line] = done.stderr.splitlines()
        assert done.returncode == code
        assert words in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["prepare", "text.txt", "--nosuch"], "unknown argument --nosuch"),
        (["predict", "{model}", "text"], "stdout, where predictions are written, is closed"),
    ],
)
def test_closed_stdout(classifier: Path, arguments: list[str], words: str) -> None:
    command = [BERTIE, *(word.format(model=classifier) for word in arguments)]
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert words in line
