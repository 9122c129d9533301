"""Damage to model folders, for the fuzzer: changes of values in JSON files, of bytes, and of pickled weights.

Every case is a function of its seed.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**400, 0.5, -0.0, 1e308, "", "x", "gelu", "../x", "\ud800", "\0"),
    *([], [[]], [None], {}, {"a": 1}, {"0": "a"}, {"-1": "b"}, "9" * 5000, "BertModel", ["BertForMaskedLM"], ["X", 3]),
)
KEYS = (
    "model_type",
    "architectures",
    "id2label",
    "problem_type",
    "quantization_config",
    "transformers_weights",
    "dtype",
)


@contextmanager
def mutated(folder: Path, rng: random.Random) -> Iterator[str]:
    """Damage one file of a model folder in the block, whose value says what was done."""
    path = rng.choice([path for path in sorted(folder.iterdir()) if path.suffix in (".json", ".safetensors", ".bin")])
    kinds: list[Callable[[bytes, random.Random], bytes]] = [flipped, cut, inserted]
    kinds += {".json": [valued] * 6, ".safetensors": [headed] * 4}.get(path.suffix, [])
    kind = rng.choice(kinds)
    content = path.read_bytes()
    path.write_bytes(kind(content, rng))
    try:
        yield f"{path.name} {kind.__name__}"
    finally:
        path.write_bytes(content)


def flipped(content: bytes, rng: random.Random) -> bytes:
    """Change up to eight bytes, in the first kilobyte in half of the cases."""
    data = bytearray(content)
    limit = len(data) if rng.random() < 0.5 else min(1024, len(data))
    for _ in range(rng.randint(1, 8)):
        if limit:
            data[rng.randrange(limit)] = rng.choice((0, 255, rng.randrange(256)))
    return bytes(data)


def cut(content: bytes, rng: random.Random) -> bytes:
    """Remove a part, often the end."""
    start = rng.randrange(len(content) + 1)
    return content[:start] + (content[rng.randrange(start, len(content) + 1) :] if rng.random() < 0.3 else b"")


def inserted(content: bytes, rng: random.Random) -> bytes:
    """Insert or repeat bytes."""
    place = rng.randrange(len(content) + 1)
    extra = rng.choice((rng.randbytes(rng.randint(1, 40)), content[place : place + rng.randint(1, 300)]))
    return content[:place] + extra + content[place:]


def valued(content: bytes, rng: random.Random) -> bytes:
    """Change a value anywhere in a JSON file, remove it, or add one."""
    try:
        root = json.loads(content)
    except ValueError:
        return content
    holder, key = root, None
    while isinstance(holder, (dict, list)) and holder:
        below = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
        if not isinstance(holder[below], (dict, list)) or not holder[below] or rng.random() < 0.4:
            key = below
            break
        holder = holder[below]
    if key is None:
        return json.dumps(rng.choice(VALUES)).encode()
    action = rng.random()
    if action < 0.15:
        del holder[key]
    elif action < 0.3 and isinstance(holder, dict):
        holder[rng.choice(KEYS)] = rng.choice(VALUES)
    elif isinstance(holder[key], int) and rng.random() < 0.4:
        holder[key] += rng.choice((-1, 1, 2**20, 2**60))
    else:
        holder[key] = rng.choice(VALUES)
    return json.dumps(root).encode()


def headed(content: bytes, rng: random.Random) -> bytes:
    """Change a value in the header of a safetensors file, or the size of the header."""
    [size] = struct.unpack("<Q", content[:8])
    if rng.random() < 0.15:
        return struct.pack("<Q", rng.choice((0, 1, size - 1, size + 1, 2**24, 2**40, 2**64 - 1))) + content[8:]
    header = valued(content[8 : 8 + size], rng)
    return struct.pack("<Q", len(header)) + header + content[8 + size :]
