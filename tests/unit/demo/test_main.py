"""The demo's output folder, its held-out documents, and the masked sentences of its report."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertie.base.contracts import Document
from bertie.base.errors import UsageError
from bertie.corpus.encode import split_hash
from bertie.demo.corpus import DemoData
from bertie.demo.main import _eval_share, _mask_sentences, _open_folder


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


@pytest.mark.parametrize(("count", "held_out"), [(4, 2), (10, 5), (16, 8), (159, 8)])
def test_a_short_corpus_holds_out_eight_documents_or_half(count: int, held_out: int) -> None:
    documents = [Document(f"document {number}", f"a:{number}") for number in range(count)]
    share = _eval_share([*documents, documents[0]])  # equal documents are held out together
    assert sum(split_hash(document.text) < share for document in documents) == held_out


def test_a_folder_without_a_model_begins_anew_and_one_with_a_model_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "out"
    _open_folder(out, {"text": "a"})
    (out / "shards").mkdir()
    _open_folder(out, {"text": "a"})
    assert (out / "shards").is_dir()
    _open_folder(out, {"text": "b"})
    assert not (out / "shards").exists()
    (out / "bert").mkdir()
    _open_folder(out, {"text": "b"})
    with pytest.raises(UsageError, match="a demo of another text, --scale or --keep-accents"):
        _open_folder(out, {"text": "c"})
