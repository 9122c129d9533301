"""What each part of the recipe `modern-mini` contributes: its held-out loss without that part.

    python benchmarks/recipe_parts.py SHARDS --work FOLDER [--steps 500] [--only "15 % masks" biases] [--threads 1]
    python benchmarks/recipe_parts.py SHARDS --work FOLDER --corpus simplewiki.jsonl.xz --only "no repeated paragraphs"
    python benchmarks/recipe_parts.py SHARDS --work FOLDER --means
    python benchmarks/recipe_parts.py SHARDS --work FOLDER --times [--rounds 5] [--threads 1]
    python benchmarks/recipe_parts.py SHARDS --work FOLDER --table [--out benchmarks/results/recipe_parts.json]

Every run sees as many tokens as `modern-mini` in --steps steps. Whatever masks and layout it trains with, it is scored with
BERT's masks (15 %, 80/10/10) on held-out sequences of one document, as in speedrun.py. Runs that filter the text (TEXTS)
need --corpus. `--means` scores means of the last checkpoints of the first run, and exponential means of all. `--times`
measures the time per token of all runs with constant steps, in turn in one process. A stopped benchmark resumes. Several
processes may train different runs (--only).

SHARDS: the Simple English Wikipedia, prepared with a vocabulary of 30,000 entries.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from torch import Tensor, nn

import bertie
from bertie.base import config, runtime, storage
from bertie.base.contracts import Batch, Hidden
from bertie.checkpoints.find import list_checkpoints
from bertie.checkpoints.read import read_checkpoint
from bertie.corpus.document_blocks import Filters
from bertie.corpus.shards import Shards, open_shards
from bertie.model.model import Model
from bertie.pretraining.recipe import PretrainConfig, with_vocab_size
from bertie.training.job import TrainingJob
from bertie.training.run_folder import read_metrics
from results import environment
from speedrun import held_out_loss, loss_of, model_loss, our_steps
from time_to_loss import time_in_turn

RECIPE = "modern-mini"
MLM = {"kind": "mlm", "mlm_probability": 0.3, "initialization": "patterns"}
COUNTED = [MLM | {"initialization": "cooccurrence"}]
EARLIER = {"share": 0.3}
LATER = {"share": 0.7}
RUNS: dict[str, dict[str, Any]] = {
    "modern-mini": {},
    "modern-mini, seed 1": {"seed": 1},
    "modern-mini, seed 2": {"seed": 2},
    "co-occurrence vectors, no attention patterns": {"objectives": COUNTED},
    "random initial weights": {"objectives": [MLM | {"initialization": "random"}]},
    "no patterns, learned positions": {"objectives": COUNTED, "model": {"position_embedding": "learned"}},
    "no patterns, BERT's place of layer norm": {"objectives": COUNTED, "model": {"norm_position": "post"}},
    "15 % masks": {"objectives": [MLM | {"mlm_probability": 0.15}]},
    "40 % masks": {"objectives": [MLM | {"mlm_probability": 0.4}]},
    "masks from 30 to 15 %": {"objectives": [MLM | {"mlm_probability_end": 0.15}]},
    "sentence pairs with NSP": {"objectives": [MLM, {"kind": "nsp"}], "layout": {"kind": "pairs"}},
    "sequences across documents": {"layout": {"kind": "full_sentences"}},
    "dropout 0.1": {"model": {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}},
    "GELU, as many parameters": {"model": {"hidden_act": "gelu", "intermediate_size": 576}},
    "biases": {"model": {"use_bias": True}},
    "all embeddings at the full learning rate": {"training": {"embedding_lr_scale": 1.0}},
    "linear decay": {"schedule": {"kind": "linear", "warmup": 0.02}},
    "cosine decay": {"schedule": {"kind": "cosine", "warmup": 0.02}},
    "Muon, learning rate 2e-3": {"optimizer": {"kind": "muon"}},
    "steps of 1,024 tokens": {"training": {"batch_size": 8}},
    "steps of 4,096 tokens": {"training": {"batch_size": 32}},
    "batch warm-up: 1,024 tokens in the first 30 %": {"phases": [EARLIER | {"batch_size": 8}, LATER]},
    "length warm-up: 32 tokens in the first 30 %": {"phases": [EARLIER | {"max_length": 32, "batch_size": 64}, LATER]},
    "no repeated paragraphs": {},
    "documents of 500 characters or more": {},
    "output matrix of its own": {},
    "output matrix of its own, full learning rate": {},
}
TEXTS = {
    "no repeated paragraphs": Filters(duplicates="paragraphs"),
    "documents of 500 characters or more": Filters(min_characters=500),
}
UNTIED = {"output matrix of its own": 0.3, "output matrix of its own, full learning rate": 1.0}
"""Scale of the learning rate of the output matrix. That of the word embeddings stays at 0.3."""
MEANS = (2, 4, 8)
DECAYS = (0.3, 0.5, 0.7)
"""Of exponential means, from one checkpoint to the next."""
TIMED: dict[str, dict[str, Any]] = {"fp32": {"training": {"precision": "fp32"}}}
"""What changes the speed, and hardly the loss."""
EVERYWHERE = "last layer at all tokens"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--only", nargs="+", choices=list(RUNS), default=list(RUNS), metavar="RUN")
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--means", action="store_true")
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    if args.table:
        print(table(args.work, args.out))
    elif args.means:
        means(args.shards, args.work)
    elif args.times:
        times(args.shards, args.work, args.steps, args.rounds, args.threads)
    else:
        for name in args.only:
            if name in TEXTS and args.corpus is None:
                print(f"{name}: left out, because it needs --corpus")
            elif not folder(args.work, name).with_suffix(".json").exists():
                measure(name, args.shards, args.work, args.steps, args.threads, args.corpus)


def folder(work: Path, name: str) -> Path:
    """Return the run folder of a run."""
    return work / "".join(character if character.isalnum() else "-" for character in name)


def recipe_of(name: str, steps: int) -> PretrainConfig:
    """Return the recipe of a run, with as many tokens as `modern-mini` in so many steps."""
    changes = {"extends": RECIPE, **(RUNS | TIMED)[name]}
    count = round(steps * tokens_of_a_step({"extends": RECIPE}) / tokens_of_a_step(changes))
    training = {"steps": count, "eval_every": count}
    if name == RECIPE:  # for --means
        training |= {"checkpoint_every": 25, "keep_checkpoints": 1_000}
    return config.load(PretrainConfig, changes | {"training": changes.get("training", {}) | training}, "pretrain")


def tokens_of_a_step(settings: dict[str, Any]) -> float:
    """Return the mean number of tokens of a step over the phases of a recipe."""
    recipe = config.load(PretrainConfig, settings, "pretrain")
    ends = [phase.end_step for phase in recipe.resolved_phases]
    tokens = [phase.batch_size * phase.layout.max_length for phase in recipe.resolved_phases]
    return sum(np.diff([0, *ends]) * tokens) / ends[-1]


def measure(name: str, shards: Path, work: Path, steps: int, threads: int, corpus: Path | None) -> None:
    """Train one model, and write its loss to WORK/NAME.json."""
    recipe, run = recipe_of(name, steps), folder(work, name)
    held_out = open_shards(shards)
    if name in UNTIED:
        found = untied(recipe, held_out, threads, UNTIED[name])
    else:
        text = filtered(name, shards, work, corpus) if name in TEXTS and corpus else shards
        bertie.pretrain(recipe, text, run, threads=threads)
        last = read_metrics(run, "train")[-1]
        found = {"loss": held_out_loss(run, held_out, "documents")}
        found |= {"tokens": last["tokens"], "seconds": last["seconds"]}
    found = {"name": name, "steps": recipe.training.steps, **found, "environment": environment(threads)}
    storage.write_json(run.with_suffix(".json"), found)
    print(name, found["loss"], flush=True)


def filtered(name: str, shards: Path, work: Path, corpus: Path) -> Path:
    """Prepare the corpus with the filters of a run and the tokenizer of SHARDS. Returns the new shards.

    A document that loses a paragraph may change its split. In the Simple English Wikipedia, 18 of the 1,417 documents that
    score the runs become training text in this way.
    """
    out, opened = work / f"{folder(work, name).name}-shards", open_shards(shards)
    if not out.exists():
        share = opened.manifest["eval_share"]
        bertie.prepare(corpus, opened.tokenizer, out, eval_share=share, filters=TEXTS[name])
    return out


def untied(recipe: PretrainConfig, shards: Shards, threads: int, lr_scale: float) -> dict[str, float]:
    """Train a model whose masked-LM head has an output matrix of its own. It begins as a copy of the word embeddings."""
    models: list[Model] = []

    def untie(job: TrainingJob) -> None:
        head: Any = job.model.heads["mlm"]
        head.output = nn.Embedding.from_pretrained(head.word[0].weight.detach().clone(), freeze=False)
        head.word = (head.output,)
        decay = job.optimizer.param_groups[0]["weight_decay"]
        group = {"params": [head.output.weight], "weight_decay": decay, "lr_scale": lr_scale}
        job.optimizer.add_param_group(group)
        models.append(job.model)

    runtime.use_threads(threads)
    sized = with_vocab_size(recipe, shards.tokenizer)
    step, begun = our_steps(sized, shards, threads, untie), time.monotonic()
    for _ in range(sized.training.steps):
        step()
    seconds = time.monotonic() - begun
    return {"loss": model_loss(models[0], shards, "documents"), "seconds": seconds}


def means(shards: Path, work: Path) -> None:
    """Score means of the checkpoints of the first run, and write them to WORK/means.json."""
    checkpoints = [read_checkpoint(each) for each in list_checkpoints(folder(work, next(iter(RUNS))))]
    opened, found = open_shards(shards), {}
    last = len(checkpoints) - 1
    shares = {
        f"mean of the last {count} checkpoints": [0.0] * (last + 1 - count) + [1 / count] * count
        for count in MEANS
        if count <= len(checkpoints)
    }
    for decay in DECAYS:
        tail = [(1 - decay) * decay ** (last - index) for index in range(1, last + 1)]
        shares[f"exponential mean of all checkpoints, decay {decay}"] = [decay**last, *tail]
    for name, weighted in shares.items():
        mean = {
            key: sum(
                share * checkpoint.weights[key].float() for share, checkpoint in zip(weighted, checkpoints, strict=True)
            )
            for key in checkpoints[-1].weights
        }
        found[name] = loss_of(replace(checkpoints[-1], weights=mean), opened, "documents")
        print(name, found[name], flush=True)
    storage.write_json(work / "means.json", found)


def times(folder: Path, work: Path, steps: int, rounds: int, threads: int) -> None:
    """Measure the microseconds per token of each run, and write them to WORK/times.json."""
    shards, used = open_shards(folder), runtime.use_threads(threads)
    timed = {name: changes for name, changes in (RUNS | TIMED).items() if name not in TEXTS | UNTIED}
    names = [name for name, changes in timed.items() if not {"seed", "phases", "schedule"} & set(changes)]
    recipes = {name: with_vocab_size(recipe_of(name, steps), shards.tokenizer) for name in names}
    steppers = {name: our_steps(recipe, shards, used) for name, recipe in recipes.items()}
    steppers[EVERYWHERE] = our_steps(recipes[RECIPE], shards, used, last_layer_everywhere)
    tokens = {name: recipe.training.batch_size * recipe.layout.max_length for name, recipe in recipes.items()}
    found = {
        name: 1e6 * median(seconds) / tokens.get(name, tokens[RECIPE])
        for name, seconds in time_in_turn(steppers, rounds).items()
    }
    storage.write_json(work / "times.json", {"environment": environment(used), "microseconds": found})
    for name, value in found.items():
        print(f"{name}: {value:.0f} µs per token, × {value / found[RECIPE]:.3f}")


def last_layer_everywhere(job: TrainingJob) -> None:
    """Make the encoder compute its last layer for all tokens, not only for those that are predicted."""
    encoder = job.model.encoder
    whole = encoder.forward

    def forward(batch: Batch, rows: Tensor | None = None, all_layers: bool = False) -> Hidden:
        return Hidden(whole(batch, None, all_layers).last[rows])

    encoder.forward = forward


def table(work: Path, out: Path | None) -> str:
    """Return the losses as a table, and write them to `out`."""
    done = [json.loads(path.read_text()) for name in RUNS if (path := folder(work, name).with_suffix(".json")).exists()]
    means_of, timed = (
        json.loads(path.read_text()) if (path := work / name).exists() else {} for name in ("means.json", "times.json")
    )
    if out is not None:
        storage.write_json(out, {"runs": done, "means": means_of, "times": timed})
    seeds = [each["loss"] for each in done if each["name"].startswith(RECIPE)]
    whole = float(np.mean(seeds)) if seeds else float("nan")
    speeds = timed.get("microseconds", {})
    lines = ["| Run | Loss | Difference to the mean of the seeds | Time per token |", "|---|---|---|---|"]
    for each in done:
        share = f"× {speeds[each['name']] / speeds[RECIPE]:.2f}" if each["name"] in speeds else "–"
        lines.append(f"| {each['name']} | {each['loss']:.3f} | {each['loss'] - whole:+.3f} | {share} |")
    for name, loss in means_of.items():
        lines.append(f"| {name} | {loss:.3f} | {loss - whole:+.3f} | – |")
    lines += [f"| {name} | – | – | × {speeds[name] / speeds[RECIPE]:.2f} |" for name in (*TIMED, EVERYWHERE) if speeds]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
