"""Describe a model folder: the model, its files, its tokenizer, its vectors, and its use in other libraries."""

from __future__ import annotations

import glob
import unicodedata
from collections.abc import Iterable
from typing import Any

from bertie.base import storage
from bertie.base.console import plural
from bertie.checkpoints import sentence_transformers_reader
from bertie.checkpoints.families.settings import WITHOUT_EFFECT
from bertie.checkpoints.find import TENSORFLOW_INDEX
from bertie.checkpoints.folder import MANIFEST
from bertie.checkpoints.huggingface import transformers_heads
from bertie.checkpoints.read import Checkpoint
from bertie.files.model_folder import ModelFolder
from bertie.model.head_facts import facts_of
from bertie.predict.convert.compare_sentence_transformers import limited
from bertie.predict.convert.comparison import shown
from bertie.predict.predictor import Predictor
from bertie.tokenizers.classes import BYTES, GENERIC
from bertie.tokenizers.folder import read_folder
from bertie.tokenizers.special_tokens import Place

Facts = dict[str, str]
SHOWN = 12
"""Names in a list that are shown."""
SIZES = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size"),
    *("position_embedding", "type_vocab_size", "hidden_act"),
)
"""Settings of an encoder that are shown."""


def describe(checkpoint: Checkpoint, predictor: Predictor) -> dict[str, Facts]:
    """Describe a model.

    Args:
        checkpoint: What was read from its folder, with its weights.
        predictor: The same model, loaded.

    Returns:
        Facts by name, in sections.
    """
    path = checkpoint.folder / "config.json"
    values = storage.read_json(path) if path.is_file() else {}
    name = read_folder(ModelFolder(checkpoint.folder)).name
    sections = {
        "model": _model(checkpoint, predictor, values),
        "files": _files(checkpoint, values),
        "tokenizer": _tokenizer(predictor, name),
        "vectors": _vectors(checkpoint, predictor),
        "in transformers": _in_transformers(checkpoint, predictor, name),
        "in sentence-transformers": _in_sentence_transformers(checkpoint, predictor),
        "different by design": _by_design(checkpoint, predictor, name),
    }
    return {title: facts for title, facts in sections.items() if facts}


def few(names: Iterable[str]) -> str:
    """Return a list for people, of the first names if there are many."""
    every = [shown(name, 60) if name.strip() else repr(name) for name in names]
    return ", ".join(every[:SHOWN]) + f" and {len(every) - SHOWN:,} others" * (len(every) > SHOWN) or "none"


def _model(checkpoint: Checkpoint, predictor: Predictor, values: dict[str, Any]) -> Facts:
    family, model = checkpoint.family, predictor.model
    config = model.encoder.config
    facts = {"family": f"{family.title} (model_type {family.model_type})"}
    facts["class"] = few(values.get("architectures") or ()) if values.get("architectures") else "none named"
    sizes = [f"{name} {getattr(config, name)}" for name in SIZES if hasattr(config, name)]
    facts["encoder"] = ", ".join([config.kind, *sizes, *["causal"] * config.causal])
    facts["sizes"] = f"{plural(model.size, 'parameter')}, {config.vocab_size:,} entries of the vocabulary"
    facts["longest input"] = f"{predictor.max_length:,} tokens; positions: {config.max_position_embeddings:,}"
    for kind, head in sorted(model.heads.items()):
        about = facts_of(head)
        task = predictor.task if predictor.task is not None and kind == predictor.task.kind else None
        labels, problem = ((), "") if task is None else (task.labels, checkpoint.problem_type)
        parts = [
            f"{about.name}, predicts {about.predicts}",
            f"labels {few(labels)}" * bool(labels),
            f"problem_type {problem}" * bool(problem),
        ]
        facts[f"head {kind}"] = "; ".join(part for part in parts if part)
    return facts


def _files(checkpoint: Checkpoint, values: dict[str, Any]) -> Facts:
    paths = [*checkpoint.files]
    for path in checkpoint.files:
        if path.suffix == TENSORFLOW_INDEX:
            paths += sorted(path.parent.glob(f"{glob.escape(path.stem)}.data-*-of-*"))
    size = sum(path.stat().st_size for path in paths) / 1e6
    dtypes = few(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in checkpoint.weights.values()}))
    names = few(path.name for path in paths)
    manifest = "none: the folder is not bertie's own"
    if (checkpoint.folder / MANIFEST).is_file():
        count = len(storage.read_json(checkpoint.folder / MANIFEST)["files"])
        manifest = f"bertie's own folder; the checksums of {plural(count, 'file')} are right"
    facts = {"weights": f"{names} ({size:.1f} MB, {dtypes})", "manifest": manifest}
    unused = sorted(values.keys() & {*WITHOUT_EFFECT, *checkpoint.family.settings.without_effect})
    return facts | ({"no effect, config.json": few(unused)} if unused else {})


def _tokenizer(predictor: Predictor, name: str) -> Facts:
    tokenizer = predictor.tokenizer
    normalizer = tokenizer.backend.engine.normalizer
    probe = "É" if normalizer is None else normalizer.normalize_str("É")
    case = "lowercases" if probe == probe.lower() else "keeps the case"
    accents = "keeps accents" if unicodedata.normalize("NFD", probe) != probe[:1] else "removes accents"
    roles = (f"{role.removesuffix('_token')} {token}" for role, token in tokenizer.special.names().items())
    templates = tokenizer.templates
    return {
        "class": f"{name}, which bertie reads as {tokenizer.algorithm} with {tokenizer.size:,} entries",
        "text": f"{case}, {accents}",
        "special tokens": few(roles),
        "added tokens": few(tokenizer.user_tokens),
        "of a text": _template(predictor, templates.single),
        "of a pair": _template(predictor, templates.pair),
        "its limit": "none" if tokenizer.longest is None else plural(tokenizer.longest, "token"),
    }


