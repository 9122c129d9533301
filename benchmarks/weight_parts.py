"""A model in small files, for a machine from which only small files can be copied: weights in bf16, in numbered parts.

    python benchmarks/weight_parts.py split RUN FOLDER
    python benchmarks/weight_parts.py join FOLDER MODEL

`split` writes an archive of the model in parts of 15 MiB, and their checksums in parts.json. `join` checks them and writes
the model to a new folder. Training cannot resume from it: it has no state of the optimizer.
"""

from __future__ import annotations

import argparse
import io
import json
import tarfile
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from bertie.base import storage
from bertie.checkpoints.find import MODEL_FILES, find_model_folder

PART = 15 << 20  # bytes


def split(run: Path, folder: Path) -> list[str]:
    """Write the model of a run to a folder. Returns the names of the parts."""
    model = find_model_folder(run)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work, io.BytesIO() as stream:
        weights = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(model / "model.safetensors").items()}
        save_file(weights, Path(work) / "model.safetensors", metadata={"format": "pt"})
        storage.write_json(Path(work) / "config.json", storage.read_json(model / "config.json") | {"dtype": "bfloat16"})
        with tarfile.open(fileobj=stream, mode="w") as archive:
            for name in MODEL_FILES:
                changed, same = Path(work) / name, model / name
                if same.is_file():
                    archive.add(changed if changed.is_file() else same, name)
        content = stream.getbuffer()
        names = [f"part-{number:02}.bin" for number in range(-(-len(content) // PART))]
        for number, name in enumerate(names):
            (folder / name).write_bytes(content[number * PART : (number + 1) * PART])
        del content
    storage.write_json(folder / "parts.json", {name: storage.sha256(folder / name) for name in names})
    return names


def join(folder: Path, model: Path) -> None:
    """Write the model of a folder with all its parts to a new folder."""
    expected = json.loads((folder / "parts.json").read_text())
    if wrong := [name for name, sha in expected.items() if storage.sha256(folder / name) != sha]:
        raise SystemExit(f"{folder}: copy {', '.join(wrong)} again, the content is another")
    with tarfile.open(fileobj=io.BytesIO(b"".join((folder / name).read_bytes() for name in expected))) as archive:
        archive.extractall(model, filter="data")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["split", "join"])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    args = parser.parse_args()
    print((split if args.what == "split" else join)(args.source, args.target) or args.target)
