"""The side of TensorFlow in tensorflow_files.py, which runs this file in an environment without bertie.

    python tensorflow_side.py write|read|samples|garden FOLDER

Arrays travel in .npz files: bfloat16 as uint16, because NumPy has no such dtype, and "|" for "/" in names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf  # pyright: ignore

v1 = tf.compat.v1
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "int16", "int8", "uint8", "bool")


def save(path: Path, arrays: dict[str, Any]) -> None:
    plain = {name.replace("/", "|"): np.asarray(array) for name, array in arrays.items()}
    np.savez(path, **{name: a.view(np.uint16) if a.dtype.name == "bfloat16" else a for name, a in plain.items()})


def save_all(folder: Path, name: str, prefix: str) -> None:
    """Save what TensorFlow reads from a checkpoint, without strings."""
    reader = tf.train.load_checkpoint(prefix)
    kinds = reader.get_variable_to_dtype_map()
    save(folder / f"{name}.npz", {each: reader.get_tensor(each) for each, kind in kinds.items() if kind != tf.string})


def write(folder: Path) -> None:
    """Write checkpoints of TensorFlow 1 and 2, with all that the format has."""
    rng = np.random.default_rng(0)

    def some(dtype: str, *shape: int) -> Any:
        return tf.cast(rng.standard_normal(shape) * 9, dtype)

    for name, sharded in (("first", False), ("first-sharded", True)):
        write_first(folder, name, sharded, some)
        save_all(folder, name, f"{folder}/{name}.ckpt")
    write_second(folder, some)


def write_first(folder: Path, name: str, sharded: bool, some: Callable[..., Any]) -> None:
    with tf.Graph().as_default(), v1.Session(config=v1.ConfigProto(device_count={"CPU": 3})) as session:
        for number, dtype in enumerate(DTYPES):
            with tf.device(f"/cpu:{number % 3}"):
                v1.get_variable(f"bert/{dtype}", initializer=some(dtype, 5, number))
        rows = v1.get_variable("bert/rows", (100, 7), partitioner=v1.fixed_size_partitioner(3))
        columns = v1.get_variable("bert/columns", (7, 90), partitioner=v1.fixed_size_partitioner(4, axis=1))
        scalar = v1.get_variable("bert/scalar", ())
        step = v1.train.get_or_create_global_step()
        product = tf.matmul(tf.convert_to_tensor(rows), tf.convert_to_tensor(columns))
        train = v1.train.AdamOptimizer(1e-3).minimize(tf.reduce_sum(product**2) * scalar, global_step=step)
        session.run(v1.global_variables_initializer())
        session.run(train)
        v1.train.Saver(sharded=sharded).save(session, f"{folder}/{name}.ckpt", write_meta_graph=False)


def write_second(folder: Path, some: Callable[..., Any]) -> None:
    layers = [tf.Module() for _ in range(3)]
    for number, layer in enumerate(layers):
        layer.kernel = tf.Variable(some("float32", 300, 40), name=f"layer_{number}/kernel")
        layer.step = tf.Variable(number, dtype=tf.int64)
        layer.all = [tf.Variable(some(dtype, 3, 4), name=dtype) for dtype in DTYPES]
    optimizer = tf.keras.optimizers.Adam(1e-3)
    kernels = [layer.kernel for layer in layers]
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(kernel**2) for kernel in kernels])
    optimizer.apply_gradients(zip(tape.gradient(loss, kernels), kernels, strict=True))
    checkpoint = tf.train.Checkpoint(layers=layers, optimizer=optimizer)
    for name, options in (("second", None), ("second-sharded", sharding(20_000))):
        checkpoint.write(f"{folder}/{name}.ckpt", options=options)
        save_all(folder, name, f"{folder}/{name}.ckpt")


def sharding(size: int) -> Any:
    """Options that cut a checkpoint into data files of at most `size` bytes."""
    policy = tf.train.experimental.MaxShardSizePolicy(max_shard_size=size)
    return tf.train.CheckpointOptions(experimental_sharding_callback=policy)


def read(folder: Path) -> None:
    """Read the checkpoints of bertie, the BERT also by TensorFlow 1's way to restore variables."""
    for name in ("ours", "bert"):
        save_all(folder, name, tf.train.latest_checkpoint(f"{folder}/{name}"))
    prefix = tf.train.latest_checkpoint(f"{folder}/bert")
    reader = tf.train.load_checkpoint(prefix)
    values = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    with tf.Graph().as_default(), v1.Session() as session:
        variables = {name: v1.get_variable(name, value.shape) for name, value in values.items()}
        v1.train.Saver(variables).restore(session, prefix)
        assert all(np.array_equal(session.run(variables[name]), value) for name, value in values.items())


