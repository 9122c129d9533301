"""FlashAttention 3 (Shah et al. 2024) in place of FlashAttention 2, where torch offers it.

torch calls it for the same operations as FlashAttention 2 if the package `flash_attn_interface` is installed and the GPU has
compute capability 9.0 (H100, H200), but only in a process that asks for it.
"""

from __future__ import annotations

import functools
import importlib.util

import torch

from bertie.base import console
from bertie.base.errors import first_line


@functools.cache
def use_flash_attention_3() -> bool:
    """Let torch compute attention with FlashAttention 3 from now on, if it can. Warn if the package is broken.

    Returns:
        Whether it does.
    """
    # Imported here because it loads torch's compiler, which takes a third of a command's startup time.
    from torch.nn.attention import activate_flash_attention_impl, list_flash_attention_impls

    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        return False
    if "FA3" not in list_flash_attention_impls() or importlib.util.find_spec("flash_attn_interface") is None:
        return False
    try:
        activate_flash_attention_impl("FA3")
    except Exception as error:  # a package for another version of torch or CUDA raises errors of many kinds
        console.warn(
            f"the package flash_attn_interface cannot be used, FlashAttention 2 computes attention: {first_line(error)}"
        )
        return False
    return True
