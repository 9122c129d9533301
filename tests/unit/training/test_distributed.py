"""The process group of torchrun, as far as one process shows it. tests/faults/test_ranks.py starts several."""

from __future__ import annotations

import pytest
import torch

from bertie.errors import UsageError
from bertie.training import distributed


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "torchrun_ranks", lambda: (9, 16, 1))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    expected = "rank 9 is process 2 of its machine, which has 1 GPU: lower --nproc-per-node"
    with pytest.raises(UsageError, match=expected), distributed.process_group():
        pass
