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

if TYPE_CHECKING:
    from bertie import Predictor

Refuse = Callable[..., str]
PRETRAIN = (
    "--model.hidden-size 16 --model.num-attention-heads 2 --model.intermediate-size 32 --layout.max-length 32 "
    "--training.batch-size 4 --training.row-tokens 128 --training.steps 2 --training.max-eval-tokens 200 --threads 1"
)
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
    return folder


@pytest.fixture(scope="module")
def pretrained(small_shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from bertie.cli import main

    run = tmp_path_factory.mktemp("pretrained") / "run"
    assert main(["pretrain", "tiny", "--data", str(small_shards), "--out", str(run), *PRETRAIN.split()]) == 0
    return run


def finetune(data: Path, model: Path | str, out: Path, *flags: str) -> list[str]:
    files = ["--train", str(data / "train.jsonl"), "--dev", str(data / "dev.jsonl")]
    return ["finetune", "classify", *files, "--model", str(model), "--out", str(out), *FINETUNE.split(), *flags]


@pytest.fixture(scope="module")
def classifier(data: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from bertie.cli import main

    run = tmp_path_factory.mktemp("classifier") / "run"
    assert main(finetune(data, pretrained, run)) == 0
    return run


@pytest.fixture
def model(classifier: Path, tmp_path: Path) -> Path:
    """A copy to damage, without the manifest, which would detect the damage."""
    folder = shutil.copytree(classifier, tmp_path / "model")
    (folder / "manifest.json").unlink()
    return folder


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--training.epochs", "0", "training.epochs is 0: give at least 1"),
        ("--max-length", "3", "max_length is 3: the model reads 4 to 512 tokens"),
        ("--max-length", "513", "max_length is 513: the model reads 4 to 512 tokens"),
        ("--task.kind", "regress", "'regress'"),
        ("--task.labels", "x", "task.labels names one class, 'x': name all"),
        ("--task.text", "nosuch", "no column 'nosuch'; its columns are: text, label"),
    ],
)
def test_flags_of_finetuning(
    refuse: Refuse, data: Path, pretrained: Path, tmp_path: Path, flag: str, value: str, words: str
) -> None:
    refuse(finetune(data, pretrained, tmp_path / "out", flag, value), 2, words)


EXAMPLES: list[tuple[str, str, str, int, str]] = [
    ("train", "train.jsonl", "", 1, "train.jsonl: no examples in it"),
    ("dev", "dev.jsonl", "", 1, "dev.jsonl: no examples in it"),
    ("dev", "dev.jsonl", '{"text": "a", "label": "z"}', 1, "dev.jsonl:1: the label 'z' is none of the classes"),
    ("dev", "dev.jsonl", '{"text": "a"}', 1, "dev.jsonl:1: no label; the classes are x, y"),
    ("train", "train.jsonl", '{"text": "a"}', 1, "train.jsonl:1: no label to train on"),
    ("train", "train.jsonl", '{"text": "a", "label": "x"}', 1, "every example has the label 'x'"),
    ("train", "train.jsonl", '{"words": "a", "label": "x"}', 2, "cannot tell which column is the text"),
    ("train", "train.jsonl", '{"text": 3, "label": "x"}', 1, "train.jsonl:1: 'text' must be a string"),
    ("train", "train.jsonl", '{"text": "a", "label": "x"}\n{', 1, "train.jsonl:2: not valid JSON"),
    ("train", "train.jsonl", "[1]", 1, "train.jsonl:1: expected a JSON object"),
    ("train", "train.csv", 'text,label\n"a,x\n', 1, "train.csv:2: not valid CSV"),
    ("train", "train.tsv", "text\tlabel\na\tx\tz\n", 1, "train.tsv:2: 3 columns, but the first line has 2"),
    ("train", "train.tsv", "text\ttext\n", 1, "two columns are named 'text'"),
    ("train", "train.txt", "text", 2, "a line is a text, without labels, in .txt and stdin"),
    ("train", "train.xml", "text", 2, "examples are read from files of these formats"),
]


@pytest.mark.parametrize(("side", "name", "content", "code", "words"), EXAMPLES, ids=[case[-1] for case in EXAMPLES])
def test_unsuitable_examples(
    refuse: Refuse,
    data: Path,
    pretrained: Path,
    tmp_path: Path,
    side: str,
    name: str,
    content: str,
    code: int,
    words: str,
) -> None:
    (tmp_path / name).write_text(content)
    refuse([*finetune(data, pretrained, tmp_path / "out"), "--strict", f"--{side}", str(tmp_path / name)], code, words)


def test_missing_example_files(refuse: Refuse, data: Path, pretrained: Path, tmp_path: Path) -> None:
    for side in ("--train", "--dev"):
        command = [*finetune(data, pretrained, tmp_path / "out"), side, str(tmp_path / "nosuch.jsonl")]
        refuse(command, 2, f"no such file: {tmp_path / 'nosuch.jsonl'}")


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
    command = [str(Path(sys.executable).with_name("bertie")), "predict", "nobody/nothing", "text"]
    # There are no endless retries: it takes about 3 s.
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=os.environ | settings, check=False)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("bertie: nobody/nothing is not a folder, and the download from the hub failed: ")


CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"hidden_size": "16"}, "hidden_size: expected an integer, found '16'"),
    ({"hidden_size": -16}, "model.hidden_size is -16"),
    ({"num_attention_heads": 3}, "not a multiple of 3 heads"),
    ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
    ({"num_hidden_layers": 1}, "describes a model without encoder.layers.1."),
    ({"num_hidden_layers": 3}, "encoder.layers.2.attention.qkv.weight should be (48, 16), the checkpoint has nothing"),
    ({"vocab_size": 30}, "encoder.embeddings.word.weight should be (30, 16), the checkpoint has shape (500, 16)"),
    ({"max_position_embeddings": 8}, "encoder.embeddings.position.weight should be (8, 16)"),
    ({"layer_norm_eps": "small"}, "layer_norm_eps: expected a number, found 'small'"),
    ({"hidden_act": "mish"}, "hidden_act 'mish' is not supported: give one of gelu"),
    ({"model_type": "t5"}, "model_type is 't5'; bertie reads roberta, bert"),
    ({"id2label": {"a": "x"}}, "not a bert configuration"),
    ({"id2label": {"0": "x"}}, "config.json names 1 labels and the head has 2 outputs"),
    ({"id2label": {"0": "x", "1": "x"}}, "two classes of id2label have the same name"),
]


@pytest.mark.parametrize(("change", "words"), CONFIGS, ids=[str(change) for change, _ in CONFIGS])
def test_wrong_config_json(refuse: Refuse, model: Path, change: dict[str, Any], words: str) -> None:
    (model / "task.json").unlink()  # as in other models
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | change))
    refuse(["predict", str(model), "text"], 1, words, str(model))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def as_list(path: Path) -> None:
    path.write_text("[1]")


def as_words(path: Path) -> None:
    path.write_text("no configuration")


@pytest.mark.parametrize(
    ("name", "damage", "code", "words"),
    [
        ("config.json", cut, 1, "config.json is damaged"),
        ("config.json", as_list, 1, "config.json is damaged"),
        ("model.safetensors", cut, 1, "model.safetensors is damaged"),
        (
            "model.safetensors",
            Path.unlink,
            1,
            "model.safetensors is missing: bertie reads model.safetensors or pytorch",
        ),
        ("tokenizer.json", cut, 1, "tokenizer.json is damaged"),
        ("task.json", as_words, 1, "task.json is damaged"),
    ],
)
def test_damaged_model_files(
    refuse: Refuse, model: Path, name: str, damage: Callable[[Path], None], code: int, words: str
) -> None:
    damage(model / name)
    refuse(["predict", str(model), "text"], code, words, str(model / name))


@pytest.mark.parametrize("damage", [cut, Path.unlink, as_list])
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "vocab.txt"])
def test_the_manifest_detects_damage(
    refuse: Refuse, classifier: Path, tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    folder = shutil.copytree(classifier, tmp_path / "model")
    damage(folder / name)
    refuse(["predict", str(folder), "text"], 1, str(folder / name))


@pytest.mark.parametrize("content", ["[]", '{"files": []}', '{"files": {"config.json": 3}}', "{}", "", "{"])
def test_wrong_manifests(refuse: Refuse, classifier: Path, tmp_path: Path, content: str) -> None:
    folder = shutil.copytree(classifier, tmp_path / "model")
    (folder / "manifest.json").write_text(content)
    refuse(["predict", str(folder), "text"], 1, f"{folder / 'manifest.json'} is damaged")


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
        ({"x": torch.ones(2)}, "encoder.embeddings.word.weight should be"),
        ({**good, query: good[query] * torch.nan}, f"is damaged: {query} holds NaN or infinity"),
        ({**good, query: torch.ones(3)}, "layers.0.attention.qkv.weight should be (48, 16)"),
        ({name: t for name, t in good.items() if "pooler" not in name}, "lacks the weights of heads.classify.pooler"),
    ):
        save_file(weights, model / "model.safetensors")
        refuse(["predict", str(model), "text"], 1, words)


@pytest.mark.parametrize("value", [0, "long", True, 100000, -5])
def test_a_maximum_length_outside_the_model_is_refused(refuse: Refuse, model: Path, value: object) -> None:
    told = json.loads((model / "task.json").read_text())
    (model / "task.json").write_text(json.dumps({**told, "max_length": value}))
    refuse(["predict", str(model), "text"], 1, "task.json: max_length is", "the model reads 4 to 512 tokens")


