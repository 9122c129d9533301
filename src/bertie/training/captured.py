"""Optimizer steps that a GPU repeats from a recording (CUDA graphs), so that the host hardly works.

Without it, the host starts each of about a thousand kernels per step, which takes longer than the kernels of a small model.
A recording has fixed shapes and addresses. Therefore micro-batches are padded to one shape (`batches/fixed_shape.py`) and
copied to a fixed place (`static_inputs.py`). Steps whose micro-batches differ in their tokens are not recorded. There are
three recordings:

    first   sets the gradients from a step's first micro-batch
    next    adds the gradients of another micro-batch
    update  clips the gradients and takes an optimizer step

They contain the same operations in the same order as `StepFunction`. Results differ by rounding, because sums over padded
dimensions are computed in other pieces. Models with dropout are not recorded (`TransformerEncoder.capturable`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertie.base import console
from bertie.base.contracts import MicroBatch
from bertie.base.errors import first_line
from bertie.batches.fixed_shape import Capacity, arrays_of, padded, with_arrays
from bertie.batches.loader import Step
from bertie.model.transformer import use_layers
from bertie.training.static_inputs import StaticInputs
from bertie.training.step import Outcome, StepFunction

WARM_UPS = 2  # passes before a recording: compilers, libraries and allocators do some things only in the first ones
MOST_RECORDINGS = 8  # of a run and a number of tokens


class CudaGraphs:
    """Records CUDA graphs, which share their memory: none of them runs at the same time as another."""

    def __init__(self, device: torch.device):
        self._device, self._stream = device, torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, work: Callable[[], None]) -> None:
        """Do the work as it will be recorded."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            work()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return a function that repeats the GPU's part of the work, which is not done now."""
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        try:
            # thread_local: other threads of this process may use the GPU meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                work()
        except BaseException:
            # A failed capture leaves its stream current, and the random generator in a state that only a capture accepts.
            torch.cuda.set_stream(current)
            generator = torch.cuda.default_generators[torch.cuda.current_device()]
            generator.graphsafe_set_state(torch.Generator(self._device).graphsafe_get_state())
            raise
        return graph.replay

    @property
    def crowded(self) -> bool:
        """Return whether recordings leave too little memory for anything else."""
        free, total = torch.cuda.mem_get_info(self._device)
        return free < total / 4


@dataclass(frozen=True, eq=False)
class _Recording:
    """The recorded parts of a step, with the tensors that they read and write."""

    capacity: Capacity
    inputs: StaticInputs
    sums: Tensor
    """float64 [H, 3]: as `Outcome.sums`."""
    result: Tensor
    """float64 [H × 3 + 2]: the sums, the norm of the gradients, and whether the step was skipped."""
    first: Callable[[], None]
    next: Callable[[], None] | None
    """None: steps have a single micro-batch."""
    update: Callable[[], None]

    def fits(self, passes: list[MicroBatch]) -> bool:
        """Return whether it can compute a step of these micro-batches."""
        several = self.next is not None or len(passes) == 1
        return several and all(self.capacity.fits(micro) for micro in passes)


