"""Write model folders, in a format that transformers' `AutoModel….from_pretrained` loads directly."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from bertie.base import console, storage
from bertie.base.errors import MachineError, first_line
from bertie.checkpoints import sentence_transformers_format, sentence_transformers_reader
from bertie.checkpoints.families import family_of
from bertie.checkpoints.families.family import Family, to_huggingface
from bertie.checkpoints.families.settings import OBJECTIVES
from bertie.checkpoints.find import MANIFEST, MODEL_FILES, TASK_FILE, TASK_FILES
from bertie.checkpoints.huggingface import (
    default_names,
    shapes_of,
    to_config_json,
    transformers_heads,
)
from bertie.checkpoints.model_card import About, write_card
from bertie.checkpoints.read import Checkpoint
from bertie.checkpoints.tensorflow import folder as google
from bertie.model.encoders.electra import generator_sizes
from bertie.model.head_facts import HeadFacts
from bertie.model.model import Model
from bertie.tokenizers.tokenizer import Tokenizer

NOT_KEPT = frozenset({"transformers_weights", "auto_map", "generator", "id2label", "label2id", "architectures"})
"""Keys of a source's config.json that are written anew, or would be wrong in another folder."""


def write_model(
    folder: Path,
    model: Model,
    tokenizer: Tokenizer,
    task: dict[str, Any] | None = None,
    about: About = About(),
    source: Checkpoint | None = None,
    max_length: int | None = None,
    copied: dict[str, Tensor] | None = None,
) -> None:
    """Write config.json, model.safetensors, the tokenizer's files and the model card.

    The checkpoint is complete only after `write_manifest`.

    Args:
        folder: Existing folder.
        model: Model to write.
        tokenizer: Its tokenizer.
        task: Contents of task.json, with "labels" and "max_length" if the task has them. None for a pre-trained model.
        about: What the model card says.
        source: The checkpoint that the model was read from. All keys of its config.json are kept, and what no token uses.
            If it holds weights, they are written instead of the model's, which may be without memory: with their dtypes,
            and with those that no head of bertie reads.
        max_length: Tokens in the longest sequence. None: what the task says, or else as many as there are positions.
        copied: Weights by name, on the CPU, to write instead of the model's, which training may have changed since.
    """
    labels = tuple((task or {}).get("labels", ())) or (source.labels if source else ())
    family = family_of(model.encoder.config)
    if source and source.family.settings.fits(model.encoder.config):
        family = source.family
    state = (
        dict(source.weights if source else {})
        or copied
        or {name: tensor.cpu() for name, tensor in model.state_dict().items()}
    )
    pad_id = tokenizer.pad_id if tokenizer.special.pad is not None or family.needs_padding else None
    weights = to_huggingface(
        family, state | family.derived(model.encoder.config), shapes_of(model, family), pad_id or 0
    )
    if source and source.skipped is not None and pad_id is not None and len(source.skipped) == pad_id + 1:
        weights |= family.with_skipped(weights, source.skipped)
    weights = family.write(model.encoder.config, weights)
    save_tensors(weights, folder / "model.safetensors")
    positions = model.encoder.config.max_position_embeddings
    tokenizer.save(folder, max_length or positions)
    if model.encoder.config.type_vocab_size < 2:
        # So that AutoTokenizer returns no segment ids, which the classes of models without segments do not take.
        path = folder / "tokenizer_config.json"
        storage.write_json(path, storage.read_json(path) | {"model_input_names": ["input_ids", "attention_mask"]})
    if task:
        storage.write_json(folder / TASK_FILE, task)
    how = source and sentence_transformers_reader.read(source.folder, model.encoder.config.hidden_size)
    if (how := how or sentence_transformers_format.embedding_of(model)) is not None:
        length = max_length or (task or {}).get("max_length", positions)
        sentence_transformers_format.write(folder, model.encoder.config, how, length)
    write_card(folder, model, labels, about)
    values = _config_json(model, family, labels, pad_id, _dtype(weights), source)
    storage.write_json(folder / "config.json", values)  # last, because `find_model_folder` recognizes a model by it


