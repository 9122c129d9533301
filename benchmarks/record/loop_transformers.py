"""A plain training loop over transformers' ModernBertForMaskedLM: what many would write. Writes a folder for transformers.

    python benchmarks/record/loop_transformers.py SHARDS OUT --seconds 720 [--seed 0] [--batch-size 16] [--learning-rate 1e-3]

The sizes are those of `modern-mini`. Sequences of up to 128 tokens come from bertie's shards, padded; 30 % of the tokens are
masked. AdamW, 2 % warmup, then linear decay by the clock, fp32.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import transformers

from bertie.base import config
from bertie.base.contracts import FILLER
from bertie.batches.loader import Position
from bertie.corpus.shards import open_shards
from bertie.objectives import MaskedLM
from bertie.objectives.label_row import label_row
from bertie.pretraining.recipe import PretrainConfig, with_vocab_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    args = parser.parse_args()
    begun = time.monotonic()
    torch.manual_seed(args.seed)
    shards = open_shards(args.shards)
    recipe = with_vocab_size(config.load(PretrainConfig, "modern-mini", "pretrain"), shards.tokenizer)
    size, ids = recipe.model, shards.tokenizer
    settings = transformers.ModernBertConfig(
        vocab_size=ids.size,
        hidden_size=size.hidden_size,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=384,
        max_position_embeddings=8192,
        pad_token_id=ids.pad_id,
        cls_token_id=ids.cls_id,
        sep_token_id=ids.sep_id,
        bos_token_id=ids.cls_id,
        eos_token_id=ids.sep_id,
    )
    settings._attn_implementation = "sdpa"
    model = transformers.ModernBertForMaskedLM(settings).train()
    decayed, spared = ([p for p in model.parameters() if (p.ndim > 1) == matrix] for matrix in (True, False))
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": spared, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98), fused=True)
    phase, masks, step = recipe.resolved_phases[0], (MaskedLM(mlm_probability=0.3),), 0
    loss = torch.zeros(())
    for plan in phase.loader(shards, args.seed).steps(Position()):
        done = (time.monotonic() - begun) / args.seconds
        if done >= 1:
            break
        for number, row in enumerate(plan.all_rows):
            batch, targets = label_row(row, masks, ids, args.seed, plan.position.epoch, plan.position.step, number)
            lengths = batch.ragged.lengths.tolist()
            labels = torch.full((len(batch.input_ids),), -100)
            known = targets["mlm"].weight > 0
            labels[targets["mlm"].index[known]] = torch.as_tensor(targets["mlm"].label[known], dtype=torch.long)
            real = [number for number, example in enumerate(batch.example) if example != FILLER]
            texts, wanted = (part.split(lengths) for part in (torch.as_tensor(batch.input_ids).long(), labels))
            padded, wanted = (
                torch.nn.utils.rnn.pad_sequence([part[i] for i in real], batch_first=True, padding_value=value)
                for part, value in ((texts, ids.pad_id), (wanted, -100))
            )
            loss = model(input_ids=padded, attention_mask=(padded != ids.pad_id).long(), labels=wanted).loss
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = args.learning_rate * min(1.0, done / 0.02, 1 - done)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
    model.eval().save_pretrained(args.out)
    ids.save(args.out, 512)
    print(f"{step} steps, loss {float(loss.detach()):.3f}")


if __name__ == "__main__":
    main()
