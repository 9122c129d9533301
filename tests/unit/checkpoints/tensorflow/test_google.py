"""Folders of Google's models: names, configuration, what is left out and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bundles import Bundle, object_graph
from torch import Tensor

from bertie.base.errors import UsageError, UserError
from bertie.checkpoints.families import FAMILIES, bert
from bertie.checkpoints.find import find_model_folder
from bertie.checkpoints.folder import write_model as write_huggingface
from bertie.checkpoints.read import Checkpoint, read_checkpoint
from bertie.checkpoints.tensorflow import names
from bertie.checkpoints.tensorflow.folder import read_config, write_model
from bertie.checkpoints.tensorflow.tensor_bundle import open_bundle, write_bundle
from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder
from bertie.model.head_facts import with_facts
from bertie.model.heads.heads import PooledHead
from bertie.model.model import Model
from bertie.objectives import MaskedLM, NextSentence, ReplacedToken
from bertie.objectives.heads import build_heads
from bertie.tasks import Classify
from bertie.tokenizers.tokenizer import Tokenizer


def pretrained(config: TransformerConfig) -> Model:
    torch.manual_seed(0)
    encoder = build_encoder(config)
    return Model(encoder, build_heads((MaskedLM(), NextSentence()), encoder))


def write(folder: Path, model: Model, tokenizer: Tokenizer, labels: tuple[str, ...] = ()) -> Path:
    folder.mkdir()
    write_model(folder, model, tokenizer, labels)
    tokenizer.save(folder)
    return folder


@pytest.fixture(scope="module")
def first(tiny_config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of TensorFlow 1. Copy it to change it."""
    return write(tmp_path_factory.mktemp("google") / "model", pretrained(tiny_config), small_tokenizer)


@pytest.fixture
def folder(first: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(first, tmp_path / "model"))


def variables(folder: Path) -> dict[str, Tensor]:
    bundle = open_bundle(folder / "bert_model.ckpt")
    return {name: bundle.read(name) for name in bundle.entries}


def with_variables(folder: Path, changed: dict[str, Tensor]) -> Path:
    write_bundle(folder / "bert_model.ckpt", changed.items())
    return folder


def assert_equal(left: Checkpoint, right: Checkpoint) -> None:
    assert left.config == right.config
    assert left.weights.keys() == right.weights.keys()
    for name, tensor in left.weights.items():
        assert torch.equal(tensor, right.weights[name]), name


