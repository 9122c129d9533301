"""Data-parallel training with torchrun: every rank holds a replica of the model and processes a part of every step."""

from __future__ import annotations

import atexit
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bertie.base import console, runtime
from bertie.base.contracts import AnyMicroBatch, Loss
from bertie.base.errors import LostRankError, SaidElsewhereError, UsageError, first_line
from bertie.base.threads import torchrun_ranks
from bertie.model.model import Model
from bertie.training.rendezvous import TIMEOUT, fresh_store

T = TypeVar("T")
FAILS = "bertie/fails"
"""Key in the store of the ranks, if one of them ends with an error, which it says: the exit code."""


@dataclass(frozen=True)
class Ranks:
    """This process's rank, and the collective operations with the other ranks.

    With one rank (the default), every operation returns its input. Rank 0 owns the run folder and broadcasts what the
    others need, so they do not need access to its disk. Values on the host are exchanged through gloo on the CPU, so
    that no rank waits for a GPU's queue. Every exchange raises LostRankError if another process has ended.
    """

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def own_range(self, number: int) -> range:
        """Return this rank's part of range(number). The sizes of the parts differ by at most 1."""
        return range(self.rank * number // self.count, (self.rank + 1) * number // self.count)

    def sum_values(self, values: Sequence[float]) -> list[float]:
        """Return the elementwise sums over all ranks."""
        if self.count == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64)
        self.sum_inplace(sums)
        return sums.tolist()

    def sum_inplace(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all ranks. The host does not wait for a GPU tensor."""
        if self.count > 1:
            with translated_errors():
                dist.all_reduce(tensor)

    def gather_rows(self, local_rows: Tensor, number: int) -> Tensor:
        """Return all `number` rows of a tensor of which each rank has its `own_range`. The host does not wait."""
        if self.count == 1:
            return local_rows
        sizes = [len(Ranks(rank, self.count).own_range(number)) for rank in range(self.count)]
        if self.count * max(sizes) > 2 * number:  # most places of a gathered tensor would be empty: a sum carries less
            rows = local_rows.new_zeros(number, *local_rows.shape[1:])
            rows[self.own_range(number).start :][: len(local_rows)] = local_rows
            self.sum_inplace(rows)
            return rows
        padded = local_rows.new_zeros(max(sizes), *local_rows.shape[1:])
        padded[: len(local_rows)] = local_rows
        gathered = local_rows.new_empty(self.count * max(sizes), *local_rows.shape[1:])
        with translated_errors():
            dist.all_gather(list(gathered.chunk(self.count)), padded)
        return torch.cat([part[:size] for part, size in zip(gathered.chunk(self.count), sizes, strict=True)])

    def gathered(self, vectors: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """Return the vectors of all ranks, [Σ sizes, D], from those of this one. The gradient goes back to the rank of each.

        sizes: number of vectors of each rank. Empty: this rank's are all.
        """
        return _Gathered.apply(vectors, self, sizes) if sizes else vectors

    def sum_gradients(self, model: nn.Module) -> None:
        """Replace the gradients of a model by their sums over all ranks, some of which may have none."""
        if self.count == 1:
            return
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        numbers = self.sum_values([float(parameter.grad is not None) for parameter in trained])
        used = [parameter for parameter, number in zip(trained, numbers, strict=True) if number]
        gradients = [torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in used]
        sums = torch.cat([gradient.flatten() for gradient in gradients])
        self.sum_inplace(sums)
        for parameter, part in zip(used, sums.split([parameter.numel() for parameter in used]), strict=True):
            parameter.grad = part.view_as(parameter)

    def any(self, flag: bool) -> bool:
        """Return whether the flag is true on at least one rank."""
        return self.sum_values([float(flag)])[0] > 0

    def broadcast(self, value: T) -> T:
        """Return rank 0's value on every rank."""
        if self.count == 1:
            return value
        values = [value]
        with translated_errors():
            dist.broadcast_object_list(values, 0)
        return values[0]

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks on every rank."""
        if self.count == 1:
            return [value]
        values = [value] * self.count
        with translated_errors():
            dist.all_gather_object(values, value)
        return values

    def require_same(self, facts: dict[str, Any], remedy: str) -> None:
        """Check that all ranks have the same facts.

        Args:
            facts: Values by their names in the message.
            remedy: What to do, for the message.

        Raises:
            UsageError: On all ranks, if one of them has another value than rank 0. It names the first one.
        """
        first, *others = self.gather(facts)
        for rank, other in enumerate(others, start=1):
            for name in sorted(first.keys() | other.keys()):
                if other.get(name) != first.get(name):
                    differs = f"{name} is {other.get(name)!r} on rank {rank} and {first.get(name)!r} on rank 0"
                    raise UsageError(f"{differs}: {remedy}")

    def broadcast_state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Copy the weights and the optimizer state of rank 0 to every rank."""
        if self.count == 1:
            return
        self.broadcast_weights(model)
        parameters = list(model.parameters())
        layouts = [
            {key: (tensor.shape, tensor.dtype, tensor.device.type) for key, tensor in optimizer.state[p].items()}
            for p in parameters
        ]
        for parameter, state in zip(parameters, self.broadcast(layouts), strict=True):
            if not self.first:
                optimizer.state[parameter] = {
                    key: torch.zeros(shape, dtype=dtype, device=device) for key, (shape, dtype, device) in state.items()
                }
            with translated_errors():
                for tensor in optimizer.state[parameter].values():
                    dist.broadcast(tensor, 0)

    def broadcast_weights(self, model: nn.Module) -> None:
        """Copy the weights of rank 0 to every rank."""
        if self.count == 1:
            return
        with translated_errors():
            for parameter in model.parameters():
                dist.broadcast(parameter.detach(), 0)


class _Gathered(torch.autograd.Function):
    """Vectors of all ranks. A gradient of a vector is the sum of those that the ranks compute."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, ranks: Ranks, sizes: tuple[int, ...]) -> Tensor:
        start = sum(sizes[: ranks.rank])
        ctx.ranks, ctx.own = ranks, slice(start, start + len(vectors))
        every = vectors.new_zeros(sum(sizes), vectors.shape[1])
        every[ctx.own] = vectors
        ranks.sum_inplace(every)
        return every

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        every = gradients[0].clone()
        ctx.ranks.sum_inplace(every)
        return every[ctx.own], None, None


SINGLE_PROCESS = Ranks()


class TimedSums:
    """Sums values over all ranks, and notes how long each rank waits for the others."""

    waits: list[float]
    """Of each rank: the seconds that the last call but one took. Empty if there is one rank."""

    def __init__(self, ranks: Ranks):
        self._ranks, self._waited, self.waits = ranks, 0.0, []

    def __call__(self, values: Sequence[float]) -> list[float]:
        """Return the elementwise sums."""
        if self._ranks.count == 1:
            return list(values)
        slots = [0.0] * self._ranks.count
        slots[self._ranks.rank] = self._waited
        begun = time.monotonic()
        sums = self._ranks.sum_values([*values, *slots])
        self._waited, self.waits = time.monotonic() - begun, sums[len(values) :]
        return sums[: len(values)]


class LossFunction:
    """Computes the losses of a micro-batch by head, and exchanges gradients after the last micro-batch of a step.

    DistributedDataParallel exchanges them during the last backward pass, if each rank has one in every step, which gives
    all weights gradients (`all_weights`). Multiply each loss by `scale` before the backward pass: it averages gradients
    over the ranks, and the training loop needs their sums.
    """

    def __init__(self, model: Model, ranks: Ranks = SINGLE_PROCESS, all_weights: bool = True):
        parallel = ranks.count > 1 and all_weights
        self._model = DistributedDataParallel(model, gradient_as_bucket_view=True) if parallel else model
        self._sums_later = None if parallel else ranks
        self.scale = float(ranks.count) if parallel else 1.0

    def __call__(self, micro: AnyMicroBatch) -> dict[str, Loss]:
        return self._model(micro)

    @contextmanager
    def gradient_sync(self, last: bool) -> Iterator[None]:
        """Wrap one forward and backward pass. Gradients are exchanged only in the last pass of a step."""
        if isinstance(self._model, DistributedDataParallel):
            with translated_errors(), nullcontext() if last else self._model.no_sync():
                yield
        else:
            yield

    def sum_gradients(self) -> None:
        """Exchange the gradients after the last pass of a step, if that has not done it."""
        if self._sums_later:
            self._sums_later.sum_gradients(self._model)


# Dropping the last reference to a process group joins its threads. DistributedDataParallel drops it while it holds the
# GIL, which these threads may need in order to end: after the kill of another rank, one rank in five hung. Clearing
# this list at exit releases the GIL while it joins.
_GROUPS: list[Any] = []
atexit.register(_GROUPS.clear)


@contextmanager
def process_group(timeout: timedelta | None = None) -> Iterator[Ranks]:
    """Join the process group of torchrun for the `with` block. Ranks other than 0 print nothing.

    Args:
        timeout: The longest wait for another rank that lives; None: torch's, 30 minutes over gloo. The end of a rank is
            noticed at once.

    Yields:
        The ranks; SINGLE_PROCESS if the process was not started by torchrun.

    Raises:
        SaidElsewhereError: Another rank has failed.
        UsageError: On all ranks, if one of them has another version of bertie or torch, or another device, than rank 0.
            There are fewer GPUs than ranks on a machine, or the ranks do not meet at MASTER_ADDR and MASTER_PORT.
    """
    rank, count, local = torchrun_ranks()
    if count == 1:
        yield SINGLE_PROCESS
        return
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        _use_gpu(local)
    backend, store = "cpu:gloo,cuda:nccl" if on_gpu else "gloo", _torchrun_store()
    with translated_errors():
        store = fresh_store(store, rank, count)
        dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=timeout)
    _GROUPS.append(dist.group.WORLD)
    try:
        with console.silenced() if rank else nullcontext():
            ranks = Ranks(rank, count)
            # Each rank updates its replica itself: with other code, the weights would drift apart, and no message says so.
            versions = {"bertie's version": runtime.code_version(), "torch's version": torch.__version__}
            ranks.require_same(versions, "install the same on every machine")
            ranks.require_same({"the device": runtime.device().type}, "repair that machine, or leave it out")
            yield ranks
    except LostRankError as error:
        with suppress(RuntimeError):  # the store may be gone, too
            if store.check([FAILS]):
                raise SaidElsewhereError(int(store.get(FAILS))) from error
        raise
    except SaidElsewhereError:  # not an error of this rank: the one that says it must not look for it elsewhere
        raise
    except Exception as error:
        # A reader such as `head` that closes the pipe ends the command as it should.
        code = 0 if isinstance(error, BrokenPipeError) else getattr(error, "exit_code", 1)
        with suppress(RuntimeError):
            store.set(FAILS, str(code))  # before the others notice that this rank is gone
        raise
    finally:
        dist.destroy_process_group()


def _torchrun_store() -> Any:
    """Connect to the store of torchrun, in which all ranks meet. Raises UsageError."""
    try:
        return next(dist.rendezvous("env://", timeout=timedelta(seconds=TIMEOUT)))[0]  # pyright: ignore[reportPrivateImportUsage]
    except (ValueError, RuntimeError) as error:
        place = ":".join(runtime.variable(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
        reason = first_line(error)
        raise UsageError(
            f"the ranks do not meet at {place} ({reason}): start all of them with torchrun, and give a --master-port that "
            "no other program uses; to use a single process, unset WORLD_SIZE"
        ) from error


def _use_gpu(local: int) -> None:
    """Use the GPU with the number of this rank on its machine. Raises UsageError if there are fewer GPUs than ranks."""
    started, gpus = int(runtime.variable("LOCAL_WORLD_SIZE", str(local + 1))), torch.cuda.device_count()
    if max(started, local + 1) > gpus:
        raise UsageError(
            f"torchrun has started {started} processes on this machine, and they see {console.plural(gpus, 'GPU')}: give "
            f"--nproc-per-node {gpus}"
        )
    torch.cuda.set_device(local)


@contextmanager
def translated_errors() -> Iterator[None]:
    """Turn a communication error of torch into a LostRankError that names its cause."""
    try:
        yield
    except RuntimeError as error:
        reason = first_line(error)
        if not re.search("gloo|nccl|connection|broken pipe|store", reason, re.IGNORECASE):
            raise
        reason = re.sub(r"^\[\S+:\d+\] ", "", reason).split(". ")[0]  # without gloo's file, and its advice
        raise LostRankError(
            f"another rank has ended or cannot be reached ({reason}): see what the others and torchrun say"
        ) from error
