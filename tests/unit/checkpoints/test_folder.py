from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bertie.base.errors import UsageError, UserError
from bertie.checkpoints.find import find_model_folder
from bertie.checkpoints.folder import write_manifest, write_model
from bertie.checkpoints.model_card import About
from bertie.checkpoints.read import load_weights, read_checkpoint, verify
from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder
from bertie.model.head_facts import with_facts
from bertie.model.heads.heads import PooledHead
from bertie.model.model import Model
from bertie.objectives import MaskedLM, NextSentence
from bertie.objectives.heads import build_heads
from bertie.tasks import Classify
from bertie.tokenizers.tokenizer import Tokenizer

WORDPIECE_FILES = (
    *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    "vocab.txt",
)


def pretrained(config: TransformerConfig, seed: int = 0) -> Model:
    torch.manual_seed(seed)
    encoder = build_encoder(config)
    return Model(encoder, build_heads((MaskedLM(), NextSentence()), encoder))


def classifier(config: TransformerConfig, classes: int = 3) -> Model:
    return Model(
        build_encoder(config), {"classify": with_facts(PooledHead(config.hidden_size, classes, 0.1), Classify().facts)}
    )


@pytest.fixture
def folder(tmp_path: Path, tiny_config: TransformerConfig, small_tokenizer: Tokenizer) -> Path:
    """A pre-trained model with a manifest."""
    path = tmp_path / "model"
    path.mkdir()
    write_model(path, pretrained(tiny_config), small_tokenizer, about=About("Trained for a test."))
    write_manifest(path)
    return path


def without_manifest(folder: Path) -> Path:
    (folder / "manifest.json").unlink()
    return folder


def test_moved_weights_take_no_memory_twice(folder: Path, tiny_config: TransformerConfig) -> None:
    checkpoint, model = read_checkpoint(folder), pretrained(tiny_config, seed=1)
    tensors = dict(checkpoint.weights)
    assert load_weights(model, checkpoint, move=True).initialized == ()
    assert set(checkpoint.weights) <= {"pooler.weight", "pooler.bias"}
    parameters = dict(model.named_parameters())
    assert all(
        parameters[name].data_ptr() == tensor.data_ptr() for name, tensor in tensors.items() if name in parameters
    )
    expected = pretrained(tiny_config).state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())


def test_a_written_model_is_read_back(folder: Path, tiny_config: TransformerConfig, small_tokenizer: Tokenizer) -> None:
    checkpoint = read_checkpoint(folder)
    assert checkpoint.config == tiny_config
    assert checkpoint.heads == {"mlm", "nsp"}
    assert checkpoint.labels == ()
    assert checkpoint.tokenizer.fingerprint == small_tokenizer.fingerprint
    other = pretrained(tiny_config, seed=1)
    loaded = load_weights(other, checkpoint)
    assert (loaded.initialized, loaded.dropped) == ((), ())
    for name, tensor in pretrained(tiny_config).state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


def test_a_model_folder_has_its_files_and_a_model_card(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {*WORDPIECE_FILES, "README.md", "manifest.json"}
    listed = json.loads((folder / "manifest.json").read_text())["files"]
    assert set(listed) == set(WORDPIECE_FILES)
    assert (folder / "model.safetensors").stat().st_mode == (folder / "config.json").stat().st_mode
    card = (folder / "README.md").read_text()
    assert "pipeline_tag: fill-mask" in card
    assert "Trained for a test." in card
    count = sum(p.numel() for p in pretrained(read_checkpoint(folder).config).parameters())
    assert f"{count:,} parameters" in card
    max_length = read_checkpoint(folder).config.max_position_embeddings
    assert json.loads((folder / "tokenizer_config.json").read_text())["model_max_length"] == max_length


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "vocab.txt"])
@pytest.mark.parametrize("damage", ["altered", "truncated", "missing"])
def test_damage_is_found_and_named(folder: Path, name: str, damage: str) -> None:
    path = folder / name
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
        if name == "config.json":
            with pytest.raises(UsageError, match=r"holds no config\.json"):
                read_checkpoint(folder)
            return
    else:
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        path.write_bytes(flipped if damage == "altered" else content[:middle])
    with pytest.raises(UserError) as raised:
        read_checkpoint(folder)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *product(("model.safetensors", "config.json", "tokenizer.json"), (b"", b'{"a": 1}')),
        ("config.json", b"\xff\x80\x81"),
        ("task.json", b"\xff\x80\x81"),
        ("tokenizer.json", b"[1]"),
    ],
)
def test_damage_is_found_without_a_manifest(folder: Path, name: str, content: bytes) -> None:
    (without_manifest(folder) / name).write_bytes(content)
    with pytest.raises(UserError) as raised:
        read_checkpoint(folder)
    assert str(folder) in str(raised.value)
    assert name in str(raised.value) or content == b'{"a": 1}', str(raised.value)


