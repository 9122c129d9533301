"""Names of variables in Google's checkpoints of BERT, ALBERT and ELECTRA, and the names of Hugging Face's weights.

TensorFlow 1 saves variables under their names, such as `bert/encoder/layer_0/output/dense/kernel`. TensorFlow 2 saves them
under a path through the attributes of objects, and the object graph in the checkpoint says their names. Google's TensorFlow 2
code (the repository tensorflow/models) calls the same weights otherwise. `first_name` translates its names and paths into
the names in TensorFlow 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from bertie.base.errors import UsageError

NUMBER = "{n}"
POOLER = "bert/pooler/dense"
HEAD_POOLER = "head/pooler_dense"
"""The pooler of a head in TensorFlow 2. The encoder has another one, which such a head does not use."""
_EMBEDDINGS = {"": "weight"}
_DENSE = {"kernel": "weight", "bias": "bias"}  # kernels are transposed
_NORM = {"gamma": "weight", "beta": "bias"}
_OUTPUT = {"output_weights": "weight", "output_bias": "bias"}
_BIAS = {"output_bias": "bias"}


class GoogleModule(NamedTuple):
    """A module of Google's code and its counterpart in Hugging Face's. `{n}` stands for a number."""

    google: str
    huggingface: str
    leaves: dict[str, str]
    """Names of its variables, and of the weights. A variable without a name of its own is ""."""

    def renamed(self, new: str) -> GoogleModule:
        """Return the row for a model that calls itself otherwise than "bert"."""
        return self._replace(google=re.sub("^bert/", f"{new}/", self.google), huggingface=new + self.huggingface[4:])


def _layer(google: str, huggingface: str, leaves: dict[str, str]) -> GoogleModule:
    return GoogleModule(f"bert/encoder/layer_{NUMBER}/{google}", f"bert.encoder.layer.{NUMBER}.{huggingface}", leaves)


def _group(google: str, huggingface: str, leaves: dict[str, str]) -> GoogleModule:
    theirs = f"albert.encoder.albert_layer_groups.{NUMBER}.albert_layers.0.{huggingface}"
    return GoogleModule(f"bert/encoder/transformer/group_{NUMBER}/inner_group_0/{google}", theirs, leaves)


_EMBEDDING_ROWS = (
    *(
        GoogleModule(f"bert/embeddings/{name}_embeddings", f"bert.embeddings.{name}_embeddings", _EMBEDDINGS)
        for name in ("word", "position", "token_type")
    ),
    GoogleModule("bert/embeddings/LayerNorm", "bert.embeddings.LayerNorm", _NORM),
)
_LAYER_ROWS = (
    *(_layer(f"attention/self/{name}", f"attention.self.{name}", _DENSE) for name in ("query", "key", "value")),
    _layer("attention/output/dense", "attention.output.dense", _DENSE),
    _layer("attention/output/LayerNorm", "attention.output.LayerNorm", _NORM),
    _layer("intermediate/dense", "intermediate.dense", _DENSE),
    _layer("output/dense", "output.dense", _DENSE),
    _layer("output/LayerNorm", "output.LayerNorm", _NORM),
)
ROWS = {
    "bert": (
        *_EMBEDDING_ROWS,
        *_LAYER_ROWS,
        GoogleModule(POOLER, "bert.pooler.dense", _DENSE),
        GoogleModule("cls/predictions/transform/dense", "cls.predictions.transform.dense", _DENSE),
        GoogleModule("cls/predictions/transform/LayerNorm", "cls.predictions.transform.LayerNorm", _NORM),
        GoogleModule("cls/predictions", "cls.predictions", _BIAS),
        GoogleModule("cls/seq_relationship", "cls.seq_relationship", _OUTPUT),
        GoogleModule("cls/squad", "qa_outputs", _OUTPUT),
        GoogleModule("", "classifier", _OUTPUT),
    ),
    "albert": (
        *(row.renamed("albert")._replace(google=row.google) for row in _EMBEDDING_ROWS),
        GoogleModule("bert/encoder/embedding_hidden_mapping_in", "albert.encoder.embedding_hidden_mapping_in", _DENSE),
        *(_group(f"attention_1/self/{name}", f"attention.{name}", _DENSE) for name in ("query", "key", "value")),
        _group("attention_1/output/dense", "attention.dense", _DENSE),
        _group("LayerNorm", "attention.LayerNorm", _NORM),
        _group("ffn_1/intermediate/dense", "ffn", _DENSE),
        _group("ffn_1/intermediate/output/dense", "ffn_output", _DENSE),
        _group("LayerNorm_1", "full_layer_layer_norm", _NORM),
        GoogleModule(POOLER, "albert.pooler", _DENSE),
        GoogleModule("cls/predictions/transform/dense", "predictions.dense", _DENSE),
        GoogleModule("cls/predictions/transform/LayerNorm", "predictions.LayerNorm", _NORM),
        GoogleModule("cls/predictions", "predictions", _BIAS),
        GoogleModule("cls/seq_relationship", "sop_classifier.classifier", _OUTPUT),
        GoogleModule("", "classifier", _OUTPUT),
    ),
    "electra": (
        *(row.renamed("electra") for row in (*_EMBEDDING_ROWS, *_LAYER_ROWS)),
        GoogleModule("electra/embeddings_project", "electra.embeddings_project", _DENSE),
        GoogleModule("discriminator_predictions/dense", "discriminator_predictions.dense", _DENSE),
        GoogleModule("discriminator_predictions/dense_1", "discriminator_predictions.dense_prediction", _DENSE),
    ),
}
"""The tables, by `model_type`."""
_ONLY_SECOND = (
    GoogleModule("next_sentence/logits", "cls.seq_relationship", _DENSE),
    GoogleModule("sentence_prediction/logits", "classifier", _DENSE),
    GoogleModule(HEAD_POOLER, "bert.pooler.dense", _DENSE),
)
_ENDING = r"(/\.ATTRIBUTES/.*)?$"
_SKIPPED = re.compile(
    rf"(^|/)(adam_[mv]|lamb_[mv]|Adam(_\d+)?|LAMB(_\d+)?|Momentum|beta[12]_power){_ENDING}|(^|/)optimizer/|/\.OPTIMIZER_SLOT/"
    rf"|^(global_step|good_steps|bad_steps|loss_scale|current_loss_scale|save_counter|step|temperature){_ENDING}"
)
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""Name of the string with the object graph of TensorFlow 2."""
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
"""Ending of the names of TensorFlow 2."""
# Parts of a layer: attributes of Google's class, and names of its variables.
_PARTS = {
    **{f"_attention_layer/_{name}_dense": f"attention/self/{name}" for name in ("query", "key", "value")},
    **{f"self_attention/{name}": f"attention/self/{name}" for name in ("query", "key", "value")},
    **dict.fromkeys(("_attention_layer/_output_dense", "_attention_output_dense"), "attention/output/dense"),
    **dict.fromkeys(("self_attention/attention_output", "self_attention_output"), "attention/output/dense"),
    **dict.fromkeys(("_attention_layer_norm", "self_attention_layer_norm"), "attention/output/LayerNorm"),
    **dict.fromkeys(("_intermediate_dense", "intermediate"), "intermediate/dense"),
    **dict.fromkeys(("_output_dense", "output"), "output/dense"),
    **dict.fromkeys(("_output_layer_norm", "output_layer_norm"), "output/LayerNorm"),
}
_SECOND = (
    *((f"{name}/embeddings", "bert/embeddings/word_embeddings") for name in ("word_embeddings", "_embedding_layer")),
    ("layer_with_weights-0/embeddings|masked_lm/embedding_table", "bert/embeddings/word_embeddings"),
    (
        "(?:position_embedding|_position_embedding_layer|layer_with_weights-1)/(?:_position_)?embeddings",
        "bert/embeddings/position_embeddings",
    ),
    (
        "(?:type_embeddings|_type_embedding_layer|layer_with_weights-2)/embeddings",
        "bert/embeddings/token_type_embeddings",
    ),
    (
        "(?:embeddings/layer_norm|_embedding_norm_layer|layer_with_weights-3)/(gamma|beta)",
        r"bert/embeddings/LayerNorm/\1",
    ),
    ("(?:pooler_transform|_pooler_layer)/(kernel|bias)", rf"{POOLER}/\1"),
    (r"(?:next_sentence|sentence_prediction)(?:/|\.\.)pooler_dense/(kernel|bias)", rf"{HEAD_POOLER}/\1"),
    ("(?:cls/predictions/transform|masked_lm)/dense/(kernel|bias)", r"cls/predictions/transform/dense/\1"),
    (
        "(?:cls/predictions/transform/LayerNorm|masked_lm/layer_norm)/(gamma|beta)",
        r"cls/predictions/transform/LayerNorm/\1",
    ),
    (r"cls/predictions/output_bias/bias|masked_lm/(?:bias|output_bias\.Sbias)", "cls/predictions/output_bias"),
    ("(?:next_sentence|predictions/transform)/logits/(kernel|bias)", r"next_sentence/logits/\1"),
    ("sentence_prediction/logits/(kernel|bias)", r"sentence_prediction/logits/\1"),
)
_SECOND_LAYER = re.compile(
    r"(?:.*/)?(?:(?:_transformer_layers/|transformer/layer_)(\d+)|layer_with_weights-(\d+))/(.+)/(kernel|bias|gamma|beta)"
)
_BEFORE_LAYERS = 4  # objects with weights before the first layer of an encoder


