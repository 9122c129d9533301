"""FlashAttention 3 is asked for where the GPU and the installed packages have it, with stand-ins for both."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

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

torch.cuda.is_available, torch.cuda.get_device_capability = lambda: {capability} is not None, lambda: {capability}
assert current_flash_attention_impl() is None
print(use_flash_attention_3(), current_flash_attention_impl())
"""


def found(folder: Path, capability: tuple[int, int] | None, package: str | None) -> tuple[str, str]:
    """Return what a process prints in which such a GPU (None: no GPU) and a package seem to be there, and its warnings."""
    if package is not None:
        (folder / "flash_attn_interface.py").write_text(package)
    program = textwrap.dedent(PROGRAM).format(capability=capability)
    (folder / "program.py").write_text(program)
    result = subprocess.run([sys.executable, "program.py"], cwd=folder, capture_output=True, text=True, check=True)
    return result.stdout.strip(), result.stderr


def test_it_is_used_on_a_gpu_of_capability_9(tmp_path: Path) -> None:
    assert found(tmp_path, (9, 0), PACKAGE)[0] == "True FA3"


@pytest.mark.parametrize("capability", [(8, 0), None])
def test_other_devices_go_without_it(capability: tuple[int, int] | None, tmp_path: Path) -> None:
    assert found(tmp_path, capability, PACKAGE)[0] == "False None"


def test_without_the_package_nothing_changes(tmp_path: Path) -> None:
    printed, warnings = found(tmp_path, (9, 0), None)
    assert printed == "False None"
    assert "flash_attn_interface" not in warnings


def test_a_broken_package_is_named_and_not_used(tmp_path: Path) -> None:
    printed, warnings = found(tmp_path, (9, 0), "import a_missing_library")
    assert printed == "False None"
    assert "the package flash_attn_interface cannot be used, FlashAttention 2 computes attention: " in warnings
