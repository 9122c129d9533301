from __future__ import annotations

import pytest

from bertie.contracts import Document
from bertie.demo.corpus import DemoData
from bertie.demo.main import _own_masks


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The statute of limitations applies.", "The statute of [MASK] applies."),
        ("no full stop " * 100, "no [MASK] stop no full stop no full stop n"),
        (" " * 50 + "A title in the middle", "A title in the [MASK]"),
        ("東京都は日本の首都である。" * 40, None),
    ],
)
def test_a_mask_in_ones_own_text_is_short_enough_to_be_filled(text: str, expected: str | None) -> None:
    [masked] = _own_masks(DemoData([Document(text, "a:1")], [], [], ""))
    assert masked.count("[MASK]") == 1
    assert len(masked) <= 50
    assert len(masked) >= 15
    assert expected in (None, masked)