@pytest.mark.parametrize("content", ["[]", '{"files": []}', '{"files": {"config.json": 3}}', "{}", "x"])
def test_a_damaged_manifest_is_named(folder: Path, content: str) -> None:
    (folder / "manifest.json").write_text(content)
    with pytest.raises(UserError, match=r"manifest\.json is damaged"):
        verify(folder)


def rewrite(folder: Path, change: dict[str, torch.Tensor | None]) -> Path:
    (folder / "manifest.json").unlink(missing_ok=True)
    path = folder / "model.safetensors"
    weights = load_file(path) | change
    save_file({name: tensor for name, tensor in weights.items() if tensor is not None}, path)
    return folder


@pytest.mark.parametrize("other", ["gpt2", "electra", "xlm"])
def test_a_configuration_of_another_family_is_named(folder: Path, other: str) -> None:
    path = without_manifest(folder) / "config.json"
    values = json.loads(path.read_text())
    sizes = (
        {"n_layer": 2, "n_embd": 32, "n_head": 4} if other == "gpt2" else {"n_layers": 2, "emb_dim": 32, "n_heads": 4}
    )
    path.write_text(json.dumps(values | (sizes if other != "electra" else {}) | {"model_type": other}))
    with pytest.raises(UserError, match=r"word.weight.*restore the files that belong"):
        read_checkpoint(folder)


