"""Mutations of TensorFlow checkpoints. Each must be refused in one line, or be read as the file says.

An escape is any other exception, a message of several lines, or, if only bytes were damaged and no checksum was made again,
tensors that differ from the original.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from bundles import Bundle, example, object_graph, table, varint

from bertie.checkpoints.tensorflow.folder import read_weights
from bertie.checkpoints.tensorflow.table import read_table
from bertie.checkpoints.tensorflow.tensor_bundle import open_bundle
from bertie.errors import UserError

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
EXTREMES = (0, 1, 127, 128, 255, 1 << 16, (1 << 31) - 1, 1 << 32, 1 << 60, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


@dataclass(frozen=True)
class Original:
    """An undamaged checkpoint, in a folder of its own."""

    prefix: Path
    read: Callable[[Path], dict[str, Any]]

    @property
    def files(self) -> list[Path]:
        return sorted(self.prefix.parent.glob(f"{self.prefix.name}.*"))


def read_bundle(prefix: Path) -> dict[str, Any]:
    bundle = open_bundle(prefix)
    return {
        name: bundle.strings(name) if entry.kind == "string" else bundle.read(name)
        for name, entry in bundle.entries.items()
    }


def read_google(prefix: Path) -> dict[str, Any]:
    return read_weights(prefix)


WRITTEN = Path(__file__).parent / "written"
"""Checkpoints that TensorFlow wrote (`python tests/long/tensorflow_files.py --samples`), in which tensors count from 0."""


def copied(prefix: Path, folder: Path) -> Original:
    """Return a copy of a checkpoint, in a folder of its own, as files that mutations may change."""
    folder.mkdir()
    for path in prefix.parent.glob(f"{prefix.name}.*"):
        (folder / path.name).write_bytes(path.read_bytes())
    return Original(folder / prefix.name, read_bundle)


def originals(folder: Path) -> list[Original]:
    """Write checkpoints with everything that the format has, and copy those that TensorFlow wrote."""
    found = [copied(path.with_suffix(""), folder / path.stem) for path in sorted(WRITTEN.glob("*.index"))]
    for name, snappy in (("plain", False), ("snappy", True)):
        (folder / name).mkdir()
        found.append(Original(example()[0].write(folder / name / "m.ckpt", snappy=snappy), read_bundle))
    (folder / "second").mkdir()
    found.append(Original(second(folder / "second"), read_google))
    return found


def second(folder: Path) -> Path:
    """A few weights of a BERT, as TensorFlow 2 saves them."""
    (folder / "bert_config.json").write_text('{"num_hidden_layers": 1}')
    layer = "model/layer_with_weights-4/_attention_layer/_query_dense/"
    known = {
        f"model/layer_with_weights-0/embeddings{VALUE}": ("word_embeddings/embeddings", torch.ones(4, 6)),
        f"{layer}kernel{VALUE}": ("transformer/layer_0/self_attention/query/kernel", torch.ones(6, 2, 3)),
        f"{layer}bias{VALUE}": ("transformer/layer_0/self_attention/query/bias", torch.ones(2, 3)),
        f"model/w{VALUE}": ("Adam/m/w", torch.ones(3)),
    }
    bundle = Bundle()
    for name, (_, tensor) in known.items():
        bundle.add(name, tensor)
    names = {entry: name for entry, (name, _) in known.items()}
    bundle.add_strings("_CHECKPOINTABLE_OBJECT_GRAPH", object_graph(names, (f"model/w{VALUE}",)), scalar=True)
    return bundle.write(folder / "bert_model.ckpt")


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Change some bytes."""
    data = bytearray(data)
    at = rng.randrange(len(data) + 1)
    count = min(rng.choice((1, 1, 2, 4, 8, 40)), len(data) - at)
    match rng.randrange(6):
        case 0:
            for _ in range(rng.choice((1, 1, 2, 5))):
                if data:
                    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 1:
            del data[at:]
        case 2:
            del data[at : at + count]
        case 3:
            data[at:at] = rng.randbytes(rng.choice((1, 3, 50)))
        case 4:
            data[at : at + count] = rng.choice((bytes(count), b"\xff" * count, rng.randbytes(count)))
        case _:
            data[at : at + rng.randrange(3)] = varint(rng.choice(EXTREMES))
    return bytes(data)


def mutated(rng: random.Random, original: Original) -> tuple[Path, bytes, bool]:
    """Return a file of the checkpoint with its new content, and whether its checksums were made again."""
    index = Path(f"{original.prefix}.index")
    kind = rng.randrange(4)
    if kind == 0:
        path = rng.choice(original.files)
        return path, damaged(rng, path.read_bytes()), False
    rows, snappy = read_table(index.read_bytes()), rng.random() < 0.2
    if kind == 1:
        count = rng.randrange(4)  # only some blocks
        return (
            index,
            table(rows, 6, snappy, lambda block: damaged(rng, block) if rng.randrange(4) <= count else block),
            True,
        )
    for _ in range(rng.choice((1, 1, 1, 3))):
        key = rng.choice(sorted(rows))
        value = rows.pop(key)
        if kind == 2:
            rows[key] = damaged(rng, value)
        else:
            rows[damaged(rng, key)] = value
    return index, table(rows, 6, snappy), True


def escape(original: Original, good: dict[str, Any], forged: bool) -> str:
    """Read a mutated checkpoint, and return what was wrong with the answer; "" if it was right."""
    try:
        found = original.read(original.prefix)
    except UserError as error:
        text = str(error)
        return "" if "\n" not in text and 20 < len(text) < 1500 else f"message: {text}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    size = sum(path.stat().st_size for path in original.files)
    if sum(tensor.nbytes for tensor in found.values() if isinstance(tensor, torch.Tensor)) > size:
        return "more bytes of tensors than of files"
    same = found.keys() == good.keys() and all(
        torch.equal(tensor, good[name]) if isinstance(tensor, torch.Tensor) else tensor == good[name]
        for name, tensor in found.items()
    )
    return "" if forged or same else "damage was not noticed"


def fuzz(found: list[Original], cases: range, seed: int = 0) -> list[str]:
    """Try mutations, and return the escapes. Each case depends only on the seed and its number."""
    good = [original.read(original.prefix) for original in found]
    escapes = []
    for case in cases:
        rng = random.Random(f"{seed}-{case}")
        number = rng.randrange(len(found))
        original = found[number]
        path, content, forged = mutated(rng, original)
        before = path.read_bytes()
        path.write_bytes(content)
        problem = escape(original, good[number], forged)
        path.write_bytes(before)
        if problem:
            escapes.append(f"case {case}, {original.prefix.parent.name}, {path.suffix}: {problem}")
    return escapes
