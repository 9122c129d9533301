"""Models of other families than BERT: equal hidden states and logits in transformers, in both directions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import bertie
from bertie.base.contracts import MicroBatch, Sequence, Targets
from bertie.base.errors import UserError
from bertie.batches.collate import collate
from bertie.checkpoints.families import FAMILIES
from bertie.checkpoints.folder import write_model
from bertie.checkpoints.read import load_weights, read_checkpoint
from bertie.finetuning.recipe import FinetuneConfig, FinetuneTraining
from bertie.model.attention.relative_bias import bucket_of
from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder
from bertie.model.head_facts import with_facts
from bertie.model.heads.heads import ReplacedTokenHead
from bertie.model.heads.vocabulary_heads import auxiliary_head, next_token_targets
from bertie.model.model import Model
from bertie.objectives import CausalLM, MaskedLM, ReplacedToken
from bertie.objectives.heads import build_heads
from bertie.pretraining.initial_weights import new_model
from bertie.tasks import Classify
from bertie.tasks.task_json import to_task_json
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.training.optimizers import AdamW
from bertie.training.schedules import LinearDecay

transformers = pytest.importorskip("transformers", reason="needs the package transformers")
LENGTHS = (9, 40, 3, 21)
KINDS = {
    "SequenceClassification": "classify",
    "TokenClassification": "tag",
    "QuestionAnswering": "span",
    "MultipleChoice": "choose",
    "MaskedLM": "mlm",
    "CausalLM": "clm",
}


@dataclass(frozen=True)
class Case:
    """A small model of transformers."""

    prefix: str
    """Prefix of its classes."""
    values: dict[str, Any]
    """Keys of its configuration."""
    heads: tuple[str, ...]
    """Its classes with heads that bertie has."""
    refused: tuple[dict[str, Any], ...]
    """Keys of config.json that bertie does not support."""
    segments: int = 0
    """Segment id of the last token. The second half of the others has segment 1, unless it is 0."""
    languages: int = 0
    """Number of language embeddings."""
    odd: dict[str, Any] = field(default_factory=dict)
    """Other sizes and settings."""
    pad_id: int = 0
    """Id of the padding token in its tokenizer."""
    names: dict[str, str] = field(default_factory=dict)
    """Irregular names of classes, without the prefix."""

    def config(self, **more: Any) -> Any:
        return getattr(transformers, f"{self.prefix}Config")(**{"vocab_size": 500} | self.values | more)

    def model(self, kind: str, **more: Any) -> Any:
        """Return a model with random weights, biases and norms included. Dropout is off."""
        torch.manual_seed(0)
        name = f"{self.prefix}{self.names.get(kind, f'For{kind}' if kind in KINDS else kind)}"
        model = getattr(transformers, name)(self.config(**more))
        sinusoidal = more.get("sinusoidal_pos_embds") or more.get("sinusoidal_embeddings")
        for key, parameter in model.named_parameters():
            if not (sinusoidal and "position_embeddings" in key):
                parameter.data.add_(torch.randn_like(parameter) * 0.15)
        return model.eval()


SIZES = {
    **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48},
    "max_position_embeddings": 66,
}
IDS = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 2) | {"pad_token_id": 0}
HEADS_OF_BERT = ("MaskedLM", "SequenceClassification", "MultipleChoice", "TokenClassification", "QuestionAnswering")
CASES = {
    "roberta": Case(
        "Roberta",
        {**SIZES, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
        HEADS_OF_BERT,
        (
            {"position_embedding_type": "relative_key"},
            {"hidden_act": "relu"},
            {"is_decoder": True},
            {"pad_token_id": None},
        ),
        odd={"pad_token_id": 3},
    ),
    **{
        name: Case(
            *(prefix, {**SIZES, "type_vocab_size": 1, "pad_token_id": 1}, HEADS_OF_BERT, ({"hidden_act": "relu"},)),
            odd={"type_vocab_size": 4, "pad_token_id": 2},
        )
        for name, prefix in (("xlm-roberta", "XLMRoberta"), ("camembert", "Camembert"))
    },
    "mpnet": Case(
        *("MPNet", SIZES, HEADS_OF_BERT),
        (
            {"hidden_act": "relu"},
            {"pad_token_id": 0},
            {"relative_attention_num_buckets": 64},
            {"tie_word_embeddings": False},
        ),
        odd={"layer_norm_eps": 1e-6, "num_attention_heads": 1},
        pad_id=1,
    ),
    "deberta-v2": Case(
        "DebertaV2",
        {
            **{**SIZES, "max_position_embeddings": 64, "relative_attention": True, "share_att_key": True},
            **{"pos_att_type": "p2c|c2p", "position_buckets": 8, "norm_rel_ebd": "layer_norm"},
            **{"position_biased_input": False, "max_relative_positions": 32, "pooler_hidden_size": 32},
        },
        HEADS_OF_BERT,
        (
            {"relative_attention": False},
            {"share_att_key": False},
            {"pos_att_type": "c2p"},
            {"norm_rel_ebd": "other"},
            {"conv_kernel_size": 2},
            {"conv_act": "mish", "conv_kernel_size": 3},
            {"conv_groups": 2, "conv_kernel_size": 3},
            {"embedding_size": 24},
            {"attention_head_size": 16},
            {"pooler_hidden_act": "tanh"},
            {"tie_word_embeddings": False},
        ),
        odd={
            **{"position_buckets": -1, "norm_rel_ebd": "none", "position_biased_input": True, "type_vocab_size": 2},
            **{"max_relative_positions": -1, "hidden_act": "relu", "num_attention_heads": 1},
            "conv_kernel_size": 3,
        },
    ),
    "eurobert": Case(
        "EuroBert",
        {**SIZES, "num_key_value_heads": 2, "max_position_embeddings": 64, **IDS, "mask_token_id": 4},
        ("MaskedLM", "SequenceClassification", "TokenClassification"),
        (
            {"hidden_act": "gelu"},
            {"attention_bias": True},
            {"mlp_bias": True},
            {"tie_word_embeddings": True},
            {"head_dim": 16},
            {"num_key_value_heads": 3},
            {"classifier_pooling": "max"},
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}},
        ),
        odd={
            **{"num_key_value_heads": None, "rms_norm_eps": 1e-6, "attention_dropout": 0.2},
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    "nomic_bert": Case(
        "NomicBert",
        {**SIZES, "max_position_embeddings": 64},
        ("MaskedLM", "SequenceClassification", "TokenClassification"),
        (
            {"hidden_act": "gelu"},
            {"head_dim": 16},
            {"n_embd": 64},
            {"prenorm": True},
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}},
            {"tie_word_embeddings": False},
        ),
        segments=1,
        odd={"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "layer_norm_eps": 1e-6},
    ),
    "gpt2": Case(
        "GPT2",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 0, "eos_token_id": 0},
        (),
        (
            {"scale_attn_by_inverse_layer_idx": True},
            {"scale_attn_weights": False},
            {"add_cross_attention": True},
            {"activation_function": "mish"},
        ),
        odd={"activation_function": "relu", "n_inner": 40},
    ),
    "openai-gpt": Case(
        "OpenAIGPT",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
        (),
        ({"afn": "silu"}, {"tie_word_embeddings": False}),
        odd={"afn": "relu", "layer_norm_epsilon": 1e-6},
    ),
    "distilbert": Case(
        "DistilBert",
        {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 64},
        HEADS_OF_BERT,
        ({"activation": "mish"}, {"position_embedding_type": "relative_key"}, {"num_attention_heads": 1}),
        odd={"activation": "relu"},
    ),
    "electra": Case(
        "Electra",
        {**SIZES, "embedding_size": 24},
        HEADS_OF_BERT,
        (
            {"position_embedding_type": "relative_key"},
            {"hidden_act": "relu"},
            {"is_decoder": True},
        ),
        segments=1,
        odd={"embedding_size": 32, "layer_norm_eps": 1e-6},
    ),
    "xlm": Case(
        "XLM",
        {"emb_dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64},
        ("MaskedLM", "TokenClassification", "QuestionAnswering"),
        ({"asm": True}, {"is_encoder": False}),
        odd={"gelu_activation": False, "causal": True},
        names={"MaskedLM": "WithLMHeadModel", "QuestionAnswering": "ForQuestionAnsweringSimple"},
    ),
    "xlm with languages": Case(
        "XLM",
        {"emb_dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64, "n_langs": 3},
        ("MaskedLM", "TokenClassification", "QuestionAnswering"),
        ({"lang_id": 3},),
        languages=3,
        odd={"sinusoidal_embeddings": True, "lang_id": 1, "id2lang": {"0": "en", "1": "de", "2": "fr"}},
        names={"MaskedLM": "WithLMHeadModel", "QuestionAnswering": "ForQuestionAnsweringSimple"},
    ),
    "modernbert": Case(
        "ModernBert",
        {**SIZES, "max_position_embeddings": 64, "local_attention": 8, "global_attn_every_n_layers": 2, **IDS},
        HEADS_OF_BERT,
        (
            {"hidden_activation": "relu"},
            {"classifier_activation": "relu"},
            {"classifier_pooling": "max"},
            {"attention_bias": True},
            {"mlp_bias": True},
            {"norm_bias": True},
            {"classifier_bias": True},
            {"decoder_bias": False},
            {"layer_types": ["sliding_attention", "full_attention"]},
            {"sliding_window": 2},
            {"rope_parameters": {"full_attention": {"rope_type": "linear", "rope_theta": 1e4}}},
        ),
        odd={"global_attn_every_n_layers": 1, "norm_eps": 1e-6, "attention_dropout": 0.2},
    ),
    "modernbert-decoder": Case(
        "ModernBertDecoder",
        {**SIZES, "max_position_embeddings": 64, "local_attention": 8, "global_attn_every_n_layers": 2, **IDS},
        ("CausalLM",),
        (
            {"hidden_activation": "relu"},
            {"attention_bias": True},
            {"layer_types": ["sliding_attention", "full_attention"]},
        ),
        odd={"global_attn_every_n_layers": 1, "norm_eps": 1e-6, "local_attention": 4},
    ),
    "albert": Case(
        "Albert",
        {**SIZES, "embedding_size": 24},
        HEADS_OF_BERT,
        (
            {"inner_group_num": 2},
            {"num_hidden_groups": 3},
            {"num_hidden_groups": 0},
            {"num_hidden_groups": None},
            {"num_hidden_layers": None},
            {"hidden_size": None},
            {"num_hidden_layers": 18, "num_hidden_groups": 14},  # transformers rounds
            {"embedding_size": 32},
            {"position_embedding_type": "relative_key"},
            {"hidden_act": "mish"},
        ),
        segments=1,
        odd={"num_hidden_groups": 2, "hidden_act": "relu", "layer_norm_eps": 1e-6},
    ),
    "xlnet": Case(
        "XLNet",
        {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48, "summary_type": "first"},
        ("SequenceClassification", "MultipleChoice", "TokenClassification", "QuestionAnswering"),
        (
            {"attn_type": "uni"},
            {"bi_data": True},
            {"clamp_len": 4},
            {"same_length": True},
            {"ff_activation": "mish"},
            {"summary_type": "mean"},
            {"summary_use_proj": False},
        ),
        segments=2,
        odd={"ff_activation": "relu", "summary_type": "last", "dropout": 0.2},
        names={"QuestionAnswering": "ForQuestionAnsweringSimple"},
    ),
}


@pytest.fixture(autouse=True)
def _quiet() -> None:
    transformers.utils.logging.disable_progress_bar()


SAME = {"xlm-roberta", "camembert"}
"""Cases that run the code of others; test_hub_models.py has them in every run of the tests."""


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] * (name in SAME)) for name in CASES])
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture
def case_tokenizer(case: Case, small_tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer with the padding token of the case."""
    return with_padding(small_tokenizer, case.pad_id)


