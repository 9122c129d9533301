"""FlashAttention 3 is asked for where the GPU and the installed packages have it, with stand-ins for both."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.attention import current_flash_attention_impl

from bertie.model.attention.flash_attention import use_flash_attention_3

PACKAGE = """
import torch

library = torch.library.Library("flash_attn_3", "DEF")
library.define("fwd(Tensor q) -> Tensor")
library.define("bwd(Tensor q) -> Tensor")
"""
PROGRAM = """
import torch
from torch.nn.attention import current_flash_attention_impl

from bertie.model.attention.flash_attention import use_flash_attention_3

torch.cuda.is_available, torch.cuda.get_device_capability = lambda: True, lambda: (9, 0)
assert current_flash_attention_impl() is None
print(use_flash_attention_3(), current_flash_attention_impl())
"""


def test_it_is_used_on_a_gpu_of_capability_9(tmp_path: Path) -> None:
    """In a process of its own, whose attention is then computed by the package."""
    (tmp_path / "flash_attn_interface.py").write_text(PACKAGE)
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True FA3"


@pytest.mark.parametrize(
    ("capability", "package", "warning"),
    [
        ((8, 0), PACKAGE, ""),
        (None, PACKAGE, ""),
        ((9, 0), "", ""),
        ((9, 0), "import a_missing_library", "the package flash_attn_interface cannot be used"),
    ],
)
def test_other_machines_go_without_it(capability, package, warning, tmp_path, monkeypatch, capsys):
    if package:
        (tmp_path / "flash_attn_interface.py").write_text(package)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert not use_flash_attention_3.__wrapped__()
    assert current_flash_attention_impl() is None
    said = capsys.readouterr().err
    assert warning in said
    assert warning or "flash_attn_interface" not in said