def samples(folder: Path) -> None:
    """Write small checkpoints, in which every tensor counts from 0."""

    def some(dtype: str, *shape: int) -> Any:
        return tf.cast(tf.reshape(tf.range(np.prod(shape)), shape), dtype)

    def part(shape: Any, partition_info: Any) -> Any:
        return tf.slice(some("float32", 6, 4), partition_info.var_offset, shape)

    with tf.Graph().as_default(), v1.Session(config=v1.ConfigProto(device_count={"CPU": 2})) as session:
        for number, dtype in enumerate(DTYPES):
            with tf.device(f"/cpu:{number % 2}"):
                v1.get_variable(f"bert/{dtype}", initializer=some(dtype, 2, 3))
        for name, axis in (("rows", 0), ("columns", 1)):
            v1.get_variable(
                name,
                (6, 4),
                initializer=lambda shape, dtype=None, partition_info=None: part(shape, partition_info),  # noqa: ARG005
                partitioner=v1.fixed_size_partitioner(2, axis=axis),
            )
        session.run(v1.global_variables_initializer())
        v1.train.Saver(sharded=True).save(session, f"{folder}/first.ckpt", write_meta_graph=False)
    module = tf.Module()
    module.all = {dtype: tf.Variable(some(dtype, 2, 3), name=dtype) for dtype in DTYPES}
    tf.train.Checkpoint(module=module).write(f"{folder}/second.ckpt")
    module = tf.Module()
    module.large = tf.Variable(some("float32", 6, 4), name="large")
    tf.train.Checkpoint(module=module).write(f"{folder}/second-sharded.ckpt", options=sharding(60))


def garden(folder: Path) -> None:
    """Write checkpoints of Google's BERT for TensorFlow 2, and what it computes."""
    import tf_keras  # pyright: ignore
    from official.nlp.modeling import layers, models, networks  # pyright: ignore

    def gelu(x: Any) -> Any:
        return tf_keras.activations.gelu(x, approximate=True)

    tf.random.set_seed(0)
    sizes = {"vocab_size": 40, "hidden_size": 32, "num_layers": 3, "num_attention_heads": 4, "type_vocab_size": 2}
    for name, inner in (("BertEncoder", "intermediate_size"), ("BertEncoderV2", "inner_dim")):
        encoder = getattr(networks, name)(**sizes, max_sequence_length=16, **{inner: 64})
        head = layers.ClassificationHead(inner_dim=32, num_classes=2, name="next_sentence")
        model = models.BertPretrainerV2(encoder_network=encoder, classification_heads=[head], mlm_activation=gelu)
        ids = tf.constant([[2, 7, 9, 4, 11, 3, 21, 30, 33, 3]])
        given = {"input_word_ids": ids, "input_mask": tf.ones_like(ids)}
        given |= {"input_type_ids": tf.constant([[0] * 6 + [1] * 4]), "masked_lm_positions": tf.constant([[1, 4, 7]])}
        model(given)
        for variable in model.variables:
            start = 1.0 if variable.name.endswith("gamma:0") else 0.0
            variable.assign(tf.random.normal(variable.shape, stddev=0.3) + start)
        outputs = model(given)
        save(folder / f"{name}.npz", {key: outputs[key] for key in ("mlm_logits", "next_sentence", "sequence_output")})
        optimizer = tf_keras.optimizers.Adam(0.0)
        optimizer.build(model.trainable_variables)
        checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, global_step=optimizer.iterations)
        checkpoint.save(f"{folder}/{name}-run.ckpt")
        tf.train.Checkpoint(model=model, **model.checkpoint_items).write(f"{folder}/{name}-items.ckpt")
        tf.train.Checkpoint(encoder=encoder).write(f"{folder}/{name}-encoder.ckpt")


if __name__ == "__main__":
    {"write": write, "read": read, "samples": samples, "garden": garden}[sys.argv[1]](Path(sys.argv[2]))
