"""The layout of transformers.js 3: a model folder with ONNX files in three precisions, which run in browsers and in Node."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from bertie.base import console, storage
from bertie.base.contracts import Sequence
from bertie.base.errors import UsageError, UserError
from bertie.checkpoints.families import family_of
from bertie.checkpoints.sentence_transformers_format import SentenceEmbedding
from bertie.model.encoder import Encoder
from bertie.model.head_facts import HeadShape, facts_of
from bertie.model.heads.vector_modules import Dropout, Normalize
from bertie.model.model import Model
from bertie.model.transformer import TransformerEncoder
from bertie.predict.convert import export_checks
from bertie.predict.convert.comparison import TOLERANCE
from bertie.predict.convert.export_checks import Measurements, ModelResults
from bertie.predict.convert.export_engines import graph_differences
from bertie.predict.engines import onnx
from bertie.predict.engines.graph import Graph, exported_heads
from bertie.predict.engines.grids import GridEncoder
from bertie.predict.load import load

FILES = {"fp32": "onnx/model.onnx", "fp16": "onnx/model_fp16.onnx", "q8": "onnx/model_quantized.onnx"}
"""The file of each `dtype` of transformers.js."""
TOLERANCES = {"fp32": TOLERANCE, "fp16": 5e-2}
"""Largest difference of an output, relative to its largest value. q8 is judged by scores."""
ALL: frozenset[HeadShape] = frozenset({"text", "tokens", "start_end", "masked"})
CLASSES: dict[str, frozenset[HeadShape]] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "mpnet", "distilbert", "electra", "xlm"), ALL),
    "albert": ALL - {"tokens"},
    "modernbert": ALL - {"start_end"},
    "nomic_bert": frozenset(),
}
"""By `model_type`: the heads for which transformers.js 3.8 has a class. It has one for each encoder."""
MAX_BYTES = (1 << 31) - (1 << 20)
"""Largest weights in one ONNX file, a protocol buffer of less than 2 GiB."""


def write(
    before: ModelResults, folder: Path, members: list[Sequence], data: str | Path | None, max_loss: float
) -> Measurements:
    """Add the ONNX files to a folder with the other files of the model, and compare all their outputs with torch's.

    The outputs have the names that transformers.js reads.

    Args:
        before: What the source computes from the same inputs.
        folder: The folder, which has passed the comparison with the source.
        members: Real inputs.
        data: Labeled examples or texts, on which q8 is scored. None: its outputs are compared only.
        max_loss: Largest allowed loss of q8 in the metric of the task.

    Returns:
        {"difference", "cosine", "outputs", …} as `convert` returns them: the largest difference of an output in fp32, the
        smallest cosine of a hidden state in q8, and the difference of each output by precision.

    Raises:
        UsageError: transformers.js has no class for the model, its graph cannot be exported, or it is too large.
        UserError: An output in fp32 or fp16 differs too much, or q8 loses too much.
    """
    with console.silenced():  # as when the folder was compared with the source
        source, rounded = load(folder, engine="plain"), load(folder, engine="plain")
    graph = Graph(with_one_head(source.model, storage.read_json(folder / "config.json")["model_type"]))
    if (size := 4 * source.model.size) > MAX_BYTES:
        raise UsageError(f"the weights have {size / 1e9:.1f} GB in fp32, and one ONNX file holds 2.1 GB: use --to hf")
    exact, half, quantized = paths = [folder / name for name in FILES.values()]
    exact.parent.mkdir()
    onnx.write(graph, exact)
    onnx.halve(exact, half, graph.numbers)
    # Unsigned weights: sums of signed ones saturate on processors without VNNI, and any machine may run this.
    onnx.quantize(exact, quantized, graph.numbers, ("MatMul", "Gather"), signed=False)
    for path in paths:
        storage.fsync(path)
    outputs = {
        dtype: graph_differences(graph, onnx.OnnxSession(path).outputs, members)
        for dtype, path in zip(FILES, paths, strict=True)
    }
    for dtype, limit in TOLERANCES.items():
        if not (worst := max(outputs[dtype].values())) <= limit:
            remedy = "report this bug" if dtype == "fp32" else "its values do not fit into 16 bits; use --to onnx"
            raise UserError(f"{FILES[dtype]} differs from its source by {worst:.1e} of the largest value: {remedy}")
    rounded.model.encoder = cast(
        Encoder, GridEncoder(cast(TransformerEncoder, rounded.model.encoder), onnx.OnnxSession(quantized))
    )
    after = export_checks.measure(rounded, members, data)
    cosine = export_checks.differences(before, after)["cosine"]
    measured = {"difference": max(outputs["fp32"].values()), "outputs": outputs, "cosine": cosine}
    if data is not None:
        measured |= export_checks.compare_scores(before, after, source.task)
        export_checks.require_small_loss("q8", measured, max_loss, "or use --to onnx")
    say_how_to_pool(source.model, source.text_embedding)
    return measured


def with_one_head(model: Model, model_type: str) -> Model:
    """Return the encoder with the head that a class of transformers.js computes, if the model has heads.

    Raises:
        UsageError: There is no such class.
    """
    if model_type not in CLASSES:
        config = model.encoder.config
        name = model_type if family_of(config).in_transformers else config.kind
        raise UsageError(f"--to transformers.js takes the model types {', '.join(CLASSES)}, and this one is {name}")
    every = {kind: facts_of(model.heads[kind]) for kind in sorted(model.encoder_heads)}
    heads = {kind: facts for kind, facts in every.items() if facts.shape != "vectors"}
    usable = [kind for kind in exported_heads(model) if heads[kind].shape in CLASSES[model_type]]
    others = " and ".join(facts.name for kind, facts in heads.items() if kind not in usable)
    if (heads and not usable) or len(usable) > 1:
        several = " and ".join(heads[kind].name for kind in usable)
        raise UsageError(f"transformers.js has no class for a {model_type} with this head: {several or others}")
    if others:
        console.warn(f"transformers.js has no class with the head of {others}: only bertie and transformers load it")
    return Model(model.encoder, {kind: model.heads[kind] for kind in usable}, model.reading)


def say_how_to_pool(model: Model, how: SentenceEmbedding) -> None:
    """Tell people of a model without other heads what transformers.js does not read from the folder: how texts become vectors."""
    if any(facts_of(model.heads[kind]).shape != "vectors" for kind in model.encoder_heads):
        return
    pooling = " and ".join(how.pooling)
    lost = [] if pooling in ("mean", "cls") else [f"{pooling} pooling"]
    lost += [type(module).__name__ for module in how.modules if not isinstance(module, Normalize | Dropout)]
    lost += ["lowercasing"] * how.lowercase + ["its default prompt"] * bool(how.prompt(None, None))
    lost += ["truncated vectors"] * (how.dimensions is not None)
    if lost:
        console.warn(f"transformers.js returns vectors of tokens, without {', '.join(lost)}")
    else:
        normalize = "true" if any(isinstance(module, Normalize) for module in how.modules) else "false"
        console.info(f"for text vectors, give transformers.js {{pooling: '{pooling}', normalize: {normalize}}}")
