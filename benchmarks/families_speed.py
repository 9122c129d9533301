"""Speed of encoders of other families: bertie on packed batches, and transformers on padded ones, with the same weights.

    OMP_NUM_THREADS=1 python benchmarks/families_speed.py DATA --out benchmarks/results/families_speed.json [--batches 8]
        [--rounds 3] [--layers 12] [--only MODEL]

Builds an XLM-R, an MPNet and a DeBERTa-v3 of base size with random weights. Both sides encode batches of 32 texts with the
lengths that BERT's tokenizer gives the texts: in the order of the texts, and sorted by length. DATA is a folder with
GLUE's SST-2 and MRPC and with SQuAD. The texts are the sentences of SST-2, and the mix of `inference.py`, at most 384 tokens
each. The sides alternate in one process with one thread.

Writes for each model, texts and order the ratio of the times, as median, lowest and highest of the rounds; the share of
transformers' cells that hold a token (`tokens`); and the largest difference of two hidden states. Fails if that is above
1e-4.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers  # pyright: ignore[reportMissingImports]
from torch import Tensor

from bertie.base import storage
from bertie.base.contracts import Sequence
from bertie.batches.collate import collate
from bertie.checkpoints.families import FAMILIES
from bertie.checkpoints.families.family import from_huggingface
from bertie.checkpoints.find import read_tensors
from bertie.checkpoints.huggingface import from_config_json
from bertie.model.encoder import build_encoder
from inference import mix, vocabulary
from results import environment

TOLERANCE = 1e-4
LONGEST = 384
MIX = 160  # as in inference.py
VOCABULARY = 30_000
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
DEBERTA = {
    **{"relative_attention": True, "pos_att_type": "p2c|c2p", "share_att_key": True, "position_buckets": 256},
    **{"norm_rel_ebd": "layer_norm", "position_biased_input": False, "type_vocab_size": 0},
}
MODELS = {
    "XLM-R": ("XLMRoberta", {"type_vocab_size": 1, "max_position_embeddings": 514}),
    "MPNet": ("MPNet", {"max_position_embeddings": 514}),
    "DeBERTa": ("DebertaV2", DEBERTA),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--only", choices=list(MODELS), help="one model instead of all")
    args = parser.parse_args()
    measured_on = environment(1)
    torch.set_num_threads(1)
    texts = lengths_of(args.data, 32 * args.batches)
    rows: list[dict[str, Any]] = []
    for name, (prefix, values) in MODELS.items():
        if args.only not in (None, name):
            continue
        theirs = build(prefix, values | SIZES | {"num_hidden_layers": args.layers})
        ours = converted(theirs)
        for source, lengths in texts.items():
            for order, given in (("as given", lengths), ("sorted", sorted(lengths))):
                row = {"model": name, "texts": source, "order": order, **compared(ours, theirs, given, args.rounds)}
                rows.append(row | {"attention of transformers": theirs.config._attn_implementation})
                print(rows[-1], flush=True)
                storage.write_json(args.out, {"environment": measured_on, "rows": rows})


def lengths_of(data: Path, count: int) -> dict[str, list[int]]:
    """Return the numbers of tokens of the first texts of each source."""
    tokenizer = vocabulary(data)
    lines = (data / "glue/SST-2/dev.tsv").read_text().splitlines()[1:]
    texts = {"SST-2": [line.split("\t")[0] for line in lines], "mix": mix(data, MIX)}
    return {name: [min(len(ids) + 2, LONGEST) for ids in tokenizer.encode(own[:count])] for name, own in texts.items()}


def build(prefix: str, values: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    return getattr(transformers, f"{prefix}Model")(getattr(transformers, f"{prefix}Config")(**values)).eval()


def converted(theirs: Any) -> Any:
    """Return bertie's encoder with the same weights."""
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        values = storage.read_json(Path(folder) / "config.json")
        family, config, _ = from_config_json(values, folder)
        assert family is FAMILIES[values["model_type"]]
        weights, _ = from_huggingface(
            family, read_tensors(Path(folder) / "model.safetensors"), {}, values["pad_token_id"]
        )
    encoder = build_encoder(config).eval()
    encoder.load_state_dict(
        {name.removeprefix("encoder."): x for name, x in weights.items() if name.startswith("encoder.")}
    )
    return encoder


def compared(ours: Any, theirs: Any, lengths: list[int], rounds: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    rows = [rng.integers(5, VOCABULARY, length).astype(np.int32) for length in lengths]
    batches = [rows[i : i + 32] for i in range(0, len(rows), 32)]
    ratios, difference = [], 0.0
    with torch.inference_mode():
        for _ in range(rounds):
            seconds = np.zeros(2)
            for batch in batches:
                started = time.perf_counter()
                mine = ours(packed(batch)).last
                middle = time.perf_counter()
                their = theirs(**padded(batch, theirs.config.pad_token_id)).last_hidden_state
                seconds += middle - started, time.perf_counter() - middle
                same = torch.cat([each[: len(row)] for each, row in zip(their, batch, strict=True)])
                difference = max(difference, float((mine - same).abs().max()))
            ratios.append(seconds[0] / seconds[1])
    if difference > TOLERANCE:
        raise SystemExit(f"the hidden states differ by {difference:.1e}")
    cells = sum(len(batch) * max(map(len, batch)) for batch in batches)
    figures = {
        "ratio": np.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "tokens": sum(lengths) / cells,
    }
    return {name: round(float(value), 3) for name, value in figures.items()} | {"difference": difference}


def packed(rows: list[np.ndarray]) -> Any:
    sequences = [Sequence(row, np.zeros_like(row), np.ones(len(row), bool)) for row in rows]
    return collate(sequences, max(map(len, rows))).tensors()


def padded(rows: list[np.ndarray], pad_id: int) -> dict[str, Tensor]:
    def grid(arrays: list[np.ndarray], value: int) -> Tensor:
        tensors = [torch.as_tensor(array, dtype=torch.int64) for array in arrays]
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)

    return {"input_ids": grid(rows, pad_id), "attention_mask": grid([np.ones_like(row) for row in rows], 0)}


if __name__ == "__main__":
    main()