def with_padding(tokenizer: Tokenizer, pad_id: int) -> Tokenizer:
    """Return a WordPiece tokenizer whose padding token has another id."""
    entries = list(tokenizer.vocabulary)
    entries[tokenizer.pad_id], entries[pad_id] = entries[pad_id], entries[tokenizer.pad_id]
    return Tokenizer.build(entries)


HEADS = [
    pytest.param(case, kind, id=f"{name}-{kind}", marks=[pytest.mark.slow] * (name in SAME))
    for name, case in CASES.items()
    for kind in case.heads
]


def sequences(case: Case) -> list[Sequence]:
    rng = np.random.default_rng(0)
    result = []
    for n in LENGTHS:
        ids = rng.integers(5, 500, n).astype(np.int32)
        segments = (np.arange(n) > n // 2).astype(np.int32) * (case.segments > 0)
        segments[-1] = case.segments
        sequence = Sequence(ids, segments, np.ones(n, bool))
        if case.languages:  # with the positions of a text and its translation
            positions = np.concatenate([np.arange(n - n // 2), np.arange(n // 2) + 1]).astype(np.int32)
            languages = (rng.permutation(n) % case.languages).astype(np.int32)
            sequence = replace(sequence, position_ids=positions, language_ids=languages)
        result.append(sequence)
    return result


def padded(case: Case, pad_id: int) -> dict[str, Tensor]:
    def rows(arrays: list[np.ndarray], value: int = 0) -> Tensor:
        tensors = [torch.as_tensor(a, dtype=torch.int64) for a in arrays]
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)

    given = sequences(case)
    inputs = {
        "input_ids": rows([s.input_ids for s in given], pad_id),
        "attention_mask": rows([np.ones(len(s)) for s in given]),
    }
    if case.languages:
        arrays = [(s.language_ids, s.position_ids) for s in given if s.language_ids is not None]
        inputs["langs"], inputs["position_ids"] = (rows(list(each)) for each in zip(*arrays, strict=True))
    return inputs | ({"token_type_ids": rows([s.token_type_ids for s in given])} if case.segments else {})


def unpadded(states: Tensor) -> Tensor:
    return torch.cat([row[:n] for row, n in zip(states, LENGTHS, strict=True)])


def close(ours: Tensor, theirs: Tensor) -> None:
    assert ours.std() > 0.01  # the values differ, so that the comparison means something
    torch.testing.assert_close(ours, theirs, atol=3e-5, rtol=1e-4)


def saved(model: Any, folder: Path, tokenizer: Tokenizer) -> Path:
    """Save a model of transformers with a tokenizer, whose padding token gets the id after which positions start."""
    folder.mkdir()
    family = FAMILIES[model.config.model_type]
    moved = family.positions_after_padding and model.config.pad_token_id is not None
    (with_padding(tokenizer, model.config.pad_token_id) if moved else tokenizer).save(folder)
    model.save_pretrained(folder)
    return folder


def written(model: Any, folder: Path, task: Any = None) -> Path:
    """Write a model that bertie loaded to a new folder."""
    folder.mkdir()
    write_model(folder, model.model, model.tokenizer, task and to_task_json(task, 32, "last", 0))
    return folder


def loaded(kind: str, folder: Path) -> Any:
    """Load a model in transformers, which must find all weights that it needs and no others."""
    auto = getattr(transformers, f"AutoModelFor{kind}" if kind else "AutoModel")
    model, info = auto.from_pretrained(folder, output_loading_info=True, attn_implementation="eager")
    missing = {name for name in info["missing_keys"] if not name.startswith("pooler.")}
    assert not missing
    assert not info["mismatched_keys"]
    assert not info["unexpected_keys"]
    return model.eval()


def both_ways(model: Any, kind: str, tokenizer: Tokenizer, folder: Path) -> tuple[Any, Any]:
    """Return a model of transformers as bertie loads it, and as transformers loads what bertie writes of it."""
    ours = bertie.load(saved(model, folder / "theirs", tokenizer))
    again = loaded(kind, written(ours, folder / "ours", ours.task))
    assert type(again) is type(model)
    return ours, again


def pad_id_of(model: Any) -> int:
    return model.config.pad_token_id or 0


def compare_layers(case: Case, encoder: Any, theirs: Any) -> None:
    """Compare the embeddings and the outputs of all layers."""
    with torch.inference_mode():
        ours = encoder(collate(sequences(case), 64).tensors(), all_layers=True).layers
        states = theirs(**padded(case, pad_id_of(theirs)), output_hidden_states=True).hidden_states
    states = states[-len(ours) :]
    assert len(ours) == len(states) == 3
    for our, their in zip(ours, states, strict=True):
        close(our, unpadded(their))


def our_logits(case: Case, model: Model, kind: str) -> Tensor:
    batch = collate(sequences(case), 64).tensors()
    with torch.inference_mode():
        pooled = KINDS[kind] in ("classify", "choose")
        rows = batch.ragged.cu_seqlens[:-1] if pooled else torch.arange(len(batch.input_ids))
        hidden = model.head_inputs(model.encoder_states(batch, rows), batch, rows).last
        return model.heads[KINDS[kind]].logits(hidden)  # type: ignore[operator]


def their_logits(case: Case, model: Any, kind: str) -> Tensor:
    inputs = padded(case, pad_id_of(model))
    with torch.inference_mode():
        if kind == "MultipleChoice":
            return model(**{name: tensor[None] for name, tensor in inputs.items()}).logits.T
        output = model(**inputs)
    if kind == "QuestionAnswering":
        return unpadded(torch.stack([output.start_logits, output.end_logits], -1))
    return output.logits if kind == "SequenceClassification" else unpadded(output.logits)


@pytest.mark.parametrize("variant", ["usual", "odd"])
def test_hidden_states_agree_in_both_directions(
    case: Case, variant: str, case_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    model = case.model("Model", **(case.odd if variant == "odd" else {}))
    ours, again = both_ways(model, "", case_tokenizer, tmp_path)
    for theirs in (model, again):
        compare_layers(case, ours.model.encoder, theirs)
    assert read_checkpoint(tmp_path / "ours").config == ours.model.encoder.config
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["model_type"] == model.config.model_type


@pytest.mark.parametrize(("case", "kind"), HEADS)
def test_logits_agree_in_both_directions(case: Case, kind: str, case_tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = case.model(kind, **({"num_labels": 3} if KINDS[kind] in ("classify", "tag") else {}))
    ours, again = both_ways(model, kind, case_tokenizer, tmp_path)
    assert ours.model.kinds == {KINDS[kind]}
    logits = our_logits(case, ours.model, kind)
    close(logits, their_logits(case, model, kind))
    close(logits, their_logits(case, again, kind))


@pytest.mark.parametrize(
    ("name", "pooling", "kind"),
    [
        *(("modernbert", "mean", kind) for kind in ("SequenceClassification", "MultipleChoice", "TokenClassification")),
        *(("eurobert", pooling, "SequenceClassification") for pooling in ("bos", "mean")),
    ],
)
def test_classes_pool_tokens_as_in_transformers(
    name: str, pooling: str, kind: str, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    case = CASES[name]
    model = case.model(kind, classifier_pooling=pooling)
    ours, again = both_ways(model, kind, small_tokenizer, tmp_path)
    close(our_logits(case, ours.model, kind), their_logits(case, model, kind))
    assert again.config.classifier_pooling == pooling
    close(our_logits(case, ours.model, kind), their_logits(case, again, kind))
    assert bertie.load(tmp_path / "ours").task == ours.task


@pytest.mark.parametrize("name", ["roberta", "mpnet"])
def test_a_padding_id_that_texts_hold_is_refused(name: str, small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """transformers gives no position of its own to such a token."""
    folder = saved(CASES[name].model("Model"), tmp_path / "model", small_tokenizer)
    path, cls_id = folder / "config.json", bertie.load(folder).tokenizer.cls_id
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pad_token_id": cls_id}))
    expected = rf"pad_token_id {cls_id} is '\[CLS\]' in the vocabulary" if name == "roberta" else "pad_token_id is"
    with pytest.raises(UserError, match=expected):
        bertie.load(folder)


def test_a_single_output_is_a_regression(case: Case, case_tokenizer: Tokenizer, tmp_path: Path) -> None:
    if "SequenceClassification" not in case.heads:
        return
    model = case.model("SequenceClassification", num_labels=1)
    ours, again = both_ways(model, "SequenceClassification", case_tokenizer, tmp_path)
    assert ours.model.kinds == {"regress"}
    assert again.config.problem_type == "regression"
    expected = their_logits(case, model, "SequenceClassification")
    close(expected, their_logits(case, again, "SequenceClassification"))


def test_other_prefixes_are_accepted(case: Case, case_tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = case.model("Model")
    require_prefixes_accepted(saved(model, tmp_path / "theirs", case_tokenizer), model.base_model_prefix)


def require_prefixes_accepted(folder: Path, prefix: str) -> None:
    """Require that the weights of a model are found under the prefixes of wrappers and without any."""
    expected, path = read_checkpoint(folder).weights, folder / "model.safetensors"
    weights = {name: tensor.clone() for name, tensor in load_file(path).items()}
    for base in ("", f"module.{prefix}.", f"_orig_mod.{prefix}."):
        save_file({f"{base}{name}": tensor for name, tensor in weights.items()}, path)
        found = read_checkpoint(folder).weights
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def require_refused(folder: Path, changes: Iterable[dict[str, Any]]) -> None:
    """Require that changes of config.json are refused in one line with the file and the first key."""
    path = folder / "config.json"
    values = json.loads(path.read_text())
    for change in changes:
        path.write_text(json.dumps(values | change))
        with pytest.raises(UserError, match=next(iter(change))) as raised:
            read_checkpoint(folder)
        assert str(path) in str(raised.value)
        assert "\n" not in str(raised.value)


def test_unsupported_configurations_are_refused(case: Case, case_tokenizer: Tokenizer, tmp_path: Path) -> None:
    require_refused(saved(case.model("Model"), tmp_path / "theirs", case_tokenizer), case.refused)


def test_a_model_embeds_and_fills_masks(
    case: Case, case_tokenizer: Tokenizer, small_texts: list[str], tmp_path: Path
) -> None:
    kind = "MaskedLM" if "MaskedLM" in case.heads else "Model"
    model = bertie.load(saved(case.model(kind), tmp_path / "theirs", case_tokenizer))
    assert model.embed([text[:40] for text in small_texts[:3]]).shape == (3, 32)
    if kind == "MaskedLM":
        assert len(model.fill_mask("The [MASK] is here.")[0]) == 5


def test_a_model_is_fine_tuned_and_saved_in_its_format(
    case: Case, case_tokenizer: Tokenizer, small_texts: list[str], tmp_path: Path
) -> None:
    theirs = saved(case.model("Model"), tmp_path / "theirs", case_tokenizer)
    rows = [
        {"text": text[:40], "text_pair": text[40:70], "label": ("no", "yes")[i % 2]}
        for i, text in enumerate(small_texts[:12])
    ]
    training = FinetuneTraining(steps=3, batch_size=4, learning_rate=1e-3, precision="fp32")
    config = FinetuneConfig(Classify(), AdamW(), LinearDecay(), training, max_length=48)
    out = tmp_path / "tuned"
    bertie.finetune(config, rows, theirs, out, dev=rows, threads=1)
    tuned = bertie.load(out)
    predicted = tuned.predict(rows)
    compare_layers(case, tuned.model.encoder, encoder_of(out))
    assert [each.label for each in bertie.load(written(tuned, tmp_path / "again", tuned.task)).predict(rows)] == [
        each.label for each in predicted
    ]
    if "SequenceClassification" not in case.heads:
        return
    require_probabilities(predicted, rows, out)


def require_probabilities(predicted: list[Any], rows: list[dict[str, str]], run: Path) -> None:
    """Require the probabilities that transformers computes for texts or pairs."""
    model, tokenizer = loaded("SequenceClassification", run), transformers.AutoTokenizer.from_pretrained(run)
    texts = [[row[column] for row in rows] for column in rows[0] if column != "label"]
    with torch.inference_mode():
        expected = model(**tokenizer(*texts, padding=True, return_tensors="pt")).logits.softmax(-1)
    found = [list(each.probabilities.values()) for each in predicted]
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)


def encoder_of(folder: Path) -> Any:
    return transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()


@pytest.mark.parametrize("name", ["gpt2", "openai-gpt"])
def test_causal_language_models_agree(name: str, small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    case = CASES[name]
    model = case.model("LMHeadModel")
    checkpoint = read_checkpoint(saved(model, tmp_path / "theirs", small_tokenizer))
    encoder = build_encoder(checkpoint.config)
    ours = Model(encoder, build_heads([CausalLM()], encoder)).eval()
    assert load_weights(ours, checkpoint).initialized == ()
    (tmp_path / "ours").mkdir()
    write_model(tmp_path / "ours", ours, small_tokenizer)
    again = loaded("CausalLM", tmp_path / "ours")
    assert type(again) is type(model)
    with torch.inference_mode():
        logits = ours.heads["clm"].logits(ours.encoder(collate(sequences(case), 64).tensors()).last)  # type: ignore[operator]
        for theirs in (model, again):
            close(logits, unpadded(theirs(**padded(case, 0)).logits))


def test_permutation_language_models_agree(small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """transformers takes the order as a mask of what each token must not see, and predicts at every position."""
    case = CASES["xlnet"]
    model = case.model("LMHeadModel")
    ours, again = both_ways(model, "CausalLM", small_tokenizer, tmp_path)
    rng = np.random.default_rng(1)
    orders = [np.append(0, rng.permutation(n - 1) * (rng.random(n - 1) < 0.7)) for n in LENGTHS]
    batch = replace(collate(sequences(case), 64), order=np.concatenate(orders).astype(np.int32)).tensors()
    inputs, size = padded(case, 0), max(LENGTHS)
    unseen, each = torch.ones(len(LENGTHS), size, size), torch.eye(size).expand(len(LENGTHS), -1, -1)
    for row, order in zip(unseen, map(torch.as_tensor, orders), strict=True):
        row[: len(order), : len(order)] = (order[None] > (order[:, None] - 1).clamp(min=0)).float()
    with torch.inference_mode():
        logits = ours.model.heads["plm"].logits(ours.model.encoder(batch).last)  # type: ignore[operator]
        for theirs in (model, again):
            close(logits, unpadded(theirs(**inputs, perm_mask=unseen, target_mapping=each).logits))


def test_an_xlnet_that_reads_the_last_token_agrees_with_padding_on_the_left(
    small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    case = CASES["xlnet"]
    model = case.model("SequenceClassification", num_labels=3, summary_type="last")
    ours, again = both_ways(model, "SequenceClassification", small_tokenizer, tmp_path)
    assert ours.model.encoder.config.pooled_token == "last"
    batch = collate(sequences(case), 64).tensors()
    inputs = {
        name: torch.stack([row.roll(max(LENGTHS) - n) for row, n in zip(tensor, LENGTHS, strict=True)])
        for name, tensor in padded(case, 0).items()
    }
    with torch.inference_mode():
        last = ours.model.encoder(batch).last[batch.ragged.cu_seqlens[1:] - 1]
        logits = ours.model.heads["classify"].logits(last)  # type: ignore[operator]
        for theirs in (model, again):
            close(logits, theirs(**inputs).logits)


@pytest.mark.parametrize("family", ["albert", "xlnet"])
def test_a_vocabulary_that_does_not_fit_the_class_is_refused(family: str, tmp_path: Path) -> None:
    CASES[family].model("Model").save_pretrained(tmp_path)
    (tmp_path / "spiece.model").write_bytes(b"")
    with pytest.raises(UserError, match=f"{tmp_path.name}.*its tokenizer"):
        read_checkpoint(tmp_path)
    wordpiece = tokenizers.models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]")
    tokenizers.Tokenizer(wordpiece).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match=f"{tmp_path.name}.*its tokenizer"):
        read_checkpoint(tmp_path)


def test_masked_words_and_the_order_of_sentences_agree_with_albert(small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    case = CASES["albert"]
    model = case.model("ForPreTraining", num_hidden_groups=2)
    ours, again = both_ways(model, "PreTraining", small_tokenizer, tmp_path)
    assert ours.model.kinds == {"mlm", "nsp"}
    batch = collate(sequences(case), 64).tensors()
    with torch.inference_mode():
        hidden = ours.model.encoder(batch).last
        masked, order = ours.model.heads["mlm"], ours.model.heads["nsp"]
        words = masked.logits(hidden)  # type: ignore[operator]
        swapped = order.logits(hidden[batch.ragged.cu_seqlens[:-1]])  # type: ignore[operator]
        for theirs in (model, again):
            outputs = theirs(**padded(case, 0))
            close(words, unpadded(outputs.prediction_logits))
            close(swapped, outputs.sop_logits)


def test_shared_layers_without_a_projection_are_no_albert(small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    config = TransformerConfig(**SIZES, vocab_size=500, num_hidden_groups=1)
    ours = new_model(config, (MaskedLM(),), 0)
    write_model(tmp_path, ours, small_tokenizer)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "bertie"
    again = bertie.load(tmp_path).model.state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in ours.state_dict().items())


@pytest.mark.parametrize("segments", [0, 1, 2])
def test_at_most_one_segment_makes_a_bert_a_roberta(
    segments: int, tiny_config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """A model without segments gets a row of zeros, which is removed again unless another library trained it."""
    config = replace(tiny_config, type_vocab_size=segments)
    encoder = build_encoder(config)
    model = Model(encoder, build_heads([MaskedLM()], encoder))
    write_model(tmp_path, model, small_tokenizer)
    theirs = loaded("MaskedLM", tmp_path)
    assert theirs.config.model_type == ("bert" if segments == 2 else "roberta")
    assert read_checkpoint(tmp_path).config == config
    assert load_weights(model, read_checkpoint(tmp_path)).initialized == ()
    if segments == 0:
        theirs.roberta.embeddings.token_type_embeddings.weight.data.fill_(0.5)
    theirs.save_pretrained(tmp_path)
    assert read_checkpoint(tmp_path).config == replace(config, type_vocab_size=segments or 1)


def test_a_bert_with_one_segment_is_read(small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """It becomes a RoBERTa when bertie saves it."""
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(vocab_size=500, **SIZES | {"type_vocab_size": 1})).eval()
    ours = bertie.load(saved(model, tmp_path / "theirs", small_tokenizer))
    case = CASES["roberta"]
    compare_layers(case, ours.model.encoder, model)
    again = loaded("", written(ours, tmp_path / "ours"))
    assert type(again) is transformers.RobertaModel
    compare_layers(case, ours.model.encoder, again)


@pytest.mark.parametrize(("name", "key"), [("distilbert", "sinusoidal_pos_embds"), ("xlm", "sinusoidal_embeddings")])
def test_sinusoidal_positions_are_computed_unless_they_were_trained(
    name: str, key: str, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    case = CASES[name]
    model = case.model("Model", **{key: True})
    ours, again = both_ways(model, "", small_tokenizer, tmp_path)
    assert ours.model.encoder.config.position_embedding == "sinusoidal"
    for theirs in (model, again):
        compare_layers(case, ours.model.encoder, theirs)
    assert read_checkpoint(tmp_path / "ours").config == ours.model.encoder.config
    next(each for part, each in model.named_parameters() if "position_embeddings" in part).data.add_(0.1)
    trained = bertie.load(saved(model, tmp_path / "trained", small_tokenizer))
    assert trained.model.encoder.config.position_embedding == "learned"
    compare_layers(case, trained.model.encoder, model)


def test_replaced_tokens_are_detected_as_in_electra(small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    case = CASES["electra"]
    model = case.model("ForPreTraining")
    checkpoint = read_checkpoint(saved(model, tmp_path / "theirs", small_tokenizer))
    head = ReplacedTokenHead(checkpoint.config)
    ours = Model(build_encoder(checkpoint.config), {"rtd": with_facts(head, ReplacedToken().facts)}).eval()
    assert load_weights(ours, checkpoint).initialized == ()
    (tmp_path / "ours").mkdir()
    write_model(tmp_path / "ours", ours, small_tokenizer)
    again = loaded("PreTraining", tmp_path / "ours")
    replaced = (torch.arange(sum(LENGTHS)) % 3 == 0).long()
    labels = torch.full((len(LENGTHS), max(LENGTHS)), -100)
    for row, part in zip(labels, replaced.split(LENGTHS), strict=True):
        row[: len(part)] = part
    with torch.inference_mode():
        hidden = ours.encoder(collate(sequences(case), 64).tensors())
        targets = Targets(torch.arange(sum(LENGTHS)), replaced, torch.ones(sum(LENGTHS)))
        logits, loss = head.logits(hidden.last)[:, 0], head(hidden, targets)
        for theirs in (model, again):
            output = theirs(**padded(case, 0), labels=labels)
            close(logits, unpadded(output.logits))
            torch.testing.assert_close(loss.total / loss.count, output.loss)


def test_a_model_with_a_generator_loads_as_a_discriminator(small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """transformers ignores the weights of the generator. What it saves again is a discriminator without one."""
    case = CASES["electra"]
    checkpoint = read_checkpoint(saved(case.model("ForPreTraining"), tmp_path / "theirs", small_tokenizer))
    ours = new_model(replace(checkpoint.config, initializer_range=0.2), (MaskedLM(), ReplacedToken()), 0).eval()
    (tmp_path / "ours").mkdir()
    write_model(tmp_path / "ours", ours, small_tokenizer)
    kinds = {"AutoModel": "ElectraModel", "AutoModelForPreTraining": "ElectraForPreTraining"}
    for auto, name in kinds.items():
        model, info = getattr(transformers, auto).from_pretrained(
            tmp_path / "ours", output_loading_info=True, attn_implementation="eager"
        )
        assert type(model).__name__ == name
        assert not info["missing_keys"]
        assert all(key.startswith(("generator.", "heads.mlm.", "discriminator")) for key in info["unexpected_keys"])
        model.eval()
        with torch.inference_mode():
            hidden = ours.encoder(collate(sequences(case), 64).tensors()).last
            if auto == "AutoModel":
                close(hidden, unpadded(model(**padded(case, 0)).last_hidden_state))
            else:
                close(ours.heads["rtd"].logits(hidden)[:, 0], unpadded(model(**padded(case, 0)).logits))  # type: ignore[operator]
                model.save_pretrained(tmp_path / "ours")
    again = read_checkpoint(tmp_path / "ours")
    assert (again.generator, again.heads) == (None, {"rtd"})


def test_the_buckets_of_distances_are_those_of_mpnet() -> None:
    ahead = torch.arange(-600, 600)[None]
    theirs = transformers.models.mpnet.modeling_mpnet.MPNetEncoder.relative_position_bucket(ahead)
    assert torch.equal(bucket_of(ahead, 32), theirs)


def test_a_published_deberta_loads(small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """It has the authors' masked-LM head, a head for replaced tokens and unused positions, and no class."""
    case = CASES["deberta-v2"]
    model = case.model("MaskedLM", legacy=False)
    folder = saved(model, tmp_path / "theirs", small_tokenizer)
    weights = load_file(folder / "model.safetensors")
    weights |= {"mask_predictions.dense.weight": torch.zeros(32, 32)}
    weights |= {"deberta.embeddings.position_embeddings.weight": torch.zeros(64, 32)}
    save_file(weights, folder / "model.safetensors")
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({key: values[key] for key in values if key != "architectures"}))
    ours = bertie.load(folder)
    logits = our_logits(case, ours.model, "MaskedLM")
    close(logits, their_logits(case, model, "MaskedLM"))
    close(logits, their_logits(case, loaded("MaskedLM", written(ours, tmp_path / "ours")), "MaskedLM"))


@pytest.mark.parametrize("name", ["gpt2", "openai-gpt"])
@pytest.mark.parametrize("outputs", [1, 3])
def test_heads_for_texts_without_a_pooler_agree(
    name: str, outputs: int, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """The class reads the last token that is not padding, with one matrix."""
    case = CASES[name]
    model = case.model("ForSequenceClassification", num_labels=outputs, pad_token_id=0)
    ours, again = both_ways(model, "SequenceClassification", small_tokenizer, tmp_path)
    assert ours.model.kinds == {"classify" if outputs > 1 else "regress"}
    assert bertie.load(tmp_path / "ours").model.encoder.config == ours.model.encoder.config
    batch = collate(sequences(case), 64).tensors()
    with torch.inference_mode():
        last = ours.model.encoder(batch).last[batch.ragged.cu_seqlens[1:] - 1]
        [kind] = ours.model.kinds
        logits = ours.model.heads[kind].logits(last)  # type: ignore[operator]
        for theirs in (model, again):
            close(logits, theirs(**padded(case, 0)).logits)


@pytest.mark.parametrize("name", ["gpt2", "openai-gpt"])
def test_a_gpt_that_is_fine_tuned_with_its_input_tokens_agrees(
    name: str, small_tokenizer: Tokenizer, small_texts: list[str], tmp_path: Path
) -> None:
    """Texts and pairs, with the tokenizer that transformers reads, padded to a grid."""
    theirs = saved(CASES[name].model("Model"), tmp_path / "theirs", small_tokenizer)
    training = FinetuneTraining(steps=3, batch_size=4, learning_rate=1e-3, precision="fp32")
    config = FinetuneConfig(
        *(Classify(), AdamW(), LinearDecay(), training), max_length=48, input_tokens="gpt", lm_weight=0.5
    )
    for number, second in enumerate(({}, {"text_pair": "the"})):
        rows = [
            {"text": text[: 20 + 3 * i], **second, "label": ("no", "yes")[i % 2]}
            for i, text in enumerate(small_texts[:8])
        ]
        out = tmp_path / f"tuned-{number}"
        predicted = bertie.finetune(config, rows, theirs, out, dev=rows, threads=1).predict(rows)
        require_probabilities(predicted, rows, out)


def test_the_auxiliary_loss_is_that_of_transformers_language_model(small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """The mean over all tokens of a batch, as a plain loop over sequences has it with the class's own loss."""
    case = CASES["openai-gpt"]
    model = case.model("LMHeadModel")
    checkpoint = read_checkpoint(saved(model, tmp_path / "theirs", small_tokenizer))
    encoder = build_encoder(checkpoint.config)
    ours = Model(encoder, {"lm": auxiliary_head(encoder.embeddings.word)}).eval()
    load_weights(ours, checkpoint)
    batch = collate(sequences(case), 64)
    micro = MicroBatch.of(batch, {"lm": next_token_targets(batch)})
    total = 0.0
    with torch.inference_mode():
        loss = ours(micro.tensors())["lm"]
        for sequence in sequences(case):
            ids = torch.as_tensor(sequence.input_ids, dtype=torch.int64)[None]
            total += float(model(ids, labels=ids).loss) * (ids.shape[1] - 1)
    assert float(loss.count) == sum(LENGTHS) - len(LENGTHS)
    assert float(loss.total) == pytest.approx(total, rel=1e-5)
