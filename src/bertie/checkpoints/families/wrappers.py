"""Names of weights under the prefixes of programs that wrap a model: torch.compile, DataParallel, Lightning, and others."""

from __future__ import annotations

import re
from collections.abc import Iterable

from bertie.errors import UserError


def unwrapped(names: Iterable[str], base: str, anchors: tuple[str, ...], starts: tuple[str, ...]) -> dict[str, str]:
    """Return the names of Hugging Face's class with a head, by the names in a file.

    The prefix of the encoder is what stands before the name of its word embeddings. What is beside the encoder under the
    wrapper is a head.

    Args:
        names: Names in the file.
        base: Prefix of the encoder in the class with a head, such as "bert.".
        anchors: Names of the word embeddings in the bare encoder.
        starts: Beginnings of the names in the bare encoder.

    Raises:
        UserError: There are several encoders and none has the name of the class, or two names become one.
    """
    spelled = {name: re.sub(r"(norm\w*|ln_\w+)\.gamma$", r"\1.weight", name, flags=re.IGNORECASE) for name in names}
    spelled = {
        name: re.sub(r"(norm\w*|ln_\w+)\.beta$", r"\1.bias", new, flags=re.IGNORECASE) for name, new in spelled.items()
    }
    prefix = _prefix(spelled.values(), base, anchors)
    outer = prefix.removesuffix(base) if base and prefix.endswith(base) else re.sub(r"[^.]+\.$", "", prefix)
    found: dict[str, str] = {}
    result: dict[str, str] = {}
    for name, new in spelled.items():
        canonical = new
        if new.startswith(prefix) and new.removeprefix(prefix).startswith(starts):
            canonical = base + new.removeprefix(prefix)
        elif new.startswith(prefix) and prefix != base:
            canonical = new.removeprefix(prefix)
        elif prefix not in ("", base) and new.startswith(outer):
            canonical = new.removeprefix(outer)
        if canonical in found:
            raise UserError(f"two tensors are the same weights: {found[canonical][:200]} and {name[:200]}")
        found[canonical] = name
        result[name] = canonical
    return result


def _prefix(names: Iterable[str], base: str, anchors: tuple[str, ...]) -> str:
    """Return the prefix of the encoder."""
    prefixes = {name.removesuffix(anchor) for name in names for anchor in anchors if name.endswith(anchor)}
    prefixes = {prefix for prefix in prefixes if not prefix or prefix.endswith(".")}
    usual = [prefix for prefix in (base, "") if prefix in prefixes or not prefixes]
    if not usual and len(prefixes) > 1:
        several = ", ".join(repr(prefix[:60]) for prefix in sorted(prefixes)[:3])
        raise UserError(f"there are several encoders, with the prefixes {several}: keep the weights of one of them")
    return usual[0] if usual else prefixes.pop()
