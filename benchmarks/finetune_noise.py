"""Is what differs from transformers in finetune_quality.py the draw alone? Gradients under dropout, and a training without.

    python benchmarks/finetune_noise.py MODEL DATA --out FILE.json [--tasks wnut codah] [--passes 300] [--seed 0]

Gradients: both sides hold the same weights, after 60 steps, and read the same 12 units many times under dropout: of each
weight the peer's variance beside ours, and the squared difference of the means over what their errors let expect (1 by
chance). Training: a whole one of each side without dropout, from the same start in the same order.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import finetune_transformers as peer
from bertie import runtime, streams
from bertie.batches.collate import collate
from bertie.checkpoints.folder import Checkpoint, read_checkpoint
from bertie.checkpoints.huggingface import to_theirs
from bertie.contracts import MicroBatch
from bertie.tasks.inference import reading
from bertie.training.finetune import Finetuned, finetune
from finetune_quality import SETTINGS, Setting, examples, settings_of
from results import Results

UNITS, STEPS = 12, 60


@dataclass(frozen=True)
class Gradients:
    """Over passes: losses; of each weight, by transformers' name, the mean and the sum of the variances of its numbers."""

    losses: np.ndarray
    means: dict[str, Tensor]
    variances: dict[str, float]


@dataclass(frozen=True)
class Noise:
    """What was asked of a measurement."""

    task: Setting
    seed: int
    passes: int = 0


