"""Speed of inference on a CPU: bertie's engines, and other libraries, with the same weights of BERT's base size.

    python benchmarks/inference.py --data DATA --out benchmarks/results/inference.json [--threads 1 2] [--only torch]
        [--task RUN=DEV ...] [--rounds 3] [--seconds 6]

DATA is a folder with GLUE's SST-2 and MRPC and with SQuAD. Every cell (system, inputs, threads) runs in a process of its own
and writes one JSON file beside OUT, so that an interrupted run continues where it stopped; `--again` measures again. The
rounds alternate between the systems. A cell measures whole passes over its inputs for some seconds.

Inputs:

    128, 384    random sequences of this length, in batches of 8 and 3: what fixed-length measurements report
    mix         real texts: sentences of SST-2, pairs of MRPC, contexts of SQuAD (at most 384 tokens)

Peers run the mix in two ways: in padded batches of 32 in the order of the texts, and (only for the summary) the fixed-length
cells. `pipeline` is transformers' feature extraction with its defaults, one text at a time.

The cell `start` is the time from the start of a process to the first vector of a text. With `--task`, both precisions of a
fine-tuned run are scored with `bertie convert`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

BATCH = {"128": 8, "384": 3}
NAIVE_BATCH = 32
INPUTS = ("128", "384", "mix", "start")
OURS = ("plain", "torch", "torch-bf16", "torch-int8", "openvino", "openvino-bf16", "openvino-int8", "onnx", "onnx-int8")
PEERS = ("openvino int8", "onnxruntime fp32", "onnxruntime int8", "torchao int8 compiled", "transformers fp32")
INT8_PEERS = ("openvino int8", "onnxruntime int8", "torchao int8 compiled")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--inputs", nargs="+", choices=INPUTS, default=INPUTS)
    parser.add_argument("--only", default="", help="part of the name of a system")
    parser.add_argument("--task", nargs="*", default=[], help="RUN=DEV: score the engines on a fine-tuned run")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--small", action="store_true", help="a small model and few texts, to try this script")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cell:
        cell = json.loads(args.cell)
        print(json.dumps(measure(cell, args)))
        return
    work = args.out.with_suffix("")
    work.mkdir(parents=True, exist_ok=True)
    prepare(work, args)
    for cell in cells(args):
        path = work / ("-".join(str(value).replace(" ", "_") for value in cell.values()) + ".json")
        if path.is_file() and not args.again:
            continue
        found = run(cell)
        path.write_text(json.dumps(cell | found))
        print(json.dumps(cell | found), flush=True)
    rows = [json.loads(path.read_text()) for path in sorted(work.glob("*.json")) if path.name != "inputs.json"]
    scores = [json.loads(path.read_text()) for path in sorted(work.glob("task/*.json"))]
    from results import environment

    args.out.write_text(
        json.dumps({"environment": environment(max(args.threads)), "rows": rows, "tasks": scores}, indent=1)
    )
    summarize(rows, args.threads)


def cells(args: argparse.Namespace) -> list[dict[str, Any]]:
    """List all cells, so that the systems alternate."""
    found = []
    for number in range(args.rounds):
        for threads in args.threads:
            for inputs in args.inputs:
                peers = {"mix": [*PEERS, "transformers pipeline"], "start": []}.get(inputs, PEERS)
                found += [
                    {"system": name, "inputs": inputs, "threads": threads, "round": number} for name in [*OURS, *peers]
                ]
    return [cell for cell in found if args.only in cell["system"]]


def run(cell: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", *sys.argv, "--cell", json.dumps(cell | {"launched": time.time()})]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {
            "error": done.stderr.strip().splitlines()[-1][:300] if done.stderr.strip() else f"exit {done.returncode}"
        }
    return json.loads(done.stdout.splitlines()[-1])


def prepare(work: Path, args: argparse.Namespace) -> None:
    """Write the model, its converted forms, and the inputs, as far as they are not there yet."""
    import torch

    import bertie
    from bertie.checkpoints.folder import write_model
    from bertie.model.config import TransformerConfig
    from bertie.model.encoder import build_encoder
    from bertie.model.initialization import initialize_weights
    from bertie.model.model import Model

    model = work / "model"
    tokenizer = vocabulary(args.data)
    if not model.is_dir():
        size = (2, 128, 2, 512) if args.small else (12, 768, 12, 3072)
        torch.manual_seed(0)
        encoder = build_encoder(TransformerConfig(*size, vocab_size=tokenizer.size))
        complete = Model(encoder, {})
        initialize_weights(complete, 0.02)
        model.mkdir()
        write_model(model, complete, tokenizer)
    texts = work / "texts.txt"
    if not texts.is_file():
        texts.write_text("\n".join(mix(args.data, 40 if args.small else 160)) + "\n")
    for engine in OURS:
        folder = work / engine
        if engine == "plain" or folder.is_dir() or args.only not in engine:
            continue
        to, _, precision = engine.partition("-")
        given: Any = {"precision": precision or "fp32", "data": texts if precision == "int8" else None}
        try:
            bertie.convert(model, folder, to, max_loss=1.0, **given)  # type: ignore[arg-type]
        except bertie.UserError as error:
            print(f"{engine}: {error}")
    for assignment in args.task:
        run_folder, _, dev = assignment.partition("=")
        score(work / "task", Path(run_folder), Path(dev), args.only)


def score(work: Path, run_folder: Path, dev: Path, only: str) -> None:
    """Convert a fine-tuned run to every engine and keep the scores."""
    import bertie

    work.mkdir(exist_ok=True)
    for engine in OURS[1:]:
        path = work / f"{run_folder.name}-{engine}.json"
        if path.is_file() or only not in engine:
            continue
        to, _, precision = engine.partition("-")
        given: Any = {"precision": precision or "fp32", "data": dev, "max_loss": 1.0}
        out = work / f"{run_folder.name}-{engine}"
        try:
            result = bertie.convert(run_folder, out, to, **given)  # type: ignore[arg-type]
        except bertie.UserError as error:
            result = {"error": str(error)}
        path.write_text(json.dumps({"run": run_folder.name, **result, "engine": engine}))
        print(path.name, result.get("scores"), "loss", result.get("loss", result.get("error")), flush=True)


def vocabulary(data: Path) -> Any:
    """Return BERT's uncased tokenizer."""
    import tempfile

    from bertie.tokenizers.tokenizer import Tokenizer

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "vocab.txt").write_bytes((data / "vocab" / "bert-base-uncased.txt").read_bytes())
        return Tokenizer.load(Path(folder))


