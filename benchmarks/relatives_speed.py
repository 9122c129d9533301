"""Speed of pre-training BERT's relatives: bertie and transformers, at the sizes of GPT-2 small and ELECTRA-small.

    OMP_NUM_THREADS=1 python benchmarks/relatives_speed.py --gpt2 SHARDS --electra SHARDS \
        --out benchmarks/results/relatives_speed.json [--rounds 5] [--precisions fp32 bf16] [--texts chunks documents]

The recipes are `gpt2-small` (clm) and `electra-small-paper` (rtd), with their dropout. Prepare the shards with byte-level BPE of
50,257 entries and with WordPiece of 30,522 entries. A step has at most --tokens tokens of real text:

- `chunks`: the concatenated documents, in sequences of exactly the recipe's length, as run_clm.py makes them. No side pads.
- `documents`: whole documents, truncated to the recipe's length. transformers pads a batch to its longest document.

The peer of `clm` is GPT2LMHeadModel with its own loss. transformers has no class for ELECTRA's pre-training. So its peer
combines ElectraForMaskedLM and ElectraForPreTraining, which share their embeddings, and samples with torch.multinomial.
`transformers` computes the generator's logits at every token, as the class does; `selected` only at the masked tokens, which
takes a rewrite of the class's forward pass. Both sides run the forward and backward pass, gradient clipping and fused AdamW.

First, both sides compute the loss and the gradient norm of the same weights and tokens without dropout, in fp32: the script stops
if they differ. Then each round times a step of each side in turn. Ratios, with [lowest, median, highest] over the rounds, are the
peer's time divided by bertie's. OMP_NUM_THREADS sets the threads.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from bertie.base import config, runtime, seeding, storage
from bertie.base.contracts import FILLER, Sequence
from bertie.batches.collate import collate, filler, join
from bertie.batches.loader import Position, Step
from bertie.checkpoints.folder import write_model
from bertie.corpus.shards import Shards, open_shards
from bertie.model.encoder import build_encoder, with_dropout
from bertie.model.encoders.electra import sample
from bertie.model.flops import model_flops
from bertie.model.model import Model
from bertie.objectives.label_row import label_row
from bertie.pretraining.initial_weights import new_model
from bertie.pretraining.recipe import PretrainConfig, with_vocab_size
from pretrain_speed import Precision, grid, masked_labels, plain_stepper, spread, stepper
from results import environment

RECIPES = {"gpt2": "gpt2-small", "electra": "electra-small-paper"}
Text = Literal["chunks", "documents"]
Sampler = Callable[[Tensor, Tensor], Tensor]  # logits [P, V] and random numbers [P] → tokens [P]


class Peer(NamedTuple):
    """A model of transformers."""

    parameters: list[nn.Parameter]
    loss: Callable[[Step], Tensor]


@dataclass(frozen=True)
class Figures:
    """Results of one recipe, text and precision.

    tokens_per_second: median of each side. wall, processor: ratios of both times to bertie's. gflop: matrix products of bertie's
    step. gflops: rate of the products if they were all of bertie's step. matrix_gflops: rate of a large product alone.
    """

    tokens: int
    tokens_per_second: dict[str, float]
    wall: dict[str, list[float]]
    processor: dict[str, list[float]]
    gflop: float
    gflops: float
    matrix_gflops: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in RECIPES:
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    parser.add_argument("--texts", nargs="+", default=["chunks", "documents"], choices=["chunks", "documents"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of a step (default: 4096)")
    args = parser.parse_args()
    threads = runtime.use_threads()
    results: dict[str, Any] = {"environment": environment(threads)}
    for name in (name for name in RECIPES if getattr(args, name)):
        shards = open_shards(getattr(args, name))
        recipe = with_vocab_size(config.load(PretrainConfig, RECIPES[name], "pretrain"), shards.tokenizer)
        results[f"{RECIPES[name]} agreement"] = agreement(recipe, shards)
        print(name, results[f"{RECIPES[name]} agreement"], flush=True)
        for text in args.texts:
            for precision in args.precisions:
                figures = measure(recipe, shards, text, precision, args.tokens, args.rounds)
                results[f"{RECIPES[name]} {text} {precision}"] = asdict(figures)
                print(name, text, precision, figures, flush=True)
                storage.write_json(args.out, results)


def measure(
    recipe: PretrainConfig, shards: Shards, text: Text, precision: Precision, tokens: int, rounds: int
) -> Figures:
    work = [step_of(recipe, shards, text, number, tokens) for number in range(rounds + 1)]
    model = new_model(recipe.model, recipe.objectives, 0).train()
    steps = {"bertie": stepper(model, precision, weights={each.kind: each.weight for each in recipe.objectives})}
    for name, peer in peers(recipe, model, shards).items():
        steps[name] = plain_stepper(peer.parameters, peer.loss, precision)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for one in work:
        for name, step in steps.items():
            times[name].append(timed(partial(step, one)))
    micros = [one.micro_batches[0] for one in work[1:]]
    rest = {name: np.array(values[1:]) for name, values in times.items()}  # the first round warms up
    ratios = {name: values / rest["bertie"] for name, values in rest.items() if name != "bertie"}
    real = np.array([micro.tokens for micro in micros])
    gflop = median(model_flops(model, micro) for micro in micros) / 1e9
    del steps
    gc.collect()
    return Figures(
        int(np.median(real)),
        {name: round(float(np.median(real / values[:, 0])), 1) for name, values in rest.items()},
        {name: spread(values[:, 0].tolist()) for name, values in ratios.items()},
        {name: spread(values[:, 1].tolist()) for name, values in ratios.items()},
        round(gflop, 1),
        round(gflop / float(np.median(rest["bertie"][:, 1])), 1),
        round(runtime.matrix_rate(precision, torch.device("cpu")) / 1e9, 1),
    )


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of the clock and of the processors."""
    start = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start[0], time.process_time() - start[1]