def main() -> None:
    tasks = [name for name, setting in SETTINGS.items() if setting.kind != "span"]  # of which a unit is a window
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=["wnut", "codah"], choices=tasks)
    parser.add_argument("--passes", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    results, checkpoint = Results(args.out, args.model, runtime.use_threads()), read_checkpoint(args.model)
    for task in args.tasks:
        setting = SETTINGS[task]
        found = examples(setting, args.data)

        def gradients(setting=setting, found=found) -> dict[str, Any]:
            return beside(args.model, checkpoint, setting, found, args.seed, args.passes)

        def training(setting=setting, found=found) -> dict[str, Any]:
            return without_dropout(args.model, checkpoint, setting, found, args.seed)

        told = results.measure(f"{task}/gradients/seed {args.seed}", Noise(setting, args.seed, args.passes), gradients)
        show(task, told)
        told = results.measure(f"{task}/training/seed {args.seed}", Noise(setting, args.seed), training)
        print(f"{task}: {setting.metric} without dropout {told['bertie']:.4f}, transformers {told['transformers']:.4f}")


def show(task: str, told: dict[str, Any]) -> None:
    """A line for the losses, one for the weights, and the weights that are furthest off."""
    sides = ", ".join(f"{side} {mean:.4f} ± {error:.4f}" for side, (mean, error) in told["loss"].items())
    ratios, differences = (np.array([each[i] for each in told["weights"].values()]) for i in (0, 1))
    print(f"{task}: loss {sides}; {len(ratios)} weights")
    for name, values in (("variance, ours over theirs", ratios), ("difference² over expected", differences)):
        print(f"    {name}: {values.min():.2f} to {values.max():.2f}, median {np.median(values):.2f}")
    for name, (ratio, difference) in sorted(told["weights"].items(), key=lambda each: -each[1][1])[:3]:
        print(f"    {name}: variance {ratio:.2f}, difference² {difference:.2f}")


def beside(
    folder: Path, checkpoint: Checkpoint, setting: Setting, found: tuple[Any, ...], seed: int, passes: int
) -> dict[str, Any]:
    """Losses (mean, its standard error) and, of each weight, variance and squared difference of the mean gradient."""
    base, train, dev = found
    config = settings_of(base, setting, seed)
    tuned = finetune(replace(config, training=replace(config.training, steps=STEPS)), train, dev[:4], checkpoint)
    made, _ = peer.sides(folder, setting, train, dev[:4])
    theirs = same_weights(made, folder, tuned)
    inputs = made.inputs(made.units[:UNITS])
    sequences = tuned.task.training(tuned.task.encode(train[:UNITS], tuned.tokenizer, setting.max_length))
    batch = collate(sequences, setting.max_length)
    targets = tuned.task.targets(batch, sequences, reading(tuned.task, sequences)[0])
    micro = MicroBatch.of(batch, {tuned.task.kind: targets}).tensors(tuned.model.device)

    def ours_loss() -> Tensor:
        loss = tuned.model(micro)[tuned.task.kind]
        return loss.total / loss.count

    def ours_gradients() -> dict[str, Tensor]:
        named = tuned.model.named_parameters()
        return to_theirs({name: p.grad for name, p in named if p.grad is not None}, tuned.model.kinds)

    def theirs_gradients() -> dict[str, Tensor]:
        return {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}

    ours = passed(tuned.model, ours_loss, ours_gradients, passes, seed)
    other = passed(theirs, lambda: theirs(**inputs).loss, theirs_gradients, passes, seed)
    weights = {}
    for name in other.means:
        apart = float(((ours.means[name] - other.means[name]) ** 2).sum())
        variances = ours.variances[name], other.variances[name]
        weights[name] = (variances[0] / variances[1], apart / (sum(variances) / passes))
    loss = {
        side: (float(each.losses.mean()), float(each.losses.std(ddof=1) / passes**0.5))
        for side, each in (("bertie", ours), ("transformers", other))
    }
    return {"loss": loss, "weights": weights}


def passed(
    model: Any, loss_of: Callable[[], Tensor], gradients: Callable[[], dict[str, Tensor]], passes: int, seed: int
) -> Gradients:
    """Forward and back, many times, each with dropout of its own."""
    model.train()
    losses: list[float] = []
    sums: dict[str, Tensor] = {}
    squares: dict[str, Tensor] = {}
    for i in range(passes):
        torch.manual_seed(1_000_000 * seed + i)
        model.zero_grad()
        loss = loss_of()
        loss.backward()
        losses.append(loss.item())
        for name, gradient in gradients().items():
            sums[name] = sums.get(name, 0) + gradient.double()
            squares[name] = squares.get(name, 0) + gradient.double() ** 2
    means = {name: total / passes for name, total in sums.items()}
    variances = {
        name: float((total / passes - means[name] ** 2).sum()) * passes / (passes - 1)
        for name, total in squares.items()
    }
    return Gradients(np.array(losses), means, variances)


def without_dropout(
    folder: Path, checkpoint: Checkpoint, setting: Setting, found: tuple[Any, ...], seed: int
) -> dict[str, Any]:
    """The score and the losses of each side, from the same start in the same order."""
    base, train, dev = found
    config = replace(settings_of(base, setting, seed), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    ours = finetune(config, train, dev, checkpoint)
    still = replace(config, training=replace(config.training, learning_rate=0.0, steps=1))  # the weights of the start
    made, held = peer.sides(folder, setting, train, dev)
    made.dropout = 0.0
    theirs = same_weights(made, folder, finetune(still, train, dev[:4], checkpoint))

    def order_of(epoch: int) -> np.ndarray:
        return streams.generator(seed, streams.EXAMPLES, epoch).permutation(len(made.units))

    losses = peer.descend(theirs, made, setting, order_of)
    return {
        "bertie": ours.scores[setting.metric],
        "transformers": peer.scored(theirs, held)[setting.metric],
        "losses": {"bertie": ours.losses, "transformers": losses},
    }


def same_weights(made: Any, folder: Path, tuned: Finetuned) -> Any:
    """The peer's model with our weights."""
    model = made.build(folder)
    lacks = model.load_state_dict(to_theirs(tuned.model.state_dict(), tuned.model.kinds), strict=False).missing_keys
    assert not [name for name in lacks if "pooler" not in name], lacks
    return model


if __name__ == "__main__":
    main()
