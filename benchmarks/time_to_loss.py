"""Seconds until a held-out masked-LM loss is reached, `mini`, from process start with prepared shards: bertie, transformers.

    python benchmarks/time_to_loss.py SHARDS bertie --run RUN --out FILE.json [-- --training.steps 4200 …]
    python benchmarks/time_to_loss.py SHARDS transformers --run FOLDER --out FILE.json \\
        --batch-size 16 --learning-rate 1e-3 --steps 7800

The targets are the entropy of words in the held-out text − 1.0 and − 1.5 nats. bertie is the command as it is shipped.
transformers is a plain loop over BertForPreTraining: the same sequences, masks and held-out text, padded to 128, AdamW
with the same betas and decay, linear warm-up and decay, no dropout, as the recipe. Evaluating and saving do not count.
It takes hours, and other work beside it must not count: each step, on either side, counts with the lower quartile of
its side's. Stopped, both go on where they were.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from bertie import config, runtime, storage
from bertie.batches.loader import Position
from bertie.contracts import MicroBatch
from bertie.text.shards import Shards, open_shards
from bertie.training.distributed import ALONE
from bertie.training.feed import Feed, held_out
from bertie.training.recipe import PretrainConfig, fitted
from pretrain_speed import padded

BELOW_ENTROPY = (1.0, 1.5)
EVERY = 262_144  # tokens between evaluations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", type=Path)
    parser.add_argument("who", choices=["bertie", "transformers"])
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--steps", type=int, default=7800)
    parser.add_argument("--stop-after", type=int, default=0, help="steps; 0: when the last target is reached")
    args, flags = parser.parse_known_args()
    shards = open_shards(args.shards)
    targets = [shards.eval.unigram_entropy - below for below in BELOW_ENTROPY]
    if args.who == "bertie":
        curve = list(ours(args.shards, args.run, [flag for flag in flags if flag != "--"]))
    else:
        curve = list(theirs(shards, args, min(targets)))
    told = runtime.environment(runtime.use_threads())
    reached = [next((point for point in curve if point["mlm_loss"] <= target), None) for target in targets]
    result = {"environment": told, "targets": targets, "reached": reached, "curve": curve}
    storage.write_json(args.out, result)
    print(json.dumps({"targets": targets, "reached": reached}))


def ours(shards: Path, run: Path, flags: list[str]) -> Iterator[dict[str, float]]:
    """Held-out losses over time. Counted are the steps, and all that the process does before the first one, and at its end."""
    started = time.monotonic()
    command = [sys.executable, "-m", "bertie", "pretrain", "mini", "--data", str(shards), "--out", str(run), *flags]
    subprocess.run([*command, "--training.eval-every", str(EVERY // (16 * 128))], check=True)
    whole = time.monotonic() - started
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    beside = whole - records[-1]["seconds"]
    steps = [record for record in records if record["split"] == "train"]
    before = [0, *(record["tokens"] for record in steps)]
    spans = zip(steps, before, strict=False)
    step = quantiles([(record["tokens"] - start) / record["tokens_per_second"] for record, start in spans], n=4)[0]
    for record in records:
        if record["split"] == "eval":
            reached = {key: record[key] for key in ("step", "tokens", "mlm_loss")}
            yield {**reached, "seconds": beside + record["step"] * step}


def theirs(shards: Shards, args: argparse.Namespace, lowest: float) -> Iterator[dict[str, float]]:
    """The same of a plain loop. args.run keeps the newest state and the curve."""
    started = time.monotonic()
    recipe = config.load(PretrainConfig, "mini", "pretrain")
    training = replace(recipe.training, batch_size=args.batch_size, row_tokens=args.batch_size * 128, steps=args.steps)
    recipe = fitted(replace(recipe, training=training), shards.tokenizer)
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    torch.manual_seed(0)
    model = transformers.BertForPreTraining(
        transformers.BertConfig(**{name: getattr(recipe.model, name) for name in names}, **dropout)
    ).train()
    decayed = [p for p in model.parameters() if p.ndim > 1]
    spared = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": spared, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.learning_rate, betas=(0.9, 0.98), eps=1e-6, fused=True)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, round(0.1 * args.steps), args.steps)
    held = held_out(recipe.objectives, recipe.layout, shards.eval, shards.tokenizer, training.eval_tokens)
    state = _State(args.run, model, optimizer)
    done = state.restore()
    for _ in range(done["step"]):
        schedule.step()
    feed = Feed(recipe.way, shards, recipe.objectives, 0, 1, 0, ALONE)
    every = EVERY // (args.batch_size * 128)
    end = args.stop_after or args.steps
    done.setdefault("beginning", time.monotonic() - started)
    last = time.monotonic()
    for work in islice(feed.steps(done["step"], Position(0, done["step"])), end - done["step"]):
        [micro] = work.batches
        model(**padded(micro, 128)).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        done["step"] += 1
        done["tokens"] += micro.tokens
        done["lengths"].append(time.monotonic() - last)
        if done["step"] % every == 0 or done["step"] == end:
            point = {"step": done["step"], "tokens": done["tokens"], "mlm_loss": _held_out_loss(model, held)}
            print(point, file=sys.stderr, flush=True)
            done["curve"].append(point)
            state.save(done)
            if point["mlm_loss"] <= lowest and not args.stop_after:
                break
        last = time.monotonic()
    step = quantiles(done["lengths"], n=4)[0]
    for point in done["curve"]:
        yield {**point, "seconds": done["beginning"] + point["step"] * step}


@torch.no_grad()
def _held_out_loss(model: torch.nn.Module, held: list[MicroBatch]) -> float:
    model.eval()
    total = count = 0.0
    for micro in held:
        inputs = padded(micro, 128)
        labels = inputs.pop("labels")
        del inputs["next_sentence_label"]
        chosen = labels >= 0
        logits = model(**inputs).prediction_logits[chosen]
        total += float(torch.nn.functional.cross_entropy(logits, labels[chosen], reduction="sum"))
        count += int(chosen.sum())
    model.train()
    return total / count


class _State:
    """Weights, moments and where the run stands, in a folder."""

    def __init__(self, folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer):
        self.folder, self.model, self.optimizer = folder, model, optimizer

    def restore(self) -> dict[str, Any]:
        file = self.folder / "state.json"
        if not file.exists():
            return {"step": 0, "tokens": 0, "lengths": [], "curve": []}
        tensors = load_file(self.folder / "state.safetensors")
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(tensors[f"weight.{name}"])
                moments = ("exp_avg", "exp_avg_sq", "step")
                self.optimizer.state[parameter] = {key: tensors[f"{key}.{name}"] for key in moments}
        return json.loads(file.read_text())

    def save(self, done: dict[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        tensors = {}
        for name, parameter in self.model.named_parameters():
            tensors[f"weight.{name}"] = parameter.detach()
            tensors |= {f"{key}.{name}": value for key, value in self.optimizer.state[parameter].items()}
        save_file(tensors, self.folder / "state.safetensors.new")
        (self.folder / "state.safetensors.new").replace(self.folder / "state.safetensors")
        storage.write_json(self.folder / "state.json", done)


if __name__ == "__main__":
    main()
