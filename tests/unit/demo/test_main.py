"""The masked sentences of the demo's report."""

from __future__ import annotations

import pytest

from bertie.contracts import Document
from bertie.demo.corpus import DemoData
from bertie.demo.main import _mask_sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The statute of limitations applies.", "The statute of [MASK] applies."),
        ("no full stop " * 100, "no [MASK] stop no full stop no full stop n"),
        (" " * 50 + "A title in the middle", "A title in the [MASK]"),
        ("東京都は日本の首都である。" * 40, None),
    ],
)
def test_sentences_of_other_text_are_short_and_have_one_mask(text: str, expected: str | None) -> None:
    [masked] = _mask_sentences(DemoData([Document(text, "a:1")], [], [], ""))
    assert masked.count("[MASK]") == 1
    assert len(masked) <= 50
    assert len(masked) >= 15
    assert expected in (None, masked)