def is_skipped(name: str) -> bool:
    """Return whether an entry belongs to the optimizer, counts steps, or is the object graph."""
    return name == OBJECT_GRAPH or _SKIPPED.search(name) is not None


def model_type_of(names: Iterable[str]) -> str:
    """Return the family of a checkpoint, from the names of its variables."""
    joined = "\n".join(names)
    if re.search(r"^(electra|discriminator_predictions)/", joined, re.MULTILINE):
        return "electra"
    return (
        "albert" if re.search(r"^bert/encoder/(transformer/group_|embedding_hidden)", joined, re.MULTILINE) else "bert"
    )


def first_name(path: str, name: str, layers: int) -> str:
    """Return the name in TensorFlow 1 of a variable that TensorFlow 2 saved. A name that is not known stays as it is.

    Args:
        path: Its path through the attributes of objects, such as `encoder/layer_with_weights-0/embeddings`.
        name: Its name in the object graph, such as `word_embeddings/embeddings`; "" if there is none.
        layers: Number of layers of the encoder. The pooler comes after them.
    """
    for candidate in (name, path):
        for pattern, first in _SECOND:
            if match := re.fullmatch(f"(?:.*/)?(?:{pattern})", candidate):
                return match.expand(first)
        if match := re.fullmatch(rf"(?:.*/)?layer_with_weights-{layers + _BEFORE_LAYERS}/(kernel|bias)", candidate):
            return f"{POOLER}/{match[1]}"
        if (match := _SECOND_LAYER.fullmatch(candidate)) and match[3] in _PARTS:
            layer = int(match[1]) if match[1] else int(match[2]) - _BEFORE_LAYERS
            if 0 <= layer < layers:
                return f"bert/encoder/layer_{layer}/{_PARTS[match[3]]}/{match[4]}"
    return path


