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


def asked(capability: tuple[int, int] | None, folder: Path, patch: pytest.MonkeyPatch) -> bool:
    """Ask in this process, with the modules of a folder and as if it had such a GPU (None: no GPU)."""
    patch.syspath_prepend(folder)
    patch.setattr(torch.cuda, "is_available", lambda: capability is not None)
    patch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    found = use_flash_attention_3.__wrapped__()
    assert current_flash_attention_impl() is None
    return found


def test_it_is_used_on_a_gpu_of_capability_9(tmp_path: Path) -> None:
    """In a process of its own, whose attention is then computed by the package."""
    (tmp_path / "flash_attn_interface.py").write_text(PACKAGE)
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True FA3"


@pytest.mark.parametrize("capability", [(8, 0), None])
def test_other_devices_go_without_it(
    capability: tuple[int, int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flash_attn_interface.py").write_text(PACKAGE)
    assert not asked(capability, tmp_path, monkeypatch)


def test_without_the_package_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not asked((9, 0), tmp_path, monkeypatch)
    assert "flash_attn_interface" not in capsys.readouterr().err


def test_a_broken_package_is_named_and_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "flash_attn_interface.py").write_text("import a_missing_library")
    assert not asked((9, 0), tmp_path, monkeypatch)
    warning = "the package flash_attn_interface cannot be used, FlashAttention 2 computes attention: "
    assert warning in capsys.readouterr().err