def _config_json(
    model: Model, family: Family, labels: tuple[str, ...], pad_id: int | None, dtype: str, source: Checkpoint | None
) -> dict[str, Any]:
    """Return the contents of config.json, with what the source's says beside it."""
    heads = transformers_heads(model, family) or {}
    labels = labels or default_names(model, heads)
    values = to_config_json(model.encoder.config, heads.values(), labels, pad_id, family)
    values["dtype"] = dtype
    if source and family is source.family:
        values = _with_settings(values, source, family)
        if not model.heads and family.without_head in (source.settings.get("architectures") or ()):
            values["architectures"] = [family.without_head]
    if own := [table for head in model.heads.values() if (table := getattr(head, "own", None))]:
        values[OBJECTIVES] = own
    if model.generator is not None:
        values["generator"] = generator_sizes(model.generator.config)
    if source:
        values |= _score_settings(source, model, heads)
    if (source is None or source.task) and any(head.problem_type == "regression" for head in heads.values()):
        # Else a CrossEncoder would give the sigmoid of the number.
        names = sentence_transformers_format.SCORE_ACTIVATIONS
        values = {"sentence_transformers": {"activation_fn": names["Identity"]}} | values
    return values


def _dtype(weights: dict[str, Tensor]) -> str:
    """Return the dtype that transformers computes in: the dtype of all weights, or float32."""
    dtypes = {tensor.dtype for tensor in weights.values() if tensor.is_floating_point()}
    return str(dtypes.pop()).removeprefix("torch.") if len(dtypes) == 1 else "float32"


def _with_settings(values: dict[str, Any], source: Checkpoint, family: Family) -> dict[str, Any]:
    """Return a new config.json with all that the source's says beside it."""
    kept = {name: value for name, value in source.settings.items() if name not in NOT_KEPT}
    if "auto_map" in source.settings:
        console.warn(f"{source.folder}/config.json: auto_map is left out, because the code that it names is not copied")
    if "id2label" in values:
        kept = {name: value for name, value in kept.items() if name not in ("num_labels", "_num_labels")}
    dtype = kept.get("dtype") or kept.pop("torch_dtype", None) or values["dtype"]
    values.pop("problem_type", None)  # the source's words count, and what it leaves out
    training = {name: kept[name] for name in family.settings.training_only if name in kept}
    return kept | values | training | {"dtype": dtype}


def _score_settings(source: Checkpoint, model: Model, heads: dict[str, HeadFacts]) -> dict[str, Any]:
    """Return the keys of config.json from which all versions of sentence-transformers read the activation of scores."""
    for kind in (kind for kind, facts in heads.items() if facts.shape == "text"):
        outputs = len(cast(Any, model.heads[kind]).out.weight)
        if (name := sentence_transformers_reader.score_activation(source.folder, outputs)) is not None:
            activation = sentence_transformers_format.SCORE_ACTIVATIONS[name]
            keys = {"sbert_ce_default_activation_function": activation}
            return {"sentence_transformers": {"activation_fn": activation}} | keys
    return {}


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write tensors on the CPU, by name, to a safetensors file, atomically and without a copy of them in memory.

    Raises:
        MachineError: The file cannot be written.
    """
    with storage.atomic_file(path) as temporary:
        try:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary, {"format": "pt"})
            temporary.chmod(0o666 & ~storage.umask())  # the library lets only the owner read it
        except SafetensorError as error:
            raise MachineError(f"cannot write {path}: {first_line(error)}") from error


def write_manifest(folder: Path, others: Iterable[str] = ()) -> None:
    """Write the manifest: sizes and checksums of the model's files and of training_state/. It completes a checkpoint.

    Args:
        folder: The folder.
        others: Files in it that bertie does not read: `verify` reads their checksums if it is asked to.
    """
    patterns = (f"{sentence_transformers_format.IN_MODULES}/*", "training_state/*")
    modules, state = (sorted(folder.glob(pattern)) for pattern in patterns)
    named = (folder / name for name in (*MODEL_FILES, *TASK_FILES))
    files = [path for path in dict.fromkeys([*named, *modules]) if path.is_file()]
    files += google.files_in(folder) + state
    unread = [folder / name for name in others]
    for path in (*files, *unread):
        storage.fsync(path)
    values = {"format": 1, "files": storage.checksums(folder, files)}
    storage.write_json(folder / MANIFEST, values | ({"others": storage.checksums(folder, unread)} if unread else {}))
