"""The Reformer of transformers: equal hidden states and logits, in both directions, whatever the length of a text.

transformers computes each text alone: in its batches, the chunks of a text depend on the padding.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_families import close, require_prefixes_accepted, require_refused, saved, written
from torch import Tensor

import bertie
from bertie.base.contracts import Sequence
from bertie.base.errors import UserError
from bertie.batches.collate import collate
from bertie.checkpoints.read import read_checkpoint
from bertie.model.model import Model
from bertie.tokenizers.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers", reason="needs the package transformers")
LENGTHS = (3, 9, 16, 30, 64)  # less than a chunk, whole chunks, and parts of chunks
VALUES: dict[str, Any] = {
    **{"vocab_size": 500, "attn_layers": ["local", "lsh", "local", "lsh"], "hidden_size": 32, "hash_seed": 5},
    **{"num_attention_heads": 2, "attention_head_size": 12, "feed_forward_size": 48, "max_position_embeddings": 64},
    **{"axial_pos_shape": [8, 8], "axial_pos_embds_dim": [8, 24], "num_hashes": 2, "num_buckets": [2, 4]},
    **{"local_attn_chunk_length": 8, "lsh_attn_chunk_length": 16, "is_decoder": False},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "usual": {},
    "local": {"attn_layers": ["local", "local"], "local_num_chunks_before": 2, "local_num_chunks_after": 1},
    "hashed": {"attn_layers": ["lsh", "lsh"], "num_buckets": 8, "num_hashes": 3, "lsh_num_chunks_after": 1},
    "one round": {"num_hashes": 1, "num_buckets": 4, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6},
    "learned positions": {"axial_pos_embds": False, "num_attention_heads": 4, "attention_head_size": 8},
    "short chunks of hashing": {"local_attn_chunk_length": 16, "lsh_attn_chunk_length": 8, "lsh_num_chunks_before": 3},
}


def model_of(name: str, **changes: Any) -> Any:
    """Return a model of transformers with random weights, biases and norms included. Dropout is off."""
    torch.manual_seed(0)
    model = getattr(transformers, name)(transformers.ReformerConfig(**VALUES | changes))
    for key, parameter in model.named_parameters():
        parameter.data.add_(torch.randn_like(parameter) * (0 if key == "lm_head.bias" else 0.15))
    return model.eval()


def loaded(name: str, folder: Path) -> Any:
    """Load a model in transformers, which must find all weights that it needs and no others."""
    model, info = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "mismatched_keys", "unexpected_keys"))
    return model.eval()


def sequences() -> list[Sequence]:
    rng = np.random.default_rng(0)
    ids = [rng.integers(5, 258, n).astype(np.int32) for n in LENGTHS]
    return [Sequence(own, np.zeros_like(own), np.ones(len(own), bool)) for own in ids]


def our_states(model: Model) -> Tensor:
    with torch.no_grad():
        return model.encoder(collate(sequences(), 64).tensors()).last


def theirs(model: Any, output: str = "last_hidden_state") -> Tensor:
    with torch.no_grad():
        texts = (torch.as_tensor(each.input_ids, dtype=torch.int64) for each in sequences())
        outputs = (model(input_ids=ids[None], use_cache=False) for ids in texts)
        return torch.cat([getattr(each, output)[0] for each in outputs])


@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_hidden_states_agree_in_both_directions(
    variant: str, causal: bool, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    changes = VARIANTS[variant] | {"is_decoder": causal}
    if causal:
        changes |= {"local_num_chunks_after": 0, "lsh_num_chunks_after": 0}
    model = model_of("ReformerModel", **changes)
    ours = bertie.load(saved(model, tmp_path / "theirs", small_tokenizer))
    states = our_states(ours.model)
    close(states, theirs(model))
    close(states, theirs(loaded("ReformerModel", written(ours, tmp_path / "ours"))))
    assert read_checkpoint(tmp_path / "ours").config == ours.model.encoder.config
    mixed = model_of("ReformerModel", **changes, num_labels=2)
    assert mixed.config.hash_seed == 5  # with other hyperplanes, hashed layers would give other states
    if "lsh" in mixed.config.attn_layers:
        for layer in mixed.encoder.layers:
            if hasattr(layer.attention.self_attention, "hash_seed"):
                layer.attention.self_attention.hash_seed = 6
        assert (theirs(mixed) - states).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("name", "kind", "causal"),
    [("ReformerModelWithLMHead", "clm", True), ("ReformerForMaskedLM", "mlm", False)],
)
def test_logits_over_the_vocabulary_agree_in_both_directions(
    name: str, kind: str, causal: bool, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    model = model_of(name, is_decoder=causal)
    ours = bertie.load(saved(model, tmp_path / "theirs", small_tokenizer))
    assert ours.model.kinds == {kind}
    logits = ours.model.heads[kind].logits(our_states(ours.model)).detach()  # type: ignore[operator]
    close(logits, theirs(model, "logits"))
    close(logits, theirs(loaded(name, written(ours, tmp_path / "ours")), "logits"))


def test_without_a_seed_bertie_predicts_with_one_that_it_writes(small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    ours = bertie.load(saved(model_of("ReformerModel", hash_seed=None), tmp_path / "theirs", small_tokenizer))
    assert ours.model.encoder.config.new_hyperplanes
    close(our_states(ours.model), theirs(loaded("ReformerModel", written(ours, tmp_path / "ours"))))
    assert read_checkpoint(tmp_path / "ours").config == ours.model.encoder.config


def test_rows_in_chunks_are_saved_and_do_not_bind_transformers(small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = saved(model_of("ReformerModel"), tmp_path / "theirs", small_tokenizer)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"feed_forward_chunk": 7}))
    ours = bertie.load(folder)
    assert ours.model.encoder.config.feed_forward_chunk == 7
    close(our_states(ours.model), theirs(loaded("ReformerModel", written(ours, tmp_path / "ours"))))
    assert read_checkpoint(tmp_path / "ours").config == ours.model.encoder.config


def test_logits_of_answers_agree_in_both_directions(small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = model_of("ReformerForQuestionAnswering")
    ours = bertie.load(saved(model, tmp_path / "theirs", small_tokenizer))
    logits = ours.model.heads["span"].logits(our_states(ours.model)).detach()  # type: ignore[operator]
    expected = torch.stack([theirs(model, "start_logits"), theirs(model, "end_logits")], -1)
    close(logits, expected)
    again = loaded("ReformerForQuestionAnswering", written(ours, tmp_path / "ours"))
    close(logits, torch.stack([theirs(again, "start_logits"), theirs(again, "end_logits")], -1))


def test_a_bias_that_transformers_ignores_is_ignored_and_said(
    small_tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_of("ReformerForMaskedLM")
    model.lm_head.bias.data.fill_(1.0)
    ours = bertie.load(saved(model, tmp_path / "theirs", small_tokenizer))
    assert "lm_head.bias is not 0" in capsys.readouterr().err
    close(ours.model.heads["mlm"].logits(our_states(ours.model)).detach(), theirs(model, "logits"))  # type: ignore[operator]


def test_the_class_for_classification_is_refused_by_name(small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = saved(model_of("ReformerForSequenceClassification"), tmp_path / "theirs", small_tokenizer)
    with pytest.raises(UserError, match=r"no Reformer of bertie has: classifier\."):
        bertie.load(folder)


def test_unsupported_configurations_are_refused(small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        *({"num_buckets": value} for value in (None, 7, [2, 3], [2, 10], "many", True)),
        *({"axial_pos_shape": value} for value in ([8, 4], [4, 4, 4])),
        *({"axial_pos_embds_dim": [8, 8]}, {"lsh_attn_chunk_length": 24}, {"local_attn_chunk_length": 7}),
        *({"attn_layers": ["local", "global"]}, {"attn_layers": []}, {"hidden_act": "mish"}),
        *({"lsh_num_chunks_after": 1, "is_decoder": True}, {"tie_word_embeddings": True}),
        *({"sinusoidal_pos_embds": True}, {"hidden_size": "wide"}, {"num_hidden_layers": 3}),
        {"add_cross_attention": True},
    ]
    require_refused(saved(model_of("ReformerModel"), tmp_path / "theirs", small_tokenizer), changes)


@pytest.mark.parametrize(
    ("name", "causal"), [("ReformerModelWithLMHead", False), ("ReformerForMaskedLM", True)], ids=["next", "masked"]
)
def test_a_class_that_contradicts_is_decoder_is_refused_as_in_transformers(
    name: str, causal: bool, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    folder = saved(model_of(name, is_decoder=not causal), tmp_path / "theirs", small_tokenizer)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"is_decoder": causal}))
    with pytest.raises(AssertionError, match="is_decoder"):
        getattr(transformers, name).from_pretrained(folder)
    with pytest.raises(UserError, match=f"architectures is {name} and is_decoder is {str(causal).lower()}"):
        read_checkpoint(folder)


def test_other_prefixes_are_accepted(small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    require_prefixes_accepted(saved(model_of("ReformerModel"), tmp_path / "theirs", small_tokenizer), "reformer")


def test_a_model_of_bytes_needs_no_tokenizer(tmp_path: Path) -> None:
    """As google/reformer-enwik8: byte value + 2 is the id, and the folder has no tokenizer."""
    model = model_of("ReformerModelWithLMHead", vocab_size=258, is_decoder=True)
    model.save_pretrained(tmp_path / "theirs")
    ours = bertie.load(tmp_path / "theirs")
    text = "Zürich, 4 °C\n</s><pad> [MASK]"
    [ids] = ours.tokenizer.encode([text])
    assert ids.tolist() == [2 + byte for byte in text.encode()]
    assert ours.tokenizer.decode(ids) == text
    again = bertie.load(written(ours, tmp_path / "ours"))
    assert again.tokenizer.fingerprint == ours.tokenizer.fingerprint
    close(our_states(again.model), theirs(model.reformer))
    start = torch.tensor([[1, *ids.tolist()]])
    with torch.no_grad():
        log_p = model(start[:, :-1], use_cache=False).logits[0].log_softmax(-1)
    assert ours.pseudo_log_likelihood([text])[0] == pytest.approx(
        float(log_p.gather(1, start[0, 1:, None]).sum()), abs=1e-3
    )
    assert len(ours.generate("Z", bertie.Generation(length=3, temperature=0))[0]) >= 1


def test_a_model_of_subwords_reads_its_sentencepiece_model(small_texts: list[str], tmp_path: Path) -> None:
    """As google/reformer-crime-and-punishment: spiece.model is of the kind BPE."""
    sentencepiece = pytest.importorskip("sentencepiece", reason="needs the package sentencepiece")
    (tmp_path / "text.txt").write_text("\n".join(small_texts))
    files = {"input": str(tmp_path / "text.txt"), "model_prefix": str(tmp_path / "spiece")}
    sentencepiece.SentencePieceTrainer.train(**files, model_type="bpe", vocab_size=320, minloglevel=2)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    folder = tmp_path / "theirs"
    model_of("ReformerModelWithLMHead", vocab_size=320, is_decoder=True).save_pretrained(folder)
    (tmp_path / "spiece.model").rename(folder / "spiece.model")
    library = transformers.ReformerTokenizer.from_pretrained(folder)
    ours = bertie.load(folder)
    for text in [*small_texts[:40], "Zürich  has 4 °C", "\u4e2d", ""]:
        [ids] = ours.tokenizer.encode([text])
        assert ids.tolist() == library(text).input_ids
        if "  " not in text:
            assert ids.tolist() == theirs.encode(text)
    library.save_pretrained(tmp_path / "json")
    model_of("ReformerModelWithLMHead", vocab_size=320, is_decoder=True).save_pretrained(tmp_path / "json")
    (tmp_path / "json" / "spiece.model").unlink(missing_ok=True)
    again = bertie.load(tmp_path / "json")
    for text in small_texts[:40]:
        assert np.array_equal(again.tokenizer.encode([text])[0], ours.tokenizer.encode([text])[0])
    assert again.generate("a", bertie.Generation(length=3))