def agreement(recipe: PretrainConfig, shards: Shards) -> dict[str, dict[str, list[float]]]:
    """Return loss and gradient norm, bertie's and the peer's, without dropout. Stop if they differ."""
    without = replace(recipe, model=with_dropout(recipe.model, 0.0, 0.0))
    found = {}
    for text in ("chunks", "documents"):
        work = step_of(recipe, shards, text, 0, 1024)
        model = new_model(without.model, without.objectives, 0).train()
        for name, peer in peers(without, model, shards, sample).items():
            model.zero_grad()
            losses = model(work.micro_batches[0].tensors())
            terms = [each.weight * losses[each.kind].total / losses[each.kind].count for each in recipe.objectives]
            pairs = []
            for parameters, loss in (
                (list(model.parameters()), torch.stack(terms).sum()),
                (peer.parameters, peer.loss(work)),
            ):
                loss.backward()
                pairs.append((loss.item(), float(nn.utils.clip_grad_norm_(parameters, 1.0))))
            for ours, theirs in zip(*pairs, strict=True):
                if abs(ours - theirs) > 1e-4 * theirs:
                    raise SystemExit(
                        f"{text}: {name} has {theirs}, and bertie has {ours}: they do not do the same work"
                    )
            found[f"{text} {name}"] = dict(
                zip(("loss", "gradient norm"), map(list, zip(*pairs, strict=True)), strict=True)
            )
    return found


def step_of(recipe: PretrainConfig, shards: Shards, text: Text, number: int, tokens: int) -> Step:
    """Build a step with one row of `tokens` packed tokens."""
    length, chosen, free = recipe.layout.max_length, [], tokens
    candidates = chunks(shards, length, number) if text == "chunks" else documents(shards, length, number)
    for sequence in candidates:
        if len(sequence) > free:
            break
        chosen.append(sequence)
        free -= len(sequence)
    row = collate(chosen + filler(free, shards.tokenizer.pad_id, length), length)
    labeled = label_row(row, recipe.objectives, shards.tokenizer, 0, seeding.LABELS, 0, number)
    return Step([join([labeled])], Position(), Position())


def chunks(shards: Shards, length: int, seed: int) -> Iterator[Sequence]:
    """Yield consecutive sequences of exactly `length` tokens, from a random document on: [CLS] text [SEP] text … [SEP]."""
    cls, sep = shards.tokenizer.cls_id, shards.tokenizer.sep_id
    held: list[int] = []
    for document in following(shards, int(np.random.default_rng(seed).integers(document_count(shards)))):
        held += [*document, sep]
        while len(held) >= length - 2:
            yield sequence_of([cls, *held[: length - 2], sep])
            held = held[length - 2 :]


def documents(shards: Shards, length: int, seed: int) -> Iterator[Sequence]:
    """Yield consecutive documents, truncated to `length` tokens, from a random one on."""
    cls, sep = shards.tokenizer.cls_id, shards.tokenizer.sep_id
    for document in following(shards, int(np.random.default_rng(seed).integers(document_count(shards)))):
        yield sequence_of([cls, *document[: length - 2], sep])


def document_count(shards: Shards) -> int:
    return len(shards.train.document_starts) - 1


