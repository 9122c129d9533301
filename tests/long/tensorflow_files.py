"""Exchange checkpoints with TensorFlow, and compare every bit. Not run by pytest.

    python tests/long/tensorflow_files.py [--environment FOLDER] [--samples FOLDER]

The environment gets tensorflow-cpu and Google's BERT for TensorFlow 2 (tf-models-official) from the package registry, about
2 GB, unless it is there. TensorFlow writes checkpoints of TensorFlow 1 (Saver, with partitioned variables, optimizer slots
and one data file per device) and of TensorFlow 2 (objects with an optimizer, in one data file and in several with slices),
and bertie reads them. bertie writes tensors of all dtypes and a BERT, and TensorFlow reads them. Fails if a name, a shape, a
dtype or a bit differs. Google's BERT writes its checkpoints, and transformers computes the same from what bertie makes of
them. --samples writes the small files that the unit tests read.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from environments import parser_of, python_with
from torch import Tensor

import bertie
from bertie.checkpoints.folder import write_model as write_huggingface
from bertie.checkpoints.read import read_checkpoint
from bertie.checkpoints.tensorflow import names
from bertie.checkpoints.tensorflow.folder import PREFIX, write_model
from bertie.checkpoints.tensorflow.tensor_bundle import open_bundle, write_bundle
from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder
from bertie.model.model import Model
from bertie.objectives import MaskedLM, NextSentence
from bertie.objectives.heads import build_heads
from bertie.tokenizers.tokenizer import SPECIAL_TOKENS, Tokenizer

DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.int16, torch.int8),
    *(torch.uint8, torch.bool),
)


def bits(tensor: Tensor) -> np.ndarray:
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).contiguous().numpy()


def compare(what: str, found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, (name, found[name].dtype, array.dtype)
        assert found[name].shape == array.shape, name
        assert found[name].tobytes() == array.tobytes(), name
    print(f"{what}: {len(expected)} tensors are equal", flush=True)


def load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as arrays:
        return {name.replace("|", "/"): arrays[name] for name in arrays}


def run(python: Path, verb: str, folder: Path) -> None:
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_USE_LEGACY_KERAS": "1"}
    subprocess.run([python, Path(__file__).with_name("tensorflow_side.py"), verb, folder], check=True, env=environment)


def read_theirs(folder: Path) -> None:
    for name in ("first", "first-sharded", "second", "second-sharded"):
        bundle = open_bundle(folder / f"{name}.ckpt")
        numeric = [each for each, entry in bundle.entries.items() if entry.kind != "string"]
        kinds = f"{bundle.shards} data files, {len(bundle.parts)} slices"
        compare(f"{name} ({kinds})", {each: bits(bundle.read(each)) for each in numeric}, load(folder / f"{name}.npz"))
        for each in (each for each, entry in bundle.entries.items() if entry.kind == "string"):
            assert bundle.strings(each), each
        kept = [each for each in bundle.entries if not names.is_skipped(each)]
        start = "bert/" if "first" in name else "layers/"
        assert all(each.startswith(start) and "Adam" not in each for each in kept), kept
        assert len(kept) < len(bundle.entries)


def write_ours(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    torch.manual_seed(0)
    tensors = {f"w/{dtype}".replace("torch.", ""): (torch.randn(70, 9) * 9).to(dtype) for dtype in DTYPES}
    tensors |= {"scalar": torch.tensor(1.5), "empty": torch.empty(0, 3), "umlaut/ä": torch.ones(2)}
    tensors |= {f"many/{number}": torch.full((3,), number) for number in range(500)}
    (folder / "ours").mkdir()
    write_bundle(folder / "ours" / PREFIX, tensors.items())
    (folder / "ours" / "checkpoint").write_text(f'model_checkpoint_path: "{PREFIX}"\n')
    (folder / "bert").mkdir()
    tokenizer = Tokenizer.build([*SPECIAL_TOKENS, *"abcdefghij"])
    config = TransformerConfig(
        vocab_size=tokenizer.size, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=128
    )
    encoder = build_encoder(config)
    model = Model(encoder, build_heads((MaskedLM(), NextSentence()), encoder))
    write_model(folder / "bert", model, tokenizer, ())
    tokenizer.save(folder / "bert")
    (folder / "hf").mkdir()
    write_huggingface(folder / "hf", model, tokenizer)
    ours, theirs = read_checkpoint(folder / "bert").weights, read_checkpoint(folder / "hf").weights
    compare(
        "BERT -> TensorFlow -> BERT", {n: bits(t) for n, t in ours.items()}, {n: bits(t) for n, t in theirs.items()}
    )
    bundle = open_bundle(folder / "bert" / PREFIX)
    bert = {name: bits(bundle.read(name)) for name in bundle.entries}
    return {"ours": {name: bits(tensor) for name, tensor in tensors.items()}, "bert": bert}


def read_garden(folder: Path) -> None:
    """Convert checkpoints of Google's BERT for TensorFlow 2, and compare what transformers computes from them."""
    from transformers import BertForPreTraining

    tokenizer = Tokenizer.build([*SPECIAL_TOKENS, *(f"w{number}" for number in range(35))])
    tokenizer.save(folder)
    config = {
        "vocab_size": 40,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    config |= {"max_position_embeddings": 16, "type_vocab_size": 2, "hidden_act": "gelu_new"}  # GELU by tanh
    (folder / "bert_config.json").write_text(json.dumps(config))
    ids = torch.tensor([[2, 7, 9, 4, 11, 3, 21, 30, 33, 3]])
    segments = torch.tensor([[0] * 6 + [1] * 4])
    for name in ("BertEncoder", "BertEncoderV2"):
        expected = load(folder / f"{name}.npz")
        for kind in ("items.ckpt", "run.ckpt-1", "encoder.ckpt"):
            out = folder / f"{name}-{kind}-hf"
            bertie.convert(folder / f"{name}-{kind}", out, "hf", threads=1)
            model = BertForPreTraining.from_pretrained(out).eval()
            with torch.inference_mode():
                found = model(ids, token_type_ids=segments, output_hidden_states=True)
            pairs = [(found.hidden_states[-1], expected["sequence_output"])]
            if kind != "encoder.ckpt":
                pairs.append((found.prediction_logits[:, [1, 4, 7]], expected["mlm_logits"]))
                pairs.append((found.seq_relationship_logits, expected["next_sentence"]))
            for ours, theirs in pairs:
                np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-4, atol=1e-4)
            print(f"{name}, {kind}: {len(pairs)} outputs are equal up to rounding", flush=True)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--environment", type=Path)
    parser.add_argument("--samples", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        environment = asked.environment or Path(temporary, "environment")
        python = python_with(environment, "tensorflow-cpu", "scipy", "gin-config")
        # Without the packages that its other models need.
        python_with(environment, "--no-deps", "tf-models-official", "tf_keras", "tensorflow-hub")
        if asked.samples:
            asked.samples.mkdir(parents=True)
            run(python, "samples", asked.samples)
            (asked.samples / "checkpoint").unlink()
            return
        folder = Path(temporary)
        run(python, "write", folder)
        read_theirs(folder)
        written = write_ours(folder)
        run(python, "read", folder)
        for name, tensors in written.items():
            compare(f"{name}, read by TensorFlow", load(folder / f"{name}.npz"), tensors)
        (folder / "garden").mkdir()
        run(python, "garden", folder / "garden")
        read_garden(folder / "garden")


if __name__ == "__main__":
    sys.exit(main())