class CapturedSteps:
    """Computes optimizer steps by repeating recordings. It has the signature of `StepFunction`.

    A step that does not fit the recordings is recorded anew. If recording fails, a warning says so, and this step and all
    later ones are computed by the `StepFunction`.
    """

    def __init__(self, function: StepFunction, recorder: Callable[[], CudaGraphs]):
        """Set what is recorded. recorder: makes the recorder of one recording."""
        self._function, self._recorder = function, recorder
        self._recording: _Recording | None = None
        self._recorded = dict[int, int]()  # tokens of a micro-batch: number of recordings
        self._gave_up = False

    def __call__(self, step: int, work: Step, factors: list[float], learning_rate: float) -> Outcome:
        """Compute a step (see `StepFunction.__call__`)."""
        function, passes = self._function, work.micro_batches
        rates = function.rates(learning_rate)
        scalars = {"factors": np.array(factors, np.float32), "rates": np.array(rates, np.float32)}
        grown = use_layers(function.model.encoder, work.layers)
        if not self._gave_up and (grown or self._recording is None or not self._recording.fits(passes)):
            self._recording = None  # frees its memory
            self._recording = self._record(passes, scalars)
        recording = self._recording
        if recording is None:
            return function(step, work, factors, learning_rate)
        for number, micro in enumerate(passes):
            function.seed_dropout(step, work, number)
            recording.inputs.fill(arrays_of(padded(micro, recording.capacity)) | scalars)
            replay = recording.next if number and recording.next else recording.first
            replay()
        recording.update()
        values = recording.result.clone()  # the next step overwrites the result
        return Outcome(values[:-2].view(-1, 3), values[-2], values[-1])

    def _record(self, passes: list[MicroBatch], scalars: dict[str, np.ndarray]) -> _Recording | None:
        """Record a step of such micro-batches. None: it failed, or is not worthwhile."""
        tokens, *others = {len(micro.batch.input_ids) for micro in passes}
        if others:  # steps of several passes are long: there is little to gain
            console.warn("no CUDA graphs: give a --training.micro-batch that divides the rows of a step")
            self._gave_up = True
            return None
        self._recorded[tokens] = self._recorded.get(tokens, 0) + 1
        self._gave_up = self._recorded[tokens] > MOST_RECORDINGS
        if self._gave_up:
            console.warn("the numbers of sequences vary too much for CUDA graphs, training continues without them")
            return None
        recorder = self._recorder()
        try:
            recording = record(self._function, passes, scalars, recorder)
        except Exception as error:  # drivers, compilers and kernels raise many kinds of errors
            cause = error.__context__ or error  # the end of a failed capture is an error of its own
            reason = first_line(cause)
            console.warn(f"cannot record the steps as CUDA graphs, training continues without them: {reason}")
            recording, self._gave_up = None, True
        self._function.optimizer.zero_grad(set_to_none=True)
        if recording is not None and recorder.crowded:  # steps of so much memory are long: there is nothing to gain
            recording, self._gave_up = None, True
        return recording


def record(
    function: StepFunction, passes: list[MicroBatch], scalars: dict[str, np.ndarray], recorder: CudaGraphs
) -> _Recording:
    """Record the parts of a step. Neither the weights nor the optimizer's state change.

    Args:
        function: What is recorded.
        passes: The micro-batches of a step, as NumPy arrays. Those of the recording are at least as large.
        scalars: The factors of the losses and the learning rates.
        recorder: Records.
    """
    device, micro = function.model.device, max(passes, key=lambda micro: len(micro.batch.example))
    capacity = Capacity.of(micro)
    example = padded(micro, capacity)
    inputs = StaticInputs(arrays_of(example) | scalars, device)
    inputs.fill(arrays_of(example) | scalars)
    values, count = inputs.tensors, len(function.heads)
    sums = torch.zeros(count, 3, dtype=torch.float64, device=device)
    result = torch.zeros(3 * count + 2, dtype=torch.float64, device=device)

    def gradients() -> Tensor:
        return function.add_gradients(with_arrays(example, values), values["factors"].unbind())

    def first() -> None:
        function.optimizer.zero_grad(set_to_none=True)
        sums.copy_(gradients())

    def following() -> None:
        sums.add_(gradients())

    def update() -> None:
        with _for_recording(function.optimizer):
            outcome = function.update(sums, values["rates"].unbind())
        result.copy_(torch.cat([outcome.sums.flatten(), outcome.grad_norm[None], outcome.skipped[None]]))

    for _ in range(WARM_UPS):
        recorder.warm_up(first)
    recorder.warm_up(following)
    sums.fill_(torch.nan)  # so that the optimizer skips its step, and only creates its state
    recorder.warm_up(update)
    several = len(passes) > 1
    parts = recorder.record(first), recorder.record(following) if several else None, recorder.record(update)
    return _Recording(capacity, inputs, sums, result, *parts)


@contextmanager
def _for_recording(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Allow an optimizer of torch to be recorded, and restore its learning rates, which are floats outside of recordings."""
    before: list[dict[str, Any]] = [
        {key: group[key] for key in ("lr", "capturable") if key in group} for group in optimizer.param_groups
    ]
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = True
    try:
        yield
    finally:
        for group, values in zip(optimizer.param_groups, before, strict=True):
            group.update(values)
