"""Exchange checkpoints with TensorFlow, and compare every bit. Not run by pytest.

    python tests/long/tensorflow_files.py [--environment FOLDER]

FOLDER gets a virtual environment with tensorflow-cpu from the package registry (about 2 GB), unless it is there. TensorFlow
writes checkpoints of TensorFlow 1 (Saver, with partitioned variables, optimizer slots and one data file per device) and of
TensorFlow 2 (objects with an optimizer, in one data file and in several with slices), and bertie reads them. bertie writes
tensors of all dtypes and a BERT, and TensorFlow reads them. Fails if a name, a shape, a dtype or a bit differs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bertie.checkpoints.folder import read_checkpoint
from bertie.checkpoints.folder import write_model as write_huggingface
from bertie.checkpoints.tensorflow import names
from bertie.checkpoints.tensorflow.folder import PREFIX, write_model
from bertie.checkpoints.tensorflow.tensor_bundle import open_bundle, write_bundle
from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder
from bertie.model.model import Model
from bertie.objectives import MaskedLM, NextSentence
from bertie.objectives.heads import build_heads
from bertie.text.tokenizer import SPECIAL_TOKENS, Tokenizer

DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.int16, torch.int8),
    *(torch.uint8, torch.bool),
)
# bfloat16 travels as uint16: NumPy has no such dtype.
COMMON = """
import sys
import numpy as np
import tensorflow as tf
folder = sys.argv[1]
def plain(value):
    value = np.asarray(value)
    return value.view(np.uint16) if value.dtype.name == "bfloat16" else value
def save(name, values):
    np.savez(f"{folder}/{name}.npz", **{key.replace("/", "|"): plain(value) for key, value in values.items()})
rng = np.random.default_rng(0)
"""
WRITE = (
    COMMON
    + """
v1 = tf.compat.v1
names = "float32 float64 float16 bfloat16 int32 int64 int16 int8 uint8 bool".split()
def some(dtype, *shape):
    return tf.cast(rng.standard_normal(shape) * 9, dtype)
def first(name, sharded):
    with tf.Graph().as_default(), v1.Session(config=v1.ConfigProto(device_count={"CPU": 3})) as session:
        for number, dtype in enumerate(names):
            with tf.device(f"/cpu:{number % 3}"):
                v1.get_variable(f"bert/{dtype}", initializer=some(dtype, 5, number))
        rows = v1.get_variable("bert/rows", (100, 7), partitioner=v1.fixed_size_partitioner(3))
        columns = v1.get_variable("bert/columns", (7, 90), partitioner=v1.fixed_size_partitioner(4, axis=1))
        scalar = v1.get_variable("bert/scalar", ())
        step = v1.train.get_or_create_global_step()
        loss = tf.reduce_sum(tf.matmul(tf.matmul(tf.convert_to_tensor(rows), tf.convert_to_tensor(columns)) ** 2,
                             tf.ones((90, 1)))) * scalar
        train = v1.train.AdamOptimizer(1e-3).minimize(loss, global_step=step)
        session.run(v1.global_variables_initializer())
        session.run(train)
        saver = v1.train.Saver(sharded=sharded)
        saver.save(session, f"{folder}/{name}.ckpt", write_meta_graph=False)
    reader = tf.train.load_checkpoint(f"{folder}/{name}.ckpt")
    save(name, {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map()})
first("first", False)
first("first-sharded", True)
class Layer(tf.Module):
    def __init__(self, number):
        self.kernel = tf.Variable(some("float32", 300, 40), name=f"layer_{number}/kernel")
        self.step = tf.Variable(number, dtype=tf.int64)
        self.all = [tf.Variable(some(dtype, 3, 4), name=dtype) for dtype in names]
layers = [Layer(number) for number in range(3)]
optimizer = tf.keras.optimizers.Adam(1e-3)
kernels = [layer.kernel for layer in layers]
with tf.GradientTape() as tape:
    loss = tf.add_n([tf.reduce_sum(kernel**2) for kernel in kernels])
optimizer.apply_gradients(zip(tape.gradient(loss, kernels), kernels))
checkpoint = tf.train.Checkpoint(layers=layers, optimizer=optimizer)
policy = tf.train.experimental.MaxShardSizePolicy(max_shard_size=20_000)
for name, options in (("second", None), ("second-sharded", tf.train.CheckpointOptions(experimental_sharding_callback=policy))):
    checkpoint.write(f"{folder}/{name}.ckpt", options=options)
    reader = tf.train.load_checkpoint(f"{folder}/{name}.ckpt")
    keys = [key for key, dtype in reader.get_variable_to_dtype_map().items() if dtype != tf.string]
    save(name, {key: reader.get_tensor(key) for key in keys})
"""
)
READ = (
    COMMON
    + """
for name in ("ours", "bert"):
    prefix = tf.train.latest_checkpoint(f"{folder}/{name}")
    reader = tf.train.load_checkpoint(prefix)
    save(name, {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map()})
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    values = {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map()}
    variables = {key: tf.compat.v1.get_variable(key, value.shape) for key, value in values.items()}
    tf.compat.v1.train.Saver(variables).restore(session, prefix)
    assert all(np.array_equal(session.run(variables[key]), value) for key, value in values.items())
"""
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


def run(python: Path, program: str, folder: Path) -> None:
    subprocess.run([python, "-c", program, str(folder)], check=True, env={"TF_CPP_MIN_LOG_LEVEL": "2"})


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--environment", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        environment = asked.environment or Path(temporary, "environment")
        python = environment / "bin" / "python"
        if not python.exists():
            venv.create(environment, with_pip=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", "tensorflow-cpu"], check=True)
        folder = Path(temporary)
        run(python, WRITE, folder)
        read_theirs(folder)
        written = write_ours(folder)
        run(python, READ, folder)
        for name, tensors in written.items():
            compare(f"{name}, read by TensorFlow", load(folder / f"{name}.npz"), tensors)


if __name__ == "__main__":
    sys.exit(main())