def mix(data: Path, count: int) -> list[str]:
    """Return real texts of very different lengths, in a fixed random order."""
    sst2 = [line.split("\t")[0] for line in (data / "glue/SST-2/dev.tsv").read_text().splitlines()[1:]]
    mrpc = [" ".join(line.split("\t")[3:5]) for line in (data / "glue/MRPC/dev.tsv").read_text().splitlines()[1:]]
    squad = json.loads((data / "squad/dev-v1.1.json").read_text())["data"]
    contexts = [" ".join(part["context"].split()) for article in squad for part in article["paragraphs"]]
    texts = [*sst2[: 2 * count], *mrpc[:count], *contexts[:: max(1, len(contexts) // (count // 4))][: count // 4]]
    return [texts[i] for i in np.random.default_rng(0).permutation(len(texts))]


def measure(cell: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """Measure one cell in this process."""
    import os

    os.environ["OMP_NUM_THREADS"] = str(cell["threads"])
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[: cell["threads"]]))
    work, name, inputs = args.out.with_suffix(""), cell["system"], cell["inputs"]
    texts = (work / "texts.txt").read_text().splitlines()
    if inputs == "start":
        import bertie

        bertie.load(work / ("model" if name == "plain" else name), threads=cell["threads"], engine=name).embed(
            ["ready"]
        )
        return {"seconds": round(time.time() - cell["launched"], 3)}
    import torch

    torch.set_num_threads(cell["threads"])
    if name == "transformers pipeline":
        step, tokens, sequences = pipeline(work / "model", texts[:60])
    else:
        grids = batches(work / "model", texts, inputs, naive=name in PEERS)
        tokens = sum(int(mask.sum()) for _, mask in grids)
        sequences = sum(len(ids) for ids, _ in grids)
        step = our_step(work, name, grids, cell) if name in OURS else peer_step(work, name, grids, cell)
    step()
    passes, started = 0, time.perf_counter()
    while passes < 1 or time.perf_counter() - started < args.seconds:
        step()
        passes += 1
    seconds = (time.perf_counter() - started) / passes
    return {"sequences_per_second": sequences / seconds, "tokens_per_second": tokens / seconds, "passes": passes}


def batches(model: Path, texts: list[str], inputs: str, naive: bool) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return batches as (input_ids, attention_mask), int64. Ours have the same sequences: the engine groups them itself."""
    if inputs != "mix":
        shape = (BATCH[inputs], int(inputs))
        ids = np.random.default_rng(1).integers(1000, 30000, shape)
        return [(ids, np.ones_like(ids))] * 2
    from bertie.tokenizers.tokenizer import Tokenizer
    from bertie.tokenizers.truncation import encode

    sequences = encode(Tokenizer.load(model), texts, None, max_length=384)
    size = NAIVE_BATCH if naive else len(sequences)
    found = []
    for start in range(0, len(sequences), size):
        members = sequences[start : start + size]
        ids, mask = (np.zeros((len(members), max(map(len, members))), np.int64) for _ in range(2))
        for i, each in enumerate(members):
            ids[i, : len(each)], mask[i, : len(each)] = each.input_ids, 1
        found.append((ids, mask))
    return found


def our_step(work: Path, name: str, grids: list[tuple[np.ndarray, np.ndarray]], cell: dict[str, Any]) -> Any:
    """Return a function that encodes all sequences with one of our engines, as every command does."""
    import bertie
    from bertie.base.contracts import Sequence
    from bertie.tasks.inference import infer

    source: Any = work / ("model" if name == "plain" else name)
    predictor = bertie.load(source, threads=cell["threads"], engine=name)  # type: ignore[arg-type]
    rows = [
        row[: int(mask.sum())].astype(np.int32) for ids, masks in grids for row, mask in zip(ids, masks, strict=True)
    ]
    sequences = [Sequence(row, np.zeros_like(row), np.ones(len(row), bool)) for row in rows]

    def compute(batch: Any, members: list[Any]) -> list[None]:
        predictor.model.encoder(batch)
        return [None] * len(members)

    fixed = max(map(len, sequences)) * BATCH.get(cell["inputs"], 1)
    limit = fixed if cell["inputs"] in BATCH else 8192
    return lambda: infer(predictor.model, sequences, compute, limit)


def peer_step(work: Path, name: str, grids: list[tuple[np.ndarray, np.ndarray]], cell: dict[str, Any]) -> Any:
    """Return a function that encodes padded batches with another library."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    given = [dict(zip(names, (ids, mask, np.zeros_like(ids)), strict=True)) for ids, mask in grids]
    if name == "openvino int8":
        import openvino

        core = openvino.Core()
        settings = {"INFERENCE_NUM_THREADS": cell["threads"], "NUM_STREAMS": 1}
        compiled = core.compile_model(
            core.read_model(work / "openvino-int8/openvino/openvino_model.xml"), "CPU", settings
        )
        request = compiled.create_infer_request()
        return lambda: [request.infer(each) for each in given]
    if name.startswith("onnxruntime"):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = cell["threads"]
        folder = "onnx-int8" if name.endswith("int8") else "onnx"
        session = onnxruntime.InferenceSession(work / folder / "onnx/model.onnx", options)
        return lambda: [session.run(None, each) for each in given]
    return torch_step(work, name, given)


def torch_step(work: Path, name: str, given: Sequence[Mapping[Any, np.ndarray]]) -> Any:
    """Return a function that encodes padded batches with transformers, in fp32 or in torchao's int8, compiled."""
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(work / "model").eval()
    if name == "torchao int8 compiled":
        import torch._inductor.config as inductor
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

        inductor.freezing = True
        quantize_(model, Int8DynamicActivationInt8WeightConfig())
        model = torch.compile(model, dynamic=True)
    tensors = [{key: torch.from_numpy(array) for key, array in each.items()} for each in given]

    def step() -> None:
        with torch.no_grad():
            for each in tensors:
                model(**each)

    return step


def pipeline(model: Path, texts: list[str]) -> tuple[Any, int, int]:
    """Return a step of transformers' pipeline with its defaults, and its tokens and sequences."""
    from transformers import pipeline as build

    extract: Any = build("feature-extraction", model=str(model), tokenizer=str(model))
    settings = {"truncation": True, "max_length": 384}
    tokens = sum(len(extract.tokenizer(text, **settings)["input_ids"]) for text in texts)
    return lambda: extract(texts, tokenize_kwargs=settings), tokens, len(texts)


def summarize(rows: list[dict[str, Any]], threads: list[int]) -> None:
    """Print the median of the rounds, and the ratios that matter."""
    for count in threads:
        rate: dict[tuple[str, str], float] = {}
        for system, inputs in {(row["system"], row["inputs"]) for row in rows}:
            own = [row for row in rows if (row["system"], row["inputs"], row["threads"]) == (system, inputs, count)]
            key = "seconds" if inputs == "start" else "tokens_per_second"
            if found := [row[key] for row in own if key in row]:
                rate[system, inputs] = float(np.median(found))
        print(
            f"\n{count} thread(s), tokens/s"
            + " " * 8
            + "".join(f"{name:>10}" for name in ("128", "384", "mix", "start, s"))
        )
        for system in (*OURS, *PEERS, "transformers pipeline"):
            values = [rate.get((system, inputs)) for inputs in ("128", "384", "mix", "start")]
            print(f"{system:<28}" + "".join(f"{value:>10,.1f}" if value else f"{'–':>10}" for value in values))
        for inputs, peers, wanted in (("128", INT8_PEERS, 0.95), ("384", INT8_PEERS, 0.95), ("mix", INT8_PEERS, 2.0)):
            best = max((rate.get((name, inputs), 0.0) for name in OURS), default=0.0)
            theirs = max((rate.get((name, inputs), 0.0) for name in peers), default=0.0)
            if best and theirs:
                print(f"{inputs}: the best engine is {best / theirs:.2f} × the best int8 peer (wanted {wanted:g})")
        _ratio(rate, ("plain", "torch", "torch-bf16", "torch-int8", "openvino-int8"), "transformers pipeline", 10)
        for inputs in ("128", "384", "mix"):
            if {("torch", inputs), ("onnxruntime fp32", inputs)} <= set(rate):
                print(
                    f"{inputs}: torch fp32 is {rate['torch', inputs] / rate['onnxruntime fp32', inputs]:.2f} × ONNX Runtime's"
                )


def _ratio(rate: dict[tuple[str, str], float], ours: tuple[str, ...], peer: str, wanted: float) -> None:
    best = max((rate.get((name, "mix"), 0.0) for name in ours), default=0.0)
    if best and (theirs := rate.get((peer, "mix"))):
        print(f"mix: the best engine is {best / theirs:.1f} × {peer} (wanted {wanted:g})")


if __name__ == "__main__":
    main()
