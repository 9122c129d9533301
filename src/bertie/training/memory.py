"""Memory use of training: an estimate without running anything, and the largest micro-batch that fits on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bertie.base import runtime
from bertie.base.contracts import MicroBatch
from bertie.model.config import TransformerConfig
from bertie.model.encoder import EncoderConfig
from bertie.model.initialization import no_weights
from bertie.model.model import Model
from bertie.training.distributed import Ranks

USABLE_SHARE = 0.9  # of a GPU's free memory; the rest is for fragmentation and for what libraries allocate later


@dataclass(frozen=True)
class MemoryEstimate:
    """Memory of training in fp32, in bytes."""

    weights: int
    """Of the model, and of the teacher of a distillation."""
    gradients: int
    optimizer: int
    activations: int
    """Tensors that one forward pass keeps for the backward pass."""

    @property
    def fixed(self) -> int:
        """The part that does not depend on the micro-batch."""
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> int:
        return self.fixed + self.activations


def estimate_memory(
    build: Callable[[EncoderConfig], Model], size: EncoderConfig, micro: MicroBatch, recompute: bool
) -> MemoryEstimate:
    """Estimate the memory of training on micro-batches of one shape.

    The model is built on torch's meta device, which has shapes but no data. The estimate counts every tensor that
    autograd saves. Under mixed precision, activations take about half of it. With recomputation, it includes the
    activations of the one layer that is being recomputed. Temporary buffers, about as large as a few activations, come
    on top.

    Args:
        build: Builds the model of a size.
        size: The size of the model.
        micro: A micro-batch of that shape.
        recompute: Whether layers are recomputed in the backward pass (activation checkpointing).
    """
    activations = _saved_bytes(build, size, micro, recompute)
    if recompute:
        unshared = replace(size, num_hidden_groups=0) if isinstance(size, TransformerConfig) else size
        two_layers, one_layer = (
            _saved_bytes(build, replace(unshared, num_hidden_layers=layers), micro, False) for layers in (2, 1)
        )
        activations += two_layers - one_layer
    with no_weights():
        model = build(size)
    weights = 4 * model.size
    frozen = 0 if model.teacher is None else 4 * sum(p.numel() for part in model.teacher for p in part.parameters())
    return MemoryEstimate(weights + frozen, weights, 2 * weights, activations)


def _saved_bytes(
    build: Callable[[EncoderConfig], Model], size: EncoderConfig, micro: MicroBatch, recompute: bool
) -> int:
    """Return the bytes that autograd saves in a forward pass, without the weights."""
    with no_weights():
        model = build(size)
    model.recompute_layers(recompute)
    parts = (model, *(model.teacher or ()))
    weights = {parameter.untyped_storage()._cdata for part in parts for parameter in part.parameters()}
    saved: dict[int, Tensor] = {}  # by storage; references keep a storage's address from being reused

    def record(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage()._cdata not in weights:
            saved[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        losses = model(micro.tensors("meta"))
    del losses
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether an error of torch means that the memory of the GPU or of the machine is exhausted."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def rows_that_fit(
    model: Model,
    optimizer: torch.optim.Optimizer,
    samples: Iterable[Callable[[int], MicroBatch]],
    precision: runtime.Resolved,
    ranks: Ranks,
) -> int:
    """Find the number of rows per forward pass that fits in the GPU's free memory.

    Args:
        model: The model, on its device.
        optimizer: Its optimizer. If it has no state yet, memory for Adam's state is reserved.
        samples: For each shape of rows, a function that builds a micro-batch of so many rows. Used on a GPU only.
        precision: The precision of training.
        ranks: With several ranks, memory for the exchange of gradients is reserved.

    Returns:
        The number of rows; on a CPU 1, which makes the best use of its caches.
    """
    device = model.device
    if device.type != "cuda":
        return 1
    free, _ = torch.cuda.mem_get_info(device)
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    reserved = 0 if optimizer.state else 2 * weights
    reserved += weights if ranks.count > 1 else 0
    room = int(USABLE_SHARE * (free + torch.cuda.memory_allocated(device))) - reserved
    peaks = (lambda rows, sample=sample: _peak_bytes(model, sample(rows), precision) for sample in samples)
    return min((largest_fitting(peak, room) for peak in peaks), default=1)


def largest_fitting(peak: Callable[[int], int], room: int) -> int:
    """Return the largest number of rows, at least 1, whose peak memory is within `room`.

    It is extrapolated from 1 and 2 rows: every further row is assumed to need as much memory as the second.

    Args:
        peak: peak(rows): peak memory in bytes.
        room: Available memory in bytes.
    """
    one = peak(1)
    try:
        two = peak(2)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        torch.cuda.empty_cache()
        return 1
    return max(1, 1 + (room - one) // max(two - one, 1))


def _peak_bytes(model: Model, micro: MicroBatch, precision: runtime.Resolved) -> int:
    """Return the peak of allocated GPU memory during one pass, weights and gradients included."""
    torch.cuda.reset_peak_memory_stats()
    one_pass(model, micro, precision)
    return torch.cuda.max_memory_allocated()


def one_pass(model: Model, micro: MicroBatch, precision: runtime.Resolved) -> None:
    """Run a forward and backward pass as in training, and discard the gradients."""
    try:
        with runtime.autocast(precision, model.device):
            losses = model(micro.tensors(model.device))
        torch.stack([loss.total for loss in losses.values()]).sum().backward()
    finally:  # a pass that failed half way has left gradients
        model.zero_grad(set_to_none=True)
