"""Skip-thoughts: what the vector of a sentence says about its neighbors, and how well it compares sentences.

    python benchmarks/skip_thoughts.py losses SHARDS --work FOLDER [--steps 1200] [--out FILE.json]
    python benchmarks/sick.py SICK.txt SICK --dev 0.5
    python benchmarks/skip_thoughts.py sick SHARDS SICK --work FOLDER [--steps 1200] [--seeds 3] [--out FILE.json]

`losses` trains `mini-skip-thoughts` twice for the same steps, once with decoders that get zeros in place of the sentence's vector
(objectives.skip.blind), and prints the losses on the held-out sentences, in nats per token. `gain` is the difference: what the
vector says about a token of a neighbor. Its interval is that of 95 % of a paired bootstrap over batches of held-out sentences.

`sick` compares vectors as frozen features for the relatedness of SICK (Marelli et al. 2014): |u − v| and u ∗ v with a linear
layer, as in the paper (Kiros et al. 2015, section 3.2). The other vectors are those of `bertie glove` on the same text, of the
same size, whose mean is the vector of a text. Skip-thoughts and both layers are trained once per seed, GloVe once. A learning
rate is chosen from a few on one half of dev.tsv, and the scores are those of the other half.

Runs in FOLDER are continued or reused: take another folder for other settings. `mini-skip-thoughts` makes 2,000 tokens a second
on one thread of an AMD EPYC, so 1,200 steps take 20 minutes on an idle core. What was measured is in
docs/log/2026-11-28-skip-thoughts.md.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bertie
from bertie.base import config, runtime, storage
from bertie.corpus.shards import open_shards
from bertie.finetuning.recipe import FinetuneConfig, GridSearch
from bertie.objectives import SkipThoughts
from bertie.predict.load import load
from bertie.pretraining.eval_set import eval_batches
from bertie.pretraining.glove import GloveConfig
from bertie.pretraining.recipe import PretrainConfig
from bertie.tasks import Regress
from results import environment

EVAL_TOKENS = 400_000
SAMPLES = 10_000
MODELS = ("skip-thoughts", "GloVe")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, run in (("losses", losses), ("sick", sick)):
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        command.add_argument("shards", type=Path)
        if name == "sick":
            command.add_argument("sick", type=Path, help="folder that benchmarks/sick.py wrote")
            command.add_argument("--seeds", type=int, default=3)
            command.add_argument("--glove-epochs", type=int, default=15)
            command.add_argument("--epochs", type=int, default=40, help="of the linear layer")
            command.add_argument("--examples", type=int, default=0, help="pairs to train it with; 0: all")
        command.add_argument("--work", type=Path, required=True)
        command.add_argument("--steps", type=int, default=1200)
        command.add_argument("--learning-rate", type=float, default=7e-4)
        command.add_argument("--batch-size", type=int, default=16)
        command.add_argument("--hidden-size", type=int, default=512)
        command.add_argument("--embedding-size", type=int, default=256)
        command.add_argument("--out", type=Path)
    given = parser.parse_args()
    threads = runtime.use_threads()
    found = given.run(given)
    if given.out:
        storage.write_json(given.out, {"environment": environment(threads), **found})


def losses(given: argparse.Namespace) -> dict[str, Any]:
    """Train with and without the vector, and compare the held-out losses."""
    runs = {name: pretrained(given, blind=name == "without") for name in ("with", "without")}
    batches = eval_set(given.shards)
    totals = {name: batch_losses(run, batches) for name, run in runs.items()}
    counts = np.array([batch.counts["skip"] for batch in batches])
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(batches), size=(SAMPLES, len(batches)))
    samples = {name: each[drawn].sum(1) / counts[drawn].sum(1) for name, each in totals.items()}
    means = {name: each.sum() / counts.sum() for name, each in totals.items()}
    samples["gain"], means["gain"] = samples["without"] - samples["with"], means["without"] - means["with"]
    found = {"steps": given.steps, "tokens": float(counts.sum())}
    for name, values in samples.items():
        low, high = np.quantile(values, (0.025, 0.975))
        found[name] = {"loss": round(float(means[name]), 4), "95 %": [round(float(low), 4), round(float(high), 4)]}
        print(f"{name:8} {means[name]:.4f} nats per token, 95 %: {low:.4f} to {high:.4f}", flush=True)
    return found


def pretrained(given: argparse.Namespace, blind: bool = False, seed: int = 0) -> Path:
    """Return the run of the shipped recipe with these steps; train it if it is not complete."""
    recipe = config.load(PretrainConfig, "mini-skip-thoughts", "pretrain")
    training = replace(
        recipe.training,
        steps=given.steps,
        learning_rate=given.learning_rate,
        batch_size=given.batch_size,
        eval_every=0,
        max_eval_tokens=8192,  # `losses` evaluates with more
        checkpoint_every=100,
    )
    model = replace(recipe.model, hidden_size=given.hidden_size, embedding_size=given.embedding_size)
    [objective] = recipe.objectives
    assert isinstance(objective, SkipThoughts)
    objectives = (replace(objective, blind=blind),)
    recipe = replace(recipe, model=model, training=training, objectives=objectives, seed=seed)
    run = given.work / (("without" if blind else "with") + (f"-{seed}" if seed else ""))
    bertie.pretrain(recipe, given.shards, run)
    return run


def eval_set(shards: Path) -> list[Any]:
    """Return micro-batches of held-out sentences."""
    opened = open_shards(shards)
    recipe = config.load(PretrainConfig, "mini-skip-thoughts", "pretrain")
    return eval_batches(recipe.objectives, recipe.layout, opened.eval, opened.tokenizer, EVAL_TOKENS)


def batch_losses(run: Path, batches: list[Any]) -> np.ndarray:
    """Return the total loss of each batch. A run without the vector has decoders without it in its recipe."""
    model = load(run).model
    blind = config.read(run / "config.toml")["objectives"][0]["blind"]
    model.heads["skip"].blind = blind  # no weight, so only the recipe has it
    with torch.no_grad():
        return np.array([float(model(batch.tensors())["skip"].total) for batch in batches])


def sick(given: argparse.Namespace) -> dict[str, Any]:
    """Train skip-thoughts, and a linear layer on its vectors and on those of GloVe, once per seed."""
    scores: dict[str, list[dict[str, float]]] = {name: [] for name in MODELS}
    vectors = given.work / "glove"
    if not vectors.exists():
        bertie.glove(given.shards, vectors, GloveConfig(given.hidden_size, epochs=given.glove_epochs))
    for seed in range(given.seeds):
        for name, model in (("skip-thoughts", pretrained(given, seed=seed)), ("GloVe", vectors)):
            scores[name].append(related(model, given, seed))
            print(f"seed {seed}: {name} {scores[name][-1]}", flush=True)
    found: dict[str, Any] = {"steps": given.steps}
    for name, each in scores.items():
        found[name] = {metric: [round(values[metric], 4) for values in each] for metric in each[0]}
        print(name, {metric: round(float(np.mean(values)), 4) for metric, values in found[name].items()}, flush=True)
    return found


def related(model: Path, given: argparse.Namespace, seed: int) -> dict[str, float]:
    """Return the scores of a linear layer on the model's fixed vectors."""
    recipe = config.load(FinetuneConfig, "regress", "finetune")
    task = Regress(text="sentence_A", text_pair="sentence_B", label="relatedness_score", pooling="vectors")
    settings = replace(
        recipe,
        task=task,
        training=replace(recipe.training, epochs=given.epochs, batch_size=64),
        grid=GridSearch(learning_rate=(1e-2, 3e-2, 1e-1, 3e-1)),
        metric="pearson",
        frozen=True,
        seed=seed,
        max_train_examples=given.examples,
        hidden_dropout_prob=0.0,
    )
    return dict(bertie.finetune(settings, given.sick / "train.tsv", model, dev=given.sick / "dev.tsv").scores)


if __name__ == "__main__":
    main()