def to_huggingface(model_type: str, name: str) -> tuple[str, bool] | None:
    """Return Hugging Face's name of a variable, and whether its matrix is transposed. None if it is not known."""
    for row in (*ROWS[model_type], *_ONLY_SECOND):
        for leaf, theirs in row.leaves.items():
            pattern = re.escape(f"{row.google}/{leaf}".strip("/")).replace(re.escape(NUMBER), r"(\d{1,6})")
            if match := re.fullmatch(pattern, name):
                number = str(int(match[1])) if match.groups() else ""
                return f"{row.huggingface}.{theirs}".replace(NUMBER, number), leaf == "kernel"
    return None


def to_google(model_type: str, name: str) -> tuple[str, bool]:
    """Return the name in TensorFlow 1 of a weight of Hugging Face, and whether its matrix is transposed.

    Raises:
        UsageError: Google's code has no such variable.
    """
    for row in ROWS[model_type]:
        for leaf, theirs in row.leaves.items():
            pattern = re.escape(f"{row.huggingface}.{theirs}").replace(re.escape(NUMBER), r"(\d+)")
            if match := re.fullmatch(pattern, name):
                google = f"{row.google}/{leaf}".strip("/")
                return google.replace(NUMBER, match[1] if match.groups() else ""), leaf == "kernel"
    raise UsageError(f"Google's code has no variable for {name}: use --to hf")