CONFIGS = {
    "bert": {},
    "albert": {"embedding_size": 16, "num_hidden_groups": 1, "hidden_act": "gelu_tanh"},
    "albert with groups": {"embedding_size": 16, "num_hidden_groups": 2, "hidden_act": "relu"},
    "electra": {"embedding_size": 16, "pooler_act": "gelu"},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_is_read_back_bit_by_bit(
    name: str, tiny_config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    config = replace(tiny_config, **CONFIGS[name])
    model = pretrained(config)
    if name == "electra":
        model = Model(model.encoder, build_heads((ReplacedToken(),), model.encoder, None))
    write(tmp_path / "tf", model, small_tokenizer)
    (tmp_path / "hf").mkdir()
    write_huggingface(tmp_path / "hf", model, small_tokenizer)
    expected, found = read_checkpoint(tmp_path / "hf"), read_checkpoint(tmp_path / "tf")
    assert_equal(found, expected)
    assert found.heads == expected.heads
    written = json.loads((tmp_path / "tf" / f"{'albert' if 'albert' in name else 'bert'}_config.json").read_text())
    assert written["hidden_act"] == ("relu" if "groups" in name else "gelu")


def test_a_classifier_keeps_its_labels(
    tiny_config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    head = with_facts(PooledHead(tiny_config.hidden_size, 3, 0.1), Classify().facts)
    folder = write(
        tmp_path / "m", Model(build_encoder(tiny_config), {"classify": head}), small_tokenizer, ("b", "a", "c")
    )
    assert {"output_weights", "output_bias"} < variables(folder).keys()
    assert read_checkpoint(folder).labels == ("b", "a", "c")
    path = folder / "bert_config.json"
    kept = {key: value for key, value in json.loads(path.read_text()).items() if key in bert.KEYS}  # Google's
    path.write_text(json.dumps(kept))
    checkpoint = read_checkpoint(folder)
    assert checkpoint.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert checkpoint.heads == {"text"}


def test_the_names_are_those_of_googles_code(first: Path) -> None:
    found = variables(first)
    assert found["bert/embeddings/word_embeddings"].shape == (500, 32)
    assert found["bert/encoder/layer_1/intermediate/dense/kernel"].shape == (32, 64)
    assert found["cls/seq_relationship/output_weights"].shape == (2, 32)
    assert found["cls/predictions/output_bias"].shape == (500,)
    assert {"bert/pooler/dense/bias", "cls/predictions/transform/LayerNorm/gamma"} < found.keys()
    assert (first / "checkpoint").read_text().startswith('model_checkpoint_path: "bert_model.ckpt"\n')


@pytest.mark.parametrize("model_type", names.ROWS)
def test_every_weight_of_the_encoder_has_a_name(model_type: str) -> None:
    """The families' tables are complete, and each name leads back to its weight."""
    family = FAMILIES[model_type]
    shapes = {
        "bert": ("masked", "pair", "text", "start_end"),
        "albert": ("masked", "pair", "text"),
        "electra": ("replaced",),
    }
    for row in family.modules({shape: shape for shape in shapes[model_type]}, [0, 12]):
        if model_type == "electra" and row.ours == "pooler":
            continue  # of its fine-tuned heads, which Google's code calls otherwise
        for module in row.theirs:
            leaves = {"_embeddings": ("weight",), "predictions": ("bias",)}
            for leaf in next((each for end, each in leaves.items() if module.endswith(end)), ("weight", "bias")):
                google, transposed = names.to_google(model_type, f"{module}.{leaf}")
                assert names.to_huggingface(model_type, google) == (f"{module}.{leaf}", transposed)


LEFT_OUT = (
    *("bert/embeddings/word_embeddings/adam_m", "bert/pooler/dense/kernel/adam_v", "global_step", "beta1_power"),
    *(f"bert/pooler/dense/bias/{slot}" for slot in ("Adam", "Adam_1", "LAMB", "LAMB_1", "Momentum")),
    *("loss_scale", "good_steps"),
)


def test_variables_of_the_optimizer_are_left_out(folder: Path) -> None:
    expected = read_checkpoint(folder)
    with_variables(folder, variables(folder) | {name: torch.ones(2) for name in LEFT_OUT})
    assert_equal(read_checkpoint(folder), expected)


@pytest.mark.parametrize("name", ["x/global_step", "\n"])
def test_an_unknown_variable_is_named(folder: Path, name: str) -> None:
    with_variables(folder, variables(folder) | {name: torch.ones(2)})
    with pytest.raises(
        UserError, match=re.escape(f"bert_model.ckpt.index: bertie does not know the variable {name!r}")
    ):
        read_checkpoint(folder)


def test_a_missing_or_misshapen_variable_is_named(folder: Path) -> None:
    found = variables(folder)
    without = {name: tensor for name, tensor in found.items() if name != "bert/embeddings/position_embeddings"}
    with pytest.raises(UserError, match=r"lacks the weights .*position\.weight"):
        read_checkpoint(with_variables(folder, without))
    found["bert/embeddings/position_embeddings"] = torch.ones(3, 3)
    with pytest.raises(UserError, match=r"position\.weight should be"):
        read_checkpoint(with_variables(folder, found))
    found["bert/embeddings/position_embeddings"] = torch.full((64, 32), torch.nan)
    with pytest.raises(UserError, match=r"bert_model\.ckpt\.index is damaged: .* holds NaN or infinity"):
        read_checkpoint(with_variables(folder, found))
    found["bert/embeddings/position_embeddings"] = torch.ones(64, 32, dtype=torch.int32)
    with pytest.raises(UserError, match="is int32, which is not supported"):
        read_checkpoint(with_variables(folder, found))


def test_a_checkpoint_is_found_by_its_folder_and_by_its_prefix(folder: Path) -> None:
    prefix = folder / "bert_model.ckpt"
    assert find_model_folder(folder) == find_model_folder(prefix) == prefix
    (folder / "checkpoint").unlink()
    assert find_model_folder(folder) == prefix
    write_bundle(folder / "model.ckpt-100", variables(folder).items())
    with pytest.raises(
        UsageError, match=r"holds 2 TensorFlow checkpoints: name one of them, such as .*bert_model\.ckpt"
    ):
        read_checkpoint(folder)
    (folder / "checkpoint").write_text('model_checkpoint_path: "/home/else/out/model.ckpt-100"\nall: "x"\n')
    assert find_model_folder(folder) == folder / "model.ckpt-100"
    assert read_checkpoint(prefix).folder == read_checkpoint(folder).folder == folder
    (folder / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-7"\n')
    with pytest.raises(UsageError, match="holds 2 TensorFlow checkpoints"):
        read_checkpoint(folder)


def test_a_checkpoint_is_known_by_its_index_and_lies_in_its_folder(folder: Path, tmp_path: Path) -> None:
    index, data = (folder / f"bert_model.ckpt.{ending}" for ending in ("index", "data-00000-of-00001"))
    assert read_checkpoint(folder).files == (index,)
    data.rename(tmp_path / data.name)
    data.symlink_to(tmp_path / data.name)
    with pytest.raises(UserError, match=r"data-00000-of-00001 is a link to .*outside the folder"):
        read_checkpoint(folder)


def test_missing_files_are_named(folder: Path) -> None:
    (folder / "bert_config.json").rename(folder / "away.json")
    with pytest.raises(UsageError, match=r"holds no bert_config\.json, which describes the model bert_model\.ckpt"):
        read_checkpoint(folder / "bert_model.ckpt")
    (folder / "away.json").rename(folder / "bert_config.json")
    (folder / "bert_model.ckpt.index").unlink()
    with pytest.raises(UsageError, match=r"holds bert_model\.ckpt\.data-00000-of-00001 .* without its \.index file"):
        read_checkpoint(folder)
    (folder / "bert_model.ckpt.data-00000-of-00001").unlink()
    with pytest.raises(UsageError, match=r"holds no config\.json"):
        read_checkpoint(folder)


@pytest.mark.parametrize("content", ["[]", '{"num_hidden_layers": "2"}', '{"hidden_size": 0}'])
def test_a_damaged_configuration_is_named(folder: Path, content: str) -> None:
    (folder / "bert_config.json").write_text(content)
    with pytest.raises(UserError, match=r"bert_config\.json"):
        read_checkpoint(folder)


HEADS = 4
PARTS = {  # Google's TensorFlow 2 code: attributes of a layer, by the names in TensorFlow 1
    **{f"attention/self/{name}": f"_attention_layer/_{name}_dense" for name in ("query", "key", "value")},
    "attention/output/dense": "_attention_layer/_output_dense",
    "attention/output/LayerNorm": "_attention_layer_norm",
    "intermediate/dense": "_intermediate_dense",
    "output/dense": "_output_dense",
    "output/LayerNorm": "_output_layer_norm",
}
OLD = {"attention/output/dense": "_attention_output_dense"}
NAMES = {
    **{f"attention/self/{name}": f"self_attention/{name}" for name in ("query", "key", "value")},
    "attention/output/dense": "self_attention/attention_output",
    "attention/output/LayerNorm": "self_attention_layer_norm",
    "intermediate/dense": "intermediate",
    "output/dense": "output",
    "output/LayerNorm": "output_layer_norm",
}


def numbered(parts: dict[str, str], layer: Callable[[int], str], rest: dict[str, str]) -> dict[str, str]:
    """Names in TensorFlow 2 of the modules of a BERT with two layers."""
    layers = {f"bert/encoder/layer_{n}/{old}": f"{layer(n)}/{new}" for n in (0, 1) for old, new in parts.items()}
    embeddings = {f"bert/embeddings/{name}_embeddings": rest[name] for name in ("word", "position", "token_type")}
    return layers | embeddings | {"bert/embeddings/LayerNorm": rest["norm"], "bert/pooler/dense": rest["pooler"]}


def places(*order: str) -> dict[str, str]:
    return dict(zip(("word", "position", "token_type", "norm", "pooler"), order, strict=True))


def by_number(prefix: str, parts: dict[str, str]) -> dict[str, str]:
    start = f"{prefix}layer_with_weights-"
    rest = places(*(f"{start}{n}/embeddings" for n in range(3)), f"{start}3", f"{start}6")
    return numbered(parts, lambda n: f"{start}{n + 4}", rest)


def by_attribute(pooler: str, word: str) -> dict[str, str]:
    rest = places(
        word,
        "encoder/_position_embedding_layer/embeddings",
        "encoder/_type_embedding_layer/embeddings",
        "encoder/_embedding_norm_layer",
        pooler,
    )
    return numbered(PARTS, lambda n: f"encoder/_transformer_layers/{n}", rest)


def by_name() -> dict[str, str]:
    rest = places(
        "word_embeddings/embeddings",
        "position_embedding/embeddings",
        "type_embeddings/embeddings",
        "embeddings/layer_norm",
        "pooler_transform",
    )
    return numbered(NAMES, lambda n: f"transformer/layer_{n}", rest)


SECOND = {
    "model": by_number("model/", PARTS | OLD),
    "encoder": by_number("encoder/", PARTS),
    "bare": by_number("", PARTS),
    "attributes": by_attribute("encoder/_pooler_layer", "encoder/_embedding_layer/embeddings"),
    "pre-trainer": by_attribute("next_sentence..pooler_dense", "masked_lm/embedding_table"),
}
MASKED = {
    "cls/predictions/transform/dense": "masked_lm/dense",
    "cls/predictions/transform/LayerNorm": "masked_lm/layer_norm",
    "cls/predictions/output_bias": "masked_lm/output_bias.Sbias",
}


def write_second(folder: Path, modules: dict[str, str], given: dict[str, str] | None = None) -> None:
    """Replace the checkpoint of a folder with one of TensorFlow 2. `given`: names of the modules in the object graph."""
    bundle, graph = Bundle(), {}
    for name, tensor in variables(folder).items():
        module = max((each for each in modules if name == each or name.startswith(f"{each}/")), key=len, default=None)
        if module is None:
            continue
        if "/attention/" in name and "LayerNorm" not in name:
            size = tensor.shape[-1] // HEADS
            if "/output/" not in name:
                tensor = tensor.unflatten(-1, (HEADS, size))
            elif name.endswith("kernel"):
                tensor = tensor.unflatten(0, (HEADS, size))
        entry = f"{modules[module]}{name.removeprefix(module)}{names.VALUE}"
        bundle.add(entry, tensor)
        graph[entry] = f"{given[module]}{name.removeprefix(module)}" if given else ""
    slot = f"model/layer_with_weights-0/embeddings/.OPTIMIZER_SLOT/optimizer/m{names.VALUE}"
    other = f"model/w{names.VALUE}"
    for left_out in (
        f"save_counter{names.VALUE}",
        f"optimizer/iter{names.VALUE}",
        f"optimizer/_variables/1{names.VALUE}",
    ):
        bundle.add(left_out, torch.tensor(3))
    bundle.add(slot, torch.ones(2))
    bundle.add(other, torch.ones(2))
    bundle.add_strings(names.OBJECT_GRAPH, object_graph(graph | {other: "m"}, (other,)), scalar=True)
    bundle.write(folder / "bert_model.ckpt")


@pytest.mark.parametrize("name", SECOND)
def test_checkpoints_of_tensorflow_2_are_read(folder: Path, name: str) -> None:
    expected = {key: tensor for key, tensor in read_checkpoint(folder).weights.items() if not key.startswith("heads.")}
    modules = SECOND[name]
    write_second(folder, modules)
    found = read_checkpoint(folder)
    assert found.heads == set()
    assert found.weights.keys() == expected.keys()
    for key, tensor in expected.items():
        assert torch.equal(found.weights[key], tensor), key


def test_names_in_the_object_graph_count_before_paths(folder: Path) -> None:
    """Layers with other numbers, and the heads of pre-training."""
    expected = read_checkpoint(folder)
    paths = {module: f"model/layer_with_weights-{number + 20}" for number, module in enumerate(by_name())}
    heads = MASKED | {"cls/seq_relationship": "classification_heads/0/out_proj"}
    theirs = dict(
        zip(MASKED, [f"bert/{name}" for name in (*list(MASKED)[:2], "cls/predictions/output_bias/bias")], strict=True)
    )
    first = variables(folder)
    first["cls/seq_relationship/kernel"] = first.pop("cls/seq_relationship/output_weights").t().contiguous()
    first["cls/seq_relationship/bias"] = first.pop("cls/seq_relationship/output_bias")
    with_variables(folder, first)
    write_second(folder, paths | heads, by_name() | theirs | {"cls/seq_relationship": "x/next_sentence/logits"})
    assert_equal(read_checkpoint(folder), expected)


def test_the_pooler_of_a_head_takes_the_place_of_the_encoders(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = read_checkpoint(folder)
    write_second(folder, SECOND["pre-trainer"])
    bundle = open_bundle(folder / "bert_model.ckpt")
    stored = {
        name: bundle.read(name) for name in bundle.entries if name != names.OBJECT_GRAPH and "model/w" not in name
    }
    stored[f"encoder/_pooler_layer/bias{names.VALUE}"] = torch.ones(32)
    stored[f"encoder/layer_with_weights-6/kernel{names.VALUE}"] = torch.ones(32, 32)
    assert capsys.readouterr().err == ""
    found = read_checkpoint(with_variables(folder, stored))
    assert torch.equal(found.weights["pooler.weight"], expected.weights["pooler.weight"])
    assert "the encoder's pooler is left out: the head has one of its own" in capsys.readouterr().err


def test_the_masked_lm_head_of_tensorflow_2_is_read(folder: Path) -> None:
    expected = read_checkpoint(folder)
    write_second(folder, SECOND["encoder"] | MASKED)
    found = read_checkpoint(folder)
    assert found.heads == {"mlm"}
    for key, tensor in found.weights.items():
        assert torch.equal(expected.weights[key], tensor), key


def test_the_same_weight_twice_is_refused(folder: Path) -> None:
    first = variables(folder)
    write_second(folder, SECOND["encoder"])
    bundle = open_bundle(folder / "bert_model.ckpt")
    stored = {
        name: bundle.read(name) for name in bundle.entries if name != names.OBJECT_GRAPH and "model/w" not in name
    }
    stored[f"masked_lm/embedding_table{names.VALUE}"] = first["bert/embeddings/word_embeddings"]
    with pytest.raises(UserError, match=r"are the same weight, bert\.embeddings\.word_embeddings\.weight"):
        read_checkpoint(with_variables(folder, stored))


def test_the_generator_of_electra_is_left_out_with_a_warning(
    tiny_config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = build_encoder(replace(tiny_config, **CONFIGS["electra"]))
    model = Model(encoder, build_heads((ReplacedToken(),), encoder, None))
    folder = write(tmp_path / "m", model, small_tokenizer)
    found = variables(folder)
    assert "discriminator_predictions/dense_1/kernel" in found
    more = {
        "generator/encoder/layer_0/output/dense/bias": torch.ones(2),
        "generator_predictions/output_bias": torch.ones(3),
    }
    with_variables(folder, found | more)
    assert read_checkpoint(folder).heads == {"rtd"}
    assert "ELECTRA's generator is left out: 2 variables" in capsys.readouterr().err


REFUSED = {
    "GELU by tanh": ({"hidden_act": "gelu_tanh"}, "a fixed hidden_act gelu or relu"),
    "epsilon": ({"layer_norm_eps": 1e-5}, "layer_norm_eps 1e-12"),
    "one segment": ({"type_vocab_size": 1}, "models of the family RoBERTa"),
    "norm before": ({"norm_position": "pre"}, "models of the family Encoder"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_googles_code_lacks_is_refused(
    name: str, tiny_config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    changed, expected = REFUSED[name]
    with pytest.raises(UsageError, match=expected):
        write_model(tmp_path, pretrained(replace(tiny_config, **changed)), small_tokenizer, ())
    assert list(tmp_path.iterdir()) == []


def test_the_gelu_of_googles_albert_is_by_tanh(
    tiny_config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    config = replace(tiny_config, **CONFIGS["albert"])
    folder = write(tmp_path / "m", pretrained(config), small_tokenizer)
    path, values = read_config(folder / "bert_model.ckpt")
    assert path.name == "albert_config.json"
    assert values["hidden_act"] == "gelu_pytorch_tanh"
    with pytest.raises(UsageError, match="a fixed hidden_act gelu_pytorch_tanh or relu"):
        write_model(tmp_path, pretrained(replace(config, hidden_act="gelu")), small_tokenizer, ())
