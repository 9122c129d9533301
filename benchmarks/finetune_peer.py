"""Fine-tuning quality beside transformers: same checkpoint, examples, batch, epochs, rates; five seeds, dropout on.

    python benchmarks/finetune_peer.py MODEL GLUE_FOLDER --who bertie|transformers --out FILE.json [--tasks cola …] [--seeds 0 …]

The peer is a plain PyTorch loop over transformers' AutoModelForSequenceClassification with AdamW, clipping at 1 and
its linear schedule. Every finished model is written at once, so a stopped benchmark goes on where it was.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bertie import config, runtime, streams
from bertie.checkpoints.folder import read_checkpoint
from bertie.tasks.data.rows import kept
from bertie.tasks.data.texts import Example, Texts
from bertie.tasks.metrics import classification_scores
from bertie.training.finetune import finetune
from bertie.training.settings import FinetuneConfig
from results import Results

RATE, BATCH, WARMUP = 5e-5, 32, 0.1


@dataclass(frozen=True)
class Setting:
    folder: str
    metric: str
    epochs: int
    examples: int = 0  # 0: all


SETTINGS = {
    "sst2-5000": Setting("SST-2", "accuracy", 1, 5000),
    "mrpc": Setting("MRPC", "f1", 3),
    "cola": Setting("CoLA", "matthews", 3),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("glue", type=Path)
    parser.add_argument("--who", choices=["bertie", "transformers"], required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    args = parser.parse_args()
    results = Results(args.out, args.model, runtime.use_threads())
    run = ours if args.who == "bertie" else theirs
    for task in args.tasks:
        setting = SETTINGS[task]
        names = [args.glue / setting.folder / f"{part}.tsv" for part in ("train", "dev")]
        train, dev = (kept(Texts().read(name), str(name), strict=True) for name in names)
        if setting.examples:
            order = streams.generator(0, streams.SUBSET).permutation(len(train))
            train = [train[i] for i in order[: setting.examples]]
        for seed in args.seeds:
            key = f"{task}/{args.who}/seed {seed}"

            def measure(setting=setting, train=train, dev=dev, seed=seed) -> dict[str, float]:
                started = time.monotonic()
                scores = run(args.model, train, dev, setting, seed)
                return {"score": scores[setting.metric], "seconds": round(time.monotonic() - started, 1)}

            print(key, results.measure(key, setting, measure), flush=True)


def ours(model: Path, train: list[Example], dev: list[Example], setting: Setting, seed: int) -> dict[str, float]:
    base = config.load(FinetuneConfig, "classify", "finetune")
    training = replace(base.training, epochs=setting.epochs, learning_rate=RATE, batch_size=BATCH, precision="fp32")
    schedule = replace(base.schedule, warmup=WARMUP)
    return finetune(
        replace(base, training=training, schedule=schedule, seed=seed), train, dev, read_checkpoint(model)
    ).scores


def theirs(model: Path, train: list[Example], dev: list[Example], setting: Setting, seed: int) -> dict[str, float]:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, get_linear_schedule_with_warmup

    labels = sorted({str(example.label) for example in train})
    torch.manual_seed(seed)
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    peer = AutoModelForSequenceClassification.from_pretrained(model, num_labels=len(labels), **dropout)
    tokenizer = AutoTokenizer.from_pretrained(model)

    def batch(examples: list[Example]) -> Any:
        texts = [[example.text for example in examples]]
        texts += [[example.text_pair for example in examples]] if examples[0].text_pair is not None else []
        return tokenizer(*texts, padding=True, truncation=True, max_length=128, return_tensors="pt")

    decayed = [p for p in peer.parameters() if p.ndim > 1]
    spared = [p for p in peer.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": spared, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, eps=1e-6, fused=True)
    steps = setting.epochs * -(-len(train) // BATCH)
    schedule = get_linear_schedule_with_warmup(optimizer, round(WARMUP * steps), steps)
    peer.train()
    for epoch in range(setting.epochs):
        order = np.random.default_rng([seed, epoch]).permutation(len(train))
        for start in range(0, len(train), BATCH):
            chosen = [train[i] for i in order[start : start + BATCH]]
            gold = torch.tensor([labels.index(str(example.label)) for example in chosen])
            peer(**batch(chosen), labels=gold).loss.backward()
            torch.nn.utils.clip_grad_norm_(peer.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    peer.eval()
    predicted: list[str] = []
    with torch.inference_mode():
        for start in range(0, len(dev), 64):
            logits = peer(**batch(dev[start : start + 64])).logits
            predicted += [labels[i] for i in logits.argmax(-1).tolist()]
    return classification_scores([str(example.label) for example in dev], predicted, labels)


if __name__ == "__main__":
    main()
