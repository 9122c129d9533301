"""Damage model folders at random, and read them. Not run by pytest.

    python tests/long/fuzz_models.py 100000

makes small folders of models with every format of weights, damages one file in each case, and reads it with
3 GiB of memory. Whatever is neither read nor refused with one line is an escape: it is printed with its seed, and the exit
code is 1. `--seed N` starts elsewhere.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import resource
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from mutations import mutated
from safetensors.torch import load_file, save_file

from bertie.checkpoints.folder import write_model
from bertie.checkpoints.read import read_checkpoint
from bertie.errors import UserError
from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder
from bertie.model.model import Model
from bertie.objectives import MaskedLM
from bertie.objectives.heads import build_heads
from bertie.text.vocabulary import train_tokenizer

SLOW = 5  # seconds of processor time that no case needs


def make_models(work: Path) -> list[Path]:
    """Write a small model with whole, sharded and pickled weights."""
    text = work / "text.txt"
    text.write_text("the cat sat on the mat and the dog sat on the log\n" * 20)
    tokenizer = train_tokenizer([text], work / "tokenizer", vocab_size=60)
    sizes = dict.fromkeys(("hidden_size", "intermediate_size"), 8)
    config = TransformerConfig(
        **sizes, num_hidden_layers=1, num_attention_heads=2, vocab_size=tokenizer.size, max_position_embeddings=16
    )
    encoder = build_encoder(config)
    model = Model(encoder, build_heads((MaskedLM(),), encoder))
    folders = [work / name for name in ("safetensors", "shards", "zip", "legacy")]
    for folder in folders:
        folder.mkdir()
        write_model(folder, model, tokenizer)
        (folder / "README.md").unlink()
    weights = load_file(folders[0] / "model.safetensors")
    for folder in folders[1:]:
        (folder / "model.safetensors").unlink()
    names = sorted(weights)
    placed = {name: f"model-{1 + number % 2:05d}-of-00002.safetensors" for number, name in enumerate(names)}
    for file in sorted({*placed.values()}):
        save_file({name: weights[name] for name in names if placed[name] == file}, folders[1] / file)
    index = {"metadata": {}, "weight_map": placed}
    (folders[1] / "model.safetensors.index.json").write_text(json.dumps(index))
    torch.save(weights, folders[2] / "pytorch_model.bin")
    torch.save(weights, folders[3] / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    return folders


def try_case(folder: Path, seed: int) -> str:
    """Read a folder with one damaged file. Return "read", "refused", or a description of an escape."""
    with mutated(folder, random.Random(seed)) as done:
        result = outcome(folder)
    return f"{result} [{folder.name}, {done}, seed {seed}]" if result.startswith("ESCAPE") else result


def outcome(folder: Path) -> str:
    """Read a folder. Return "read", "refused", or a description of an escape."""
    started = time.process_time()
    try:
        read_checkpoint(folder)
        result = "read"
    except UserError as error:
        result = "refused" if "\n" not in str(error) and len(str(error)) < 2000 else f"ESCAPE long message: {error!r}"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        result = f"ESCAPE {type(error).__name__}: {str(error)[:100]} ({Path(last.filename).name}:{last.lineno})"
    if time.process_time() - started > SLOW:
        result = f"ESCAPE took {time.process_time() - started:.0f} s"
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("cases", type=int)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    counts: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        folders = make_models(Path(name))
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 3 * 2**30, resource.RLIM_INFINITY))
        sys.stderr = open("/dev/null", "w")  # noqa: SIM115 - warnings of the models
        for seed in range(asked.seed, asked.seed + asked.cases):
            result = try_case(folders[seed % len(folders)], seed)
            counts[result.split(" ")[0]] += 1
            if result.startswith("ESCAPE"):
                print(result, flush=True)
    print(dict(counts))
    return int(bool(counts["ESCAPE"]))


if __name__ == "__main__":
    raise SystemExit(main())
