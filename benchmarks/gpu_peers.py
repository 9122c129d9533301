"""What gpu.py times: steps of random tokens, and functions that run such a step with bertie or with transformers.

Both sides have the same sequences in every forward pass, the same weights at the start, bf16 (autocast; fp32 on a CPU), no
dropout, gradient clipping and fused AdamW. The peers of transformers are one model, run in three ways:

    eager     SDPA; sequences padded to the longest of the forward pass, rounded up to a multiple of 8
    compiled  the same under torch.compile, with a dynamic number of sequences
    packed    no padding: FlexAttention, which transformers compiles, with block masks from transformers, and logits of the
              predicted tokens only (`sparse_prediction`). Only ModernBERT: BertForPreTraining reads the first [CLS] of a row.

transformers can also run without padding on the package flash-attn, which is not part of torch; it is not measured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
import transformers
from torch import Tensor

from bertie.base import config, runtime, seeding
from bertie.base.contracts import FILLER, Batch, MicroBatch, Ragged, Sequence
from bertie.batches.collate import collate, filler, join
from bertie.batches.loader import Position, Step
from bertie.batches.packing import pack
from bertie.checkpoints.families import family_of
from bertie.checkpoints.families.family import to_huggingface
from bertie.checkpoints.huggingface import shapes_of, to_config_json, transformers_heads
from bertie.model.attention.attention import automatic, eager
from bertie.model.attention.window import AttentionInput, Pattern
from bertie.model.config import TransformerConfig
from bertie.objectives.label_row import label_row
from bertie.pretraining.initial_weights import new_model
from bertie.pretraining.recipe import PretrainConfig, with_vocab_size
from bertie.tokenizers.tokenizer import SPECIAL_TOKENS, Tokenizer
from bertie.training.distributed import SINGLE_PROCESS
from bertie.training.memory import is_out_of_memory, rows_that_fit
from gpu_run import dtype, free_memory, short, synchronize
from pretrain_speed import Precision, masked_labels, padded, stepper

Lengths = Literal["real", "equal"]
Peer = Literal["eager", "compiled", "packed"]
Row = tuple[Batch, dict[str, Any]]
DISTINCT = 4  # different steps, which take turns
# Deciles of the lengths of the sequences that each layout makes from the Simple English Wikipedia (30,000 entries).
DECILES = {
    ("doc_sentences", 128): (4, 51, 70, 88, 101, 109, 115, 119, 122, 126, 128),
    ("pairs", 512): (5, 59, 72, 87, 104, 126, 160, 217, 322, 490, 512),
}


@dataclass(frozen=True)
class Case:
    """What is timed: a recipe, the longest sequences in tokens, and the tokens of a step and of a row."""

    recipe: str
    length: int
    tokens: int
    row: int
    seconds: float
    """How long the part without optional peers may take, compilation included: a guess, for the budget."""

    @property
    def name(self) -> str:
        return f"{self.recipe}-{self.length}-{self.tokens}"


def tokenizer_of(size: int) -> Tokenizer:
    """Return a tokenizer with meaningless entries."""
    return Tokenizer.build([*SPECIAL_TOKENS, *(f"w{number}" for number in range(size - len(SPECIAL_TOKENS)))])


def recipe_of(case: Case, tokenizer: Tokenizer) -> PretrainConfig:
    """Return the recipe with the sequences and steps of a case."""
    recipe = config.load(PretrainConfig, case.recipe, "pretrain")
    sizes = {"batch_size": case.tokens // case.length, "row_tokens": case.row}
    layout, training = replace(recipe.layout, max_length=case.length), replace(recipe.training, **sizes)
    return with_vocab_size(replace(recipe, layout=layout, training=training, phases=()), tokenizer)


def random_rows(recipe: PretrainConfig, tokenizer: Tokenizer, lengths: Lengths, count: int) -> list[Row]:
    """Return packed and labeled rows of random tokens. Rows of equal lengths have no filler, others hardly any."""
    rng, row, most = seeding.generator(0, 0), recipe.training.row_tokens, recipe.layout.max_length
    if lengths == "equal":
        drawn = np.full(count * row // most, most)
    else:
        deciles = DECILES[recipe.layout.kind, most]
        share = rng.random(math.ceil(1.3 * count * row / np.mean(deciles)) + most)
        drawn = np.rint(np.interp(share, np.linspace(0, 1, len(deciles)), deciles)).astype(int)
    rows = []
    for number, members in enumerate(pack(drawn, row)[:count]):
        made = [random_sequence(int(drawn[i]), recipe.layout.kind == "pairs", tokenizer, rng) for i in members]
        gap = filler(row - sum(map(len, made)), tokenizer.pad_id, most)
        rows.append(
            label_row(collate(made + gap, most), recipe.objectives, tokenizer, 0, seeding.LABELS, number, progress=0)
        )
    return rows


def random_sequence(length: int, pair: bool, tokenizer: Tokenizer, rng: np.random.Generator) -> Sequence:
    """Return [CLS] … [SEP] or, for a pair, [CLS] … [SEP] … [SEP] of random tokens."""
    ids = rng.integers(len(SPECIAL_TOKENS), tokenizer.size, length).astype(np.int32)
    ids[0], ids[-1] = tokenizer.cls_id, tokenizer.sep_id
    segments = np.zeros(length, np.int32)
    if pair:
        ids[length // 2] = tokenizer.sep_id
        segments[length // 2 + 1 :] = 1
    return Sequence(ids, segments, np.ones(length, bool), pair_label=int(rng.integers(2)) if pair else -1)


def largest_divisor(rows: int, most: int) -> int:
    """Return the largest divisor of `rows` that is not above `most`."""
    return next(size for size in range(min(most, rows), 0, -1) if rows % size == 0)


def steps_of(rows: list[Row], per_step: int, per_pass: int) -> list[Step]:
    """Join rows into steps with forward passes of `per_pass` rows."""
    passes = [join(rows[start : start + per_pass]) for start in range(0, len(rows), per_pass)]
    size, nowhere = per_step // per_pass, Position()
    return [Step(passes[start : start + size], nowhere, nowhere) for start in range(0, len(passes), size)]


def shape(steps: list[Step]) -> dict[str, Any]:
    """Return what the sequences are: their mean length, and how many cells a padded forward pass has per token."""
    passes = [micro for step in steps for micro in step.micro_batches]
    counts = [int((micro.batch.example != FILLER).sum()) for micro in passes]
    tokens, sequences = sum(micro.tokens for micro in passes), sum(counts)
    cells = sum(count * padded_length(micro) for count, micro in zip(counts, passes, strict=True))
    packed = sum(len(micro.batch.input_ids) for micro in passes)
    return {"mean_length": tokens / sequences, "cells_per_token": cells / tokens, "filler": 1 - tokens / packed}


class Bench:
    """The models of a case, with the same weights on both sides, and its steps.

    Attributes:
        per_pass: Rows per forward pass: as many as fit for bertie and for the padded peer.
        losses: The loss of the first forward pass: of bertie before and after compilation, and of transformers.
        errors: Why a part of the preparation failed.
        compile_seconds: Of bertie's first forward and backward pass with compiled layers.
    """

    def __init__(self, case: Case, tokenizer: Tokenizer, peers: bool):
        self.device, self.recipe = runtime.device(), recipe_of(case, tokenizer)
        on_gpu = self.device.type == "cuda"
        self.precision: Precision = "bf16" if on_gpu else "fp32"
        self._backend = "inductor" if on_gpu else "aot_eager"  # on a CPU, gpu.py only tries out its own code
        assert isinstance(self.recipe.model, TransformerConfig)
        self.model = new_model(self.recipe.model, self.recipe.objectives, 0).to(self.device).train()
        self.rows_per_step = case.tokens // case.row
        kinds: tuple[Lengths, ...] = ("real", "equal")
        count = DISTINCT * self.rows_per_step
        self._rows = {kind: random_rows(self.recipe, tokenizer, kind, count) for kind in kinds}
        self.per_pass, self.errors, self.losses = self._rows_that_fit(), dict[str, str](), dict[str, float]()
        self.peer: Any = None
        self._runs: dict[str, Callable[[Step], None]] = {}
        if peers:
            try:
                self._build_peer()
            except Exception as error:  # whatever it is, bertie is measured
                self.errors["transformers"], self.peer = short(error), None
                free_memory()
        self.steps = {kind: steps_of(rows, self.rows_per_step, self.per_pass) for kind, rows in self._rows.items()}
        self.compile_seconds = self._compile()

    def _rows_that_fit(self) -> int:
        rows, optimizer = self._rows["equal"], self.recipe.optimizer.build(self.model)
        most = self.rows_per_step
        if self.device.type == "cuda" and most > 1:
            most = rows_that_fit(self.model, optimizer, [lambda n: join(rows[:n])], self.precision, SINGLE_PROCESS)
        return largest_divisor(self.rows_per_step, most)

    def _build_peer(self) -> None:
        """Build the model of transformers, load bertie's weights, and lower `per_pass` until a padded step fits."""
        size = self.recipe.model
        heads, family = transformers_heads(self.model) or {}, family_of(size)
        values = to_config_json(size, heads.values(), (), 0)
        kind = getattr(transformers, values["architectures"][0])
        with torch.device(self.device):
            self.peer = kind(kind.config_class(**values)).train()
        weights = to_huggingface(family, self.model.state_dict() | family.derived(size), shapes_of(self.model))
        found = self.peer.load_state_dict(family.write(size, weights), strict=False)
        tied = ("position_ids", "decoder.weight", "decoder.bias")
        if left := [name for name in found.missing_keys if not name.endswith(tied)]:
            raise RuntimeError(f"the weights of transformers are others: {left}")
        self.optimizer = torch.optim.AdamW(self.peer.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
        self._measure_peer_loss()
        _held = self._memory_of_recordings()  # bertie's, which do not exist yet
        while True:
            steps = steps_of(self._rows["real"], self.rows_per_step, self.per_pass)
            widest = max(steps, key=padded_cells)
            try:
                return self.their_run("eager", [widest])(widest)
            except RuntimeError as error:
                if not is_out_of_memory(error) or self.per_pass == 1:
                    raise
            self.recover()
            self.per_pass = largest_divisor(self.rows_per_step, self.per_pass - 1)

    def _measure_peer_loss(self) -> None:
        self._switch("sdpa", False)
        inputs = {name: value.to(self.device) for name, value in padded_inputs(join(self._rows["real"][:1])).items()}
        with torch.no_grad(), runtime.autocast(self.precision, self.device):
            self.losses["transformers"] = float(self.peer(**inputs).loss)

    def _memory_of_recordings(self) -> Tensor | None:
        """Return as much memory as bertie's recorded steps will keep: about that of a forward and backward pass."""
        if self.device.type != "cuda":
            return None
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self._loss(join(self._rows["real"][: self.per_pass]))
        needed = torch.cuda.max_memory_allocated() - before
        free_memory()
        return torch.empty(needed, dtype=torch.uint8, device=self.device)

    def _loss(self, micro: MicroBatch) -> float:
        """Return bertie's mean loss, the sum over the heads. Includes a backward pass, whose gradients are dropped."""
        with runtime.autocast(self.precision, self.device):
            losses = self.model(micro.tensors(self.device))
        total = torch.stack([loss.total / loss.count for loss in losses.values()]).sum()
        total.backward()
        self.model.zero_grad(set_to_none=True)
        return float(total.detach())

    def _compile(self) -> float:
        """Compile bertie's layers, and restore the uncompiled ones if that fails. Returns the seconds of the first pass."""
        first = self.steps["real"][0].micro_batches[0]
        small = join(self._rows["real"][:1])
        self.losses["bertie, not compiled"] = self._loss(small)
        before = self._loss(first)
        uncompiled = [transformer.call for transformer in self.model.transformers]
        for transformer in self.model.transformers:
            transformer.compile_layers(self._backend, half=self.precision == "bf16")
        started = time.perf_counter()
        try:
            after = self._loss(first)
            synchronize()
        except Exception as error:  # compilers, drivers and kernels raise many kinds of errors
            self.errors["bertie's compilation"] = short(error)
            for transformer, call in zip(self.model.transformers, uncompiled, strict=True):
                transformer.call = call
            return 0.0
        self.losses |= {"first pass, not compiled": before, "first pass, compiled": after}
        return time.perf_counter() - started

    def run(self, side: str, lengths: Lengths) -> Callable[[Step], None]:
        """Return the function that runs a step of a side, without waiting for the GPU."""
        key = side if side == "bertie" else f"{side} {lengths}"
        if key not in self._runs:
            if side == "bertie":
                weights = {each.kind: each.weight for each in self.recipe.objectives}
                self._runs[key] = stepper(self.model, self.precision, False, weights)
            else:
                self._runs[key] = self.their_run(side, self.steps[lengths])
        return self._runs[key]

    def their_run(self, peer: str, steps: list[Step]) -> Callable[[Step], None]:
        """Return the function that runs one of these steps with transformers. Their inputs are prepared here."""
        if self.peer is None:
            raise RuntimeError(self.errors.get("transformers", "not built"))
        prepare = packed_inputs if peer == "packed" else padded_inputs
        inputs = {id(step): [self._pinned(prepare(micro)) for micro in step.micro_batches] for step in steps}
        forward = torch.compile(self.peer, backend=self._backend) if peer == "compiled" else self.peer
        parameters, optimizer = list(self.peer.parameters()), self.optimizer

        def step(work: Step) -> None:
            self._switch("flex_attention" if peer == "packed" else "sdpa", peer == "packed")
            passes = inputs[id(work)]
            for each in passes:
                moved: dict[str, Any] = {name: value.to(self.device, non_blocking=True) for name, value in each.items()}
                if peer == "packed":
                    moved["attention_mask"] = block_masks(self.peer.config, moved.pop("sequence"))
                if peer == "compiled":
                    _mark_dynamic(moved)
                with runtime.autocast(self.precision, self.device):
                    loss = forward(**moved).loss
                (loss / len(passes)).backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad()

        return step

    def recover(self) -> None:
        """Free what a failed step has left. A training loop that was interrupted cannot go on, so the next one is new."""
        self._runs.clear()
        self.model.zero_grad(set_to_none=True)
        if self.peer is not None:
            self.peer.zero_grad(set_to_none=True)
        free_memory()

    def _switch(self, attention: str, sparse: bool) -> None:
        """Set the attention of the peer, and whether it computes the logits of the predicted tokens only."""
        if self.peer.config._attn_implementation != attention:
            self.peer.set_attn_implementation(attention)
        if hasattr(self.peer, "sparse_prediction"):
            self.peer.sparse_prediction = sparse

    def _pinned(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: t.pin_memory() if self.device.type == "cuda" else t for name, t in inputs.items()}


def padded_length(micro: MicroBatch) -> int:
    """Return the longest sequence, rounded up to a multiple of 8, as for tensor cores."""
    return -(-int(micro.batch.ragged.lengths.max()) // 8) * 8


def padded_cells(step: Step) -> int:
    """Return the tokens of the largest padded forward pass of a step, padding included."""
    return max(int((micro.batch.example != FILLER).sum()) * padded_length(micro) for micro in step.micro_batches)


def padded_inputs(micro: MicroBatch) -> dict[str, Tensor]:
    """Return the inputs of transformers, [S, L], without a mask if nothing is padding."""
    inputs = padded(micro, padded_length(micro))
    if "nsp" not in micro.targets:
        inputs = {name: inputs[name] for name in ("input_ids", "attention_mask", "labels")}
    if inputs["attention_mask"].all():
        del inputs["attention_mask"]
    return inputs


def packed_inputs(micro: MicroBatch) -> dict[str, Tensor]:
    """Return the inputs of transformers without padding, [1, T]: `sequence` is the number of each token's sequence."""
    if "nsp" in micro.targets:
        raise ValueError("BertForPreTraining predicts from the first [CLS] of a row only, so its rows cannot be packed")
    batch = micro.batch
    values = {
        "input_ids": batch.input_ids,
        "position_ids": batch.position_ids,
        "labels": masked_labels(micro),
        "sequence": np.repeat(np.arange(len(batch.example)), batch.ragged.lengths),
    }
    return {name: torch.from_numpy(value.astype(np.int64))[None] for name, value in values.items()}


def block_masks(settings: Any, sequence: Tensor) -> dict[str, Any]:
    """Return the block masks of ModernBERT's two kinds of layers: a token sees those of its own sequence only."""
    from transformers import masking_utils  # which imports torch's compiler

    same = masking_utils.packed_sequence_mask_function(sequence)
    make = {
        "full_attention": masking_utils.create_bidirectional_mask,
        "sliding_attention": masking_utils.create_bidirectional_sliding_window_mask,
    }
    shape = {"inputs_embeds": sequence[..., None], "attention_mask": None, "and_mask_function": same}
    return {kind: partial(function, settings)(**shape) for kind, function in make.items()}


def _mark_dynamic(inputs: dict[str, Tensor]) -> None:
    """Compile once for all numbers of sequences."""
    from torch._dynamo import maybe_mark_dynamic

    for tensor in inputs.values():
        maybe_mark_dynamic(tensor, 0)


def check_attention() -> dict[str, dict[str, float]]:
    """Return the relative errors of attention on packed sequences, against the formula in fp32."""
    device, heads, size, found = runtime.device(), 12, 64, {}
    lengths = torch.randint(1, 257, (12,), generator=torch.Generator().manual_seed(0))
    bounds = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(device)
    ragged, total = Ragged(bounds, 256), int(lengths.sum())
    for name, pattern in (("global", Pattern()), ("local", Pattern(window=64))):
        values = [torch.randn(total, heads, size, device=device, dtype=dtype()) for _ in range(4)]

        def run(attention: Any, kind: torch.dtype, values=values, pattern=pattern) -> list[Tensor]:
            q, k, v = (value.to(kind).requires_grad_() for value in values[:3])
            output = attention(AttentionInput(q, k, v, ragged, ragged, 0.0, pattern))
            return [output.detach(), *torch.autograd.grad(output, [q, k, v], values[3].to(kind))]

        pairs = zip(run(automatic, dtype()), run(eager, torch.float32), strict=True)
        errors = [float((a.float() - b).norm() / b.norm()) for a, b in pairs]
        found[name] = {"output": errors[0], "gradients": max(errors[1:])}
        if not max(errors) < 0.02:
            raise ValueError(f"the errors of {name} attention are {errors}")
    return found