def test_a_vocabulary_larger_than_the_model_is_refused(folder: Path) -> None:
    rewrite(folder, {"bert.embeddings.word_embeddings.weight": torch.zeros(499, 32)})
    values = json.loads((folder / "config.json").read_text()) | {"vocab_size": 499}
    (folder / "config.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match="the vocabulary has 500 entries and the model only 499"):
        read_checkpoint(folder)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("bert.encoder.layer.0.attention.self.key.bias", None, r"lacks the weights .*layers\.0\.attention\.qkv\.bias"),
        ("bert.embeddings.position_embeddings.weight", torch.zeros(60, 32), r"position\.weight .* is \(60, 32\)"),
    ],
)
def test_a_tensor_of_the_wrong_shape_is_named(
    folder: Path, name: str, tensor: torch.Tensor | None, message: str
) -> None:
    config = read_checkpoint(folder).config
    with pytest.raises(UserError, match=message) as raised:
        load_weights(pretrained(config), read_checkpoint(rewrite(folder, {name: tensor})))
    assert str(folder) in str(raised.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 1_000_000}, r"word\.weight should be \(500, 1000000\) and is \(500, 32\)"),
        ({"vocab_size": 2_000_000_000}, r"word\.weight should be \(2000000000, 32\) and is \(500, 32\)"),
        ({"num_hidden_layers": 100}, r"lacks the weights .*layers\.2\.attention\.qkv\.weight"),
    ],
)
@pytest.mark.usefixtures("little_memory")
def test_sizes_are_compared_before_memory_is_allocated(folder: Path, change: dict[str, int], message: str) -> None:
    values = json.loads((folder / "config.json").read_text()) | change
    (without_manifest(folder) / "config.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match=message) as raised:
        load_weights(pretrained((checkpoint := read_checkpoint(folder)).config), checkpoint)
    assert str(raised.value).startswith(str(folder))


DTYPES = ["float8_e4m3fn", "float4_e2m1fn_x2", "complex64", "int8"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_unsupported_dtypes_are_refused(folder: Path, dtype: str) -> None:
    plain = torch.zeros(32, 32, dtype=torch.complex64 if dtype == "complex64" else torch.uint8)
    rewrite(folder, {"bert.encoder.layer.1.attention.self.key.weight": plain.view(getattr(torch, dtype))})
    message = rf"model\.safetensors: .*key.*weight is {dtype}, which is not supported: give float32, float16"
    with pytest.raises(UserError, match=message):
        read_checkpoint(folder)


@pytest.mark.parametrize("named", ["BertModel", [5]])
def test_architectures_that_are_not_names_are_refused(folder: Path, named: object) -> None:
    values = json.loads((folder / "config.json").read_text()) | {"architectures": named}
    (without_manifest(folder) / "config.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match=r"config\.json: architectures is .*: it must be a list of names") as raised:
        read_checkpoint(folder)
    assert str(named) in str(raised.value)


def test_more_layers_than_the_config_has_are_refused(folder: Path) -> None:
    values = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": 1}
    (without_manifest(folder) / "config.json").write_text(json.dumps(values))
    checkpoint = read_checkpoint(folder)
    with pytest.raises(UserError, match=r"layers\.1"):
        load_weights(pretrained(checkpoint.config), checkpoint)


def test_half_precision_weights_are_loaded_as_float32(folder: Path, tiny_config: TransformerConfig) -> None:
    path = without_manifest(folder) / "model.safetensors"
    save_file({name: tensor.half() for name, tensor in load_file(path).items()}, path)
    model = pretrained(tiny_config, seed=1)
    load_weights(model, read_checkpoint(folder))
    expected = pretrained(tiny_config).encoder.embeddings.word.weight
    assert model.encoder.embeddings.word.weight.dtype == torch.float32
    torch.testing.assert_close(model.encoder.embeddings.word.weight, expected, atol=1e-3, rtol=1e-3)


def test_a_task_starts_from_the_encoder_and_the_pooler(folder: Path, tiny_config: TransformerConfig) -> None:
    checkpoint = read_checkpoint(folder)
    model = classifier(tiny_config)
    before = model.heads["classify"].state_dict()["out.weight"].clone()
    loaded = load_weights(model, checkpoint)
    assert loaded.initialized == ("heads.classify.out",)
    assert loaded.dropped == ("mlm", "nsp")
    assert torch.equal(model.heads["classify"].state_dict()["pooler.weight"], checkpoint.weights["pooler.weight"])
    assert torch.equal(model.heads["classify"].state_dict()["out.weight"], before)
    assert load_weights(model, checkpoint.without_heads()).dropped == ()


def test_a_head_of_another_size_is_dropped(
    tmp_path: Path, tiny_config: TransformerConfig, small_tokenizer: Tokenizer
) -> None:
    write_model(tmp_path, classifier(tiny_config, 3), small_tokenizer, {"kind": "classify", "labels": ["a", "b", "c"]})
    loaded = load_weights(classifier(tiny_config, 2), read_checkpoint(tmp_path))
    assert (loaded.initialized, loaded.dropped) == (("heads.classify.out",), ("classify",))


def test_a_run_is_its_newest_checkpoint_until_it_is_finished(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for step in (5, 20, 100):
        (run / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    newest = run / "checkpoints" / "step-00000100"
    assert find_model_folder(run) == newest
    (run / "config.json").write_text((folder / "config.json").read_text())
    assert find_model_folder(run) == run
    (run / "config.json").unlink()  # its checkpoints are other models: an earlier step, without tuned thresholds
    (run / "model.safetensors").touch()
    with pytest.raises(UsageError, match=r"holds no config\.json: give"):
        find_model_folder(run)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no config\.json"):
        read_checkpoint(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        read_checkpoint(tmp_path / "missing")
    (tmp_path / "config.toml").touch()
    with pytest.raises(UsageError, match="is a run without a checkpoint yet"):
        read_checkpoint(tmp_path)


def test_a_misspelled_folder_is_not_looked_for_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: object, **__: object) -> str:
        raise AssertionError

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    (tmp_path / "runs" / "mini").mkdir(parents=True)
    (tmp_path / "runs" / "mini.txt").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"^runs/mnii does not exist: did you mean runs/mini\?$"):
        read_checkpoint("runs/mnii")


def test_a_real_model_is_read(minilm: Path) -> None:
    checkpoint = read_checkpoint(minilm)
    config = checkpoint.config
    assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads) == (6, 384, 12)
    assert checkpoint.tokenizer.size == config.vocab_size == 30522
    loaded = load_weights(classifier(replace(config), 2), checkpoint)
    assert loaded.initialized == ("heads.classify.out",)