def _template(predictor: Predictor, places: tuple[Place, ...]) -> str:
    """Return a sequence for people: "[CLS] A [SEP] B [SEP]" and the token types."""
    texts, entries = iter("AB"), predictor.tokenizer.vocabulary
    shown = " ".join(next(texts) if place.id is None else entries[place.id] for place in places)
    return f"{shown}, with the token types {' '.join(str(place.type_id) for place in places)}"


def _vectors(checkpoint: Checkpoint, predictor: Predictor) -> Facts:
    how = predictor.text_embedding
    read = sentence_transformers_reader.read(checkpoint.folder) is not None
    source = "as the files of sentence-transformers say" if read else "no file says how: bertie's default"
    prompts = few(f"{name} {text!r}" for name, text in how.prompts.items() if text)
    modules = "".join(f", then {type(module).__name__}" for module in how.modules)
    facts = {"pooling": f"{' and '.join(how.pooling)}{modules} ({source})", "width": str(predictor.vector_width())}
    if read:
        default = f"; by default {how.default_prompt!r}" * (how.default_prompt is not None)
        facts |= {"similarity": how.similarity, "prompts": prompts + default}
        facts |= {"lowercase": "texts are lowercased before the tokenizer"} if how.lowercase else {}
        facts |= {} if how.include_prompt else {"prompt tokens": "are not pooled"}
    return facts


def score_function(checkpoint: Checkpoint, predictor: Predictor) -> tuple[str, str]:
    """Return what makes scores of the outputs of a head for texts in a pipeline of transformers and in a CrossEncoder.

    Empty texts: the model has no such head, or no class of transformers has it.
    """
    task = predictor.task
    if task is None or task.facts.shape != "text" or transformers_heads(predictor.model) is None:
        return "", ""
    outputs = len(task.labels) or 1
    kind = checkpoint.problem_type or task.facts.problem_type
    sigmoid = kind == "multi_label_classification" or (outputs == 1 and kind != "regression")
    pipeline = "none" if kind == "regression" and checkpoint.problem_type else "sigmoid" if sigmoid else "softmax"
    named = sentence_transformers_reader.score_activation(checkpoint.folder, outputs)
    return pipeline, named or ("Sigmoid" if outputs == 1 else "Identity")


def _in_transformers(checkpoint: Checkpoint, predictor: Predictor, name: str) -> Facts:
    if not (checkpoint.folder / "config.json").is_file():
        return {"class": "none: transformers 5 reads no TensorFlow checkpoints"}
    if not checkpoint.family.in_transformers:
        return {"class": "none for this model"}
    tokenizer = "none: the folder has no tokenizer files" if name == BYTES else name
    facts = {"AutoModel": checkpoint.family.architectures[frozenset()], "AutoTokenizer": tokenizer}
    pipeline, _ = score_function(checkpoint, predictor)
    return facts | ({'pipeline("text-classification")': f"activation: {pipeline}"} if pipeline else {})


def _in_sentence_transformers(checkpoint: Checkpoint, predictor: Predictor) -> Facts:
    if not checkpoint.family.in_transformers:
        return {"class": "none for this model"}
    _, activation = score_function(checkpoint, predictor)
    read = sentence_transformers_reader.read(checkpoint.folder) is not None
    if activation and not read:
        return {"CrossEncoder": f"activation of scores: {activation}"}
    how = predictor.text_embedding
    return {
        "SentenceTransformer": f"pooling {' and '.join(how.pooling)}" if read else "its default, the mean of all tokens"
    }


def _by_design(checkpoint: Checkpoint, predictor: Predictor, name: str) -> Facts:
    """Return where bertie gives something else than the other libraries, on purpose."""
    roles = few(dict.fromkeys(predictor.tokenizer.special.names().values()))
    config = predictor.model.encoder.config
    facts = {"special tokens": f"{roles} written in a text are text in bertie, and special tokens in transformers"}
    types = predictor.tokenizer.templates
    if predictor.tokenizer.adds_around:
        facts["around a text"] = "bertie puts special tokens around a text; AutoTokenizer does not"
    if not limited(predictor):
        facts["length"] = (
            f"no file limits texts to what the model reads: bertie truncates them to {predictor.max_length:,} tokens"
        )
    if name in ("AlbertTokenizer", "XLNetTokenizer", *GENERIC) and types == types.without_types():
        facts["token types"] = (
            "both texts of a pair have type 0, as in transformers 5; transformers 4 may give 1 to the second"
        )
    if halves := {str(x.dtype).removeprefix("torch.") for x in checkpoint.weights.values()} - {"float32"}:
        facts["precision"] = f"bertie computes in float32; transformers 5 in {few(halves)}, unless dtype says otherwise"
    if config.pooled_token == "last" and checkpoint.family.reads_last_place:
        facts["padding"] = "heads read the last token: in transformers, pad on the left"
    if config.language_embeddings:
        facts["language"] = "transformers adds the embedding of a language only if `langs` is given"
    if predictor.model.generator is not None:
        facts["generator"] = "bertie fills masks with the generator; transformers ignores its weights"
    pipeline, activation = score_function(checkpoint, predictor)
    ours = str(getattr(predictor.task, "activation", ""))
    if pipeline == "sigmoid" and ours == "identity":
        facts["score"] = f"bertie gives the output itself; the pipeline its sigmoid, a CrossEncoder its {activation}"
    return facts
