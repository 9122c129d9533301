"""Weights that bertie does not read, by the names of their files, and what to do with them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

MAX_NAMES = 10_000  # that are looked at, in a folder and in each level below it
NOT_READ = ": bertie does not read {} files: "
ORIGINAL = NOT_READ + "give the checkpoint that it was made from, in safetensors or PyTorch format"
TRANSFORMERS_4 = NOT_READ + (
    'save it with transformers 4 as safetensors: AutoModel.from_pretrained(FOLDER, {}).save_pretrained("OUT")'
)
PART = " is a part of the weights, and {}, which lists the parts, is missing: restore it"
VARIANT = " is a variant of the weights, which bertie does not choose itself: rename it to {}"
DEEPSPEED = " holds weights in the parts of DeepSpeed: merge them with the zero_to_fp32.py that it wrote beside them"
OF_TORCH = (
    " is a file of torch: if it holds weights under their names in transformers, rename it to pytorch_model.bin, beside "
    "config.json and the files of the tokenizer"
)
KINDS = {
    r"flax_model.*\.msgpack": TRANSFORMERS_4.format("{}", "from_flax=True"),
    r"tf_model.*\.h5": TRANSFORMERS_4.format("{}", "from_tf=True"),
    r"[^/]*\.(gguf|ggml|mlmodel|mlmodelc|mlpackage|tflite)": ORIGINAL,
    r"(onnx/)?[^/]*\.onnx|rust_model\.ot|openvino_model\.xml|openvino/[^/]*\.xml|saved_model\.pb": ORIGINAL,
    r"model-\d+-of-\d+\.safetensors": PART.format("model.safetensors.index.json"),
    r"pytorch_model-\d+-of-\d+\.bin": PART.format("pytorch_model.bin.index.json"),
    r"model\.[\w-]+\.safetensors": VARIANT.format("model.safetensors"),
    r"pytorch_model\.[\w-]+\.bin": VARIANT.format("pytorch_model.bin"),
    r"pytorch_model_fsdp.*|[^/]*\.distcp": " holds weights in the parts of FSDP: merge them with `accelerate merge-weights`",
    r"global_step\d+|(mp|zero_pp|bf16_zero_pp)_rank_.*\.pt": DEEPSPEED,
    r"(?!optimizer|scheduler|scaler|rng_state)[^/]*\.(pt|pth|ckpt)": OF_TORCH,
    r"[^/]*\.(zip|7z|rar|tgz|tar(\.\w+)?)": " is an archive: extract it, and give the folder with config.json",
}
"""Names of files and folders, as regular expressions, and what to say of them. {}: the ending of the name."""


def names_in(folder: Path) -> list[str]:
    """Return the names of the files and folders in a folder and two levels below, relative to it."""
    found = (path for pattern in ("*", "*/*", "*/*/*") for path in islice(folder.glob(pattern), MAX_NAMES))
    return [path.relative_to(folder).as_posix() for path in found]


def other_weights(place: Path, names: Iterable[str] | None = None) -> str:
    """Return what to do with weights that bertie does not read; empty: there are none.

    Args:
        place: Their folder, or its name on the hub.
        names: As `names_in` returns them, of a folder on the hub. None: those that are there.
    """
    names = sorted(names_in(place) if names is None else names)
    for pattern, words in KINDS.items():
        if found := next((name for name in names if re.fullmatch(pattern, name, re.IGNORECASE)), None):
            path = place / found
            return f"{path}{words.format(path.suffix.lower())}"
    return ""
