"""The processes that train one model together, as torchrun starts them: each has a replica and a part of every step."""

from __future__ import annotations

import atexit
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bertie import console, runtime
from bertie.contracts import Loss, MicroBatch
from bertie.errors import UserError
from bertie.model.bert import BertModel
from bertie.training.rendezvous import fresh_store

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process among the others. Alone, which is the default, everything here is what it is without the others.

    Rank 0 owns the run folder; the others learn from it, so they need not see its disk. What is exchanged on the host
    goes through the processors, so that a GPU's queue is not waited for. Errors: UserError where another one is gone.
    """

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def own_range(self, number: int) -> range:
        """This rank's part of `number` things, as many as each other's."""
        each = number // self.count
        return range(self.rank * each, (self.rank + 1) * each)

    def sum_values(self, values: Sequence[float]) -> list[float]:
        """The sums over all ranks."""
        if self.count == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64)
        self.sum_inplace(sums)
        return sums.tolist()

    def sum_inplace(self, tensor: Tensor) -> None:
        """The same in place and, on a GPU, without waiting for it."""
        if self.count > 1:
            with _others():
                dist.all_reduce(tensor)

    def any(self, flag: bool) -> bool:
        """Whether it is so on one of the ranks."""
        return self.sum_values([float(flag)])[0] > 0

    def broadcast(self, value: T) -> T:
        """Rank 0's value, anything that JSON holds, on every rank."""
        if self.count == 1:
            return value
        content = json.dumps(value).encode() if self.first else b""
        size = torch.tensor(len(content))
        with _others():
            dist.broadcast(size, 0)
            payload = torch.zeros(int(size), dtype=torch.uint8)
            if self.first:
                payload.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
            dist.broadcast(payload, 0)
        return json.loads(bytes(payload.tolist()))

    def broadcast_state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Rank 0's weights and optimizer state on every rank."""
        if self.count == 1:
            return
        parameters = list(model.parameters())
        kinds = [
            {
                key: [list(tensor.shape), str(tensor.dtype), tensor.device.type]
                for key, tensor in optimizer.state[p].items()
            }
            for p in parameters
        ]
        for parameter, state in zip(parameters, self.broadcast(kinds), strict=True):
            if not self.first:
                optimizer.state[parameter] = {
                    key: torch.zeros(shape, dtype=getattr(torch, dtype.split(".")[1]), device=device)
                    for key, (shape, dtype, device) in state.items()
                }
            with _others():
                for tensor in (parameter.detach(), *optimizer.state[parameter].values()):
                    dist.broadcast(tensor, 0)

    def loss_function(self, model: BertModel) -> LossFunction:
        """What computes the model's losses; their backward pass adds up the gradients of all ranks."""
        return LossFunction(model, self.count)


class LossFunction:
    """The losses of micro-batches, by head; after the last pass of a step its gradients are sums over all ranks."""

    def __init__(self, model: BertModel, ranks: int):
        self._model = DistributedDataParallel(model, gradient_as_bucket_view=True) if ranks > 1 else model
        self.scale = float(ranks)  # what the gradients are to be multiplied by: exchanging them takes their mean

    def __call__(self, micro: MicroBatch) -> dict[str, Loss]:
        return self._model(micro)

    @contextmanager
    def gradient_sync(self, last: bool) -> Iterator[None]:
        """Around one forward and backward pass: gradients are exchanged after a step's last one."""
        if isinstance(self._model, DistributedDataParallel):
            with _others(), nullcontext() if last else self._model.no_sync():
                yield
        else:
            yield


SINGLE_PROCESS = Ranks()

# Whoever drops a group last waits for its threads. DistributedDataParallel would do so without letting go of the
# interpreter, which these threads may need to end: where another rank was killed, one in five ranks hung. This does let go.
_GROUPS: list[Any] = []
atexit.register(_GROUPS.clear)


@contextmanager
def process_group() -> Iterator[Ranks]:
    """The ranks that torchrun started, while the block runs; ALONE where it did not. All but rank 0 say nothing."""
    rank, count, local = runtime.torchrun_ranks()
    if count == 1:
        yield SINGLE_PROCESS
        return
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(local)
    with _others():
        [store, *_] = next(dist.rendezvous("env://"))  # pyright: ignore[reportPrivateImportUsage]
        backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
        dist.init_process_group(backend, store=fresh_store(store, rank, count), rank=rank, world_size=count)
    _GROUPS.append(dist.group.WORLD)
    quiet: Callable[[], AbstractContextManager[Any]] = console.silenced if rank else nullcontext
    try:
        with quiet():
            yield Ranks(rank, count)
    finally:
        dist.destroy_process_group()


@contextmanager
def _others() -> Iterator[None]:
    """Where an exchange fails because another process is gone, say so."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        if not re.search("gloo|nccl|connection|broken pipe|store", reason, re.IGNORECASE):
            raise
        raise UserError(f"another process of this training has ended, or cannot be reached: {reason}") from error