def test_wrong_usage_of_predict_and_evaluate(
    refuse: Refuse, data: Path, pretrained: Path, classifier: Path, tmp_path: Path
) -> None:
    predict, evaluate = ["predict", str(classifier)], ["evaluate", str(classifier), "--data"]
    refuse(predict, 2, "give either texts or --input FILE")
    refuse([*predict, "text", "--input", str(data / "dev.jsonl")], 2, "give either texts or --input FILE")
    refuse([*predict, "--input", str(tmp_path)], 2, "is a folder: give a file")
    refuse([*predict, "half \udcff"], 2, "is not UTF-8")
    refuse([*predict, "--input", str(write(tmp_path / "e.jsonl"))], 1, "e.jsonl: no examples in it")
    refuse(["predict", str(pretrained), "text"], 1, "was not fine-tuned for a task: run `bertie finetune`")
    refuse(["evaluate", str(pretrained), "--data", str(data / "dev.jsonl")], 1, "was not fine-tuned for a task")
    unseen = write(tmp_path / "unseen.jsonl", {"text": "a", "label": "x"}, {"text": "b", "label": "z"})
    refuse([*evaluate, str(unseen), "--out", str(data)], 2, "already exists and is not an evaluation")


def test_wrong_usage_of_fill_mask(refuse: Refuse, pretrained: Path, classifier: Path) -> None:
    fill = ["fill-mask", str(pretrained)]
    refuse([*fill, "no mask"], 2, "there is no [MASK] in the text")
    refuse([*fill, "[MASK] " * 600], 1, "the text has 600 tokens and the model reads at most 30: shorten it")
    refuse([*fill, "\udcff [MASK]"], 2, "is not UTF-8")
    for top in ("0", "-3"):
        refuse([*fill, "[MASK]", "--top-k", top], 2, f"{top}: give at least 1")
    refuse(["fill-mask", str(classifier), "[MASK]"], 1, "has no masked-LM head")


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


def test_values_that_are_not_texts(predictor: Predictor) -> None:
    from bertie import UsageError, UserError

    with pytest.raises(UsageError, match="expected a list of texts and got one"):
        predictor.predict("a text")
    with pytest.raises(UsageError, match="expected a list of texts and got one"):
        predictor.hidden_states("a text")
    with pytest.raises(UserError, match="half of a surrogate pair"):
        predictor.hidden_states(["good", "\ud800"])
    with pytest.raises(UserError, match="3 is not a text but of type int"):
        predictor.hidden_states(["good", 3])  # pyright: ignore
    with pytest.raises(UsageError, match="expected a list of texts and got one"):
        predictor.predict(None)  # pyright: ignore
    with pytest.raises(UsageError, match="expected a text and got a NoneType"):
        predictor.fill_mask(None)  # pyright: ignore
    with pytest.raises(UserError, match="no examples in it"):
        predictor.evaluate([])


def test_a_closed_pipe_is_no_error(classifier: Path, tmp_path: Path) -> None:
    """Like `bertie predict … | head -1`, with more output than a pipe buffers, and with less."""
    path = write(tmp_path / "many.jsonl", *[{"text": "the big ship"}] * 3000)
    predict = ["predict", str(classifier), "--input", str(path)]
    for arguments in (predict, ["--help"]):
        command = [str(Path(sys.executable).with_name("bertie")), *arguments]
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
    command = [str(Path(sys.executable).with_name("bertie")), "predict", str(classifier)]
    found = [subprocess.run([*command, "--input", "-"], input=path.read_bytes(), stdout=-1, check=True).stdout]
    for given in (texts, ["--input", str(path)]):
        assert main([*command[1:], *given]) == 0
        found.append(capfdbinary.readouterr().out)
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

    bertie = str(Path(sys.executable).with_name("bertie"))
    command = [bertie, "predict", str(classifier)]
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"}
    word = "the gr\u00f6\u00dfe ship".encode()
    told = subprocess.run([*command, word], stdout=-1, env=plain, check=True).stdout
    assert main([*command[1:], word.decode()]) == 0
    assert told == capfdbinary.readouterr().out != b""
    text = tmp_path / "text.txt"
    text.write_text("the big ship")
    train = [bertie, "tokenizer", "train", str(text), "--vocab-size", "21"]
    for argv, code, words in (
        ([*command, b"gr\xf6\xdfe"], 2, "is not UTF-8: rename the file, or convert the text"),
        ([*train, "--out", word], 1, "the locale is ascii, which cannot encode this file name"),
    ):
        done = subprocess.run(argv, capture_output=True, text=True, env=plain, check=False)
        [line] = done.stderr.splitlines()
        assert done.returncode == code
        assert words in line


def test_a_wrong_flag_with_stdout_closed() -> None:
    command = [str(Path(sys.executable).with_name("bertie")), "prepare", "text.txt", "--nosuch"]
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert "unknown argument --nosuch" in line


def test_predict_with_stdout_closed_is_refused(classifier: Path) -> None:
    command = [str(Path(sys.executable).with_name("bertie")), "predict", str(classifier), "text"]
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "bertie: stdout is closed, and predictions are written there: redirect it to a file\n"