def following(shards: Shards, first: int) -> Iterator[list[int]]:
    starts = shards.train.document_starts
    for number in range(first, first + document_count(shards)):
        document = number % document_count(shards)
        yield shards.train.slice(*starts[document : document + 2].tolist())[0].tolist()


def sequence_of(ids: list[int]) -> Sequence:
    return Sequence(np.array(ids, np.int32), np.zeros(len(ids), np.int32), np.ones(len(ids), bool))


def draw_each(logits_PV: Tensor, draw_P: Tensor) -> Tensor:  # noqa: ARG001 - the signature of `Sampler`
    """Sample as a user of torch does."""
    return torch.multinomial(logits_PV.softmax(-1), 1)[:, 0]


def peers(recipe: PretrainConfig, model: Model, shards: Shards, sampler: Sampler = draw_each) -> dict[str, Peer]:
    """Build the models of transformers with the weights of a model of bertie."""
    if model.generator is None:
        [head] = model.heads
        theirs = transferred(transformers.GPT2LMHeadModel, model.encoder, {head: model.heads[head]}, shards)
        return {"transformers": Peer(list(theirs.parameters()), lambda work: theirs(**inputs(work)).loss)}
    own = build_encoder(model.generator.config)
    own.load_state_dict({**model.encoder.state_dict(), **model.generator.state_dict()})
    found = {}
    for name in ("transformers", "selected"):
        discriminator = transferred(
            transformers.ElectraForPreTraining, model.encoder, {"rtd": model.heads["rtd"]}, shards
        )
        generator = transferred(transformers.ElectraForMaskedLM, own, {"mlm": model.heads["mlm"]}, shards)
        generator.electra.embeddings = discriminator.electra.embeddings
        generator.generator_lm_head.weight = discriminator.electra.embeddings.word_embeddings.weight
        electra = Electra(generator, discriminator, sampler, name == "selected", recipe.objectives[1].weight)
        found[name] = Peer(list(electra.parameters()), electra)
    return found


def transferred(kind: Any, encoder: Any, heads: dict[str, nn.Module], shards: Shards) -> Any:
    """Return a model of transformers with the weights of an encoder and its heads."""
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), Model(encoder, heads), shards.tokenizer)
        return kind.from_pretrained(folder).train()


class Electra(nn.Module):
    """ELECTRA's pre-training with the classes of transformers."""

    def __init__(self, generator: Any, discriminator: Any, sampler: Sampler, selected: bool, weight: float):
        super().__init__()
        self.generator, self.discriminator = generator, discriminator
        self.sampler, self.selected, self.weight = sampler, selected, weight

    def forward(self, work: Step) -> Tensor:
        """Return the loss. `selected`: compute the generator's logits only at the masked tokens."""
        given = inputs(work)
        labels, original, ordinary, draw = (given.pop(name) for name in ("labels", "original", "ordinary", "draw"))
        masked = labels != -100
        if self.selected:
            hidden = self.generator.electra(**given).last_hidden_state[masked]
            logits = self.generator.generator_lm_head(self.generator.generator_predictions(hidden))
            loss = F.cross_entropy(logits, labels[masked])
        else:
            output = self.generator(**given, labels=labels)
            logits, loss = output.logits.detach()[masked], output.loss
        with torch.no_grad():
            filled = given["input_ids"].masked_scatter(masked, self.sampler(logits.detach(), draw[masked]))
        found = self.discriminator(**{**given, "input_ids": filled}).logits[ordinary]
        replaced = (filled != original)[ordinary].float()
        return loss + self.weight * F.binary_cross_entropy_with_logits(found, replaced)


def inputs(work: Step) -> dict[str, Tensor]:
    """Return a step as padded tensors [S, longest]. Without padding, there is no attention mask, which is faster."""
    [micro] = work.micro_batches
    batch, targets = micro.batch, micro.targets
    lengths = batch.ragged.lengths[batch.example != FILLER]
    longest = int(lengths.max())
    made = {"input_ids": grid(micro, batch.input_ids, longest)}
    if lengths.min() < longest:
        made["attention_mask"] = grid(micro, np.ones_like(batch.input_ids), longest)
    if "mlm" not in targets:
        return {**made, "labels": grid(micro, batch.input_ids, longest, -100)}
    return {
        **made,
        "labels": grid(micro, masked_labels(micro), longest, -100),
        "original": grid(micro, targets["rtd"].label, longest),
        "ordinary": grid(micro, targets["rtd"].weight > 0, longest),
        "draw": grid(micro, targets["rtd"].draw, longest),
    }


if __name__ == "__main__":
    main()
