from __future__ import annotations

import gzip
import json
import lzma
import os
from pathlib import Path

import pytest

from bertie.contracts import Document
from bertie.errors import UsageError, UserError
from bertie.text import readers

TEXT = "One line.\nAnother line.\n\n \nSecond document.\n\n\n"


def texts(path: Path, **choices: object) -> list[str]:
    return [document.text for document in readers.read([path], **choices)]  # pyright: ignore[reportArgumentType]


def written(path: Path, content: str | bytes) -> Path:
    raw = content.encode() if isinstance(content, str) else content
    pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
    path.write_bytes(pack(raw))
    return path


@pytest.mark.parametrize("packed", ["", ".gz", ".xz"])
def test_blank_lines_part_documents(tmp_path: Path, packed: str) -> None:
    path = written(tmp_path / f"a.txt{packed}", TEXT)
    assert list(readers.read([path])) == [
        Document("One line.\nAnother line.", f"{path}:1"),
        Document("Second document.", f"{path}:5"),
    ]


def test_a_file_as_one_document_keeps_its_blank_lines(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", "\n" + TEXT)
    assert list(readers.read([path], documents="file")) == [
        Document("One line.\nAnother line.\n\n \nSecond document.", f"{path}:2")
    ]


@pytest.mark.parametrize("packed", ["", ".gz", ".xz"])
def test_json_lines(tmp_path: Path, packed: str) -> None:
    rows = [{"text": "One.\n\nStill one."}, {"text": "  \n"}, {"id": 3, "text": "Zwei – ü."}]
    path = written(tmp_path / f"a.jsonl{packed}", "\n".join(json.dumps(row) for row in rows) + "\n\n")
    assert list(readers.read([path])) == [
        Document("One.\n\nStill one.", f"{path}:1"),
        Document("Zwei – ü.", f"{path}:3"),
    ]


def test_only_the_end_of_a_name_says_what_it_is(tmp_path: Path) -> None:
    assert texts(written(tmp_path / "notes.jsonl.txt", "No JSON.")) == ["No JSON."]


def test_another_field(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", '{"body": "yes", "text": "no"}')
    assert texts(path, text_field="body") == ["yes"]


def test_windows_line_ends_and_byte_order_mark(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", b"\xef\xbb\xbfOne.\r\n\r\nTwo.\r\n")
    assert texts(path) == ["One.", "Two."]


def test_a_folder_is_read_sorted_and_only_text(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    written(tmp_path / "sub" / "a.txt", "third")
    written(tmp_path / "b.jsonl.gz", '{"text": "second"}')
    written(tmp_path / "a.txt.xz", "first")
    written(tmp_path / "picture.png", b"\x00\x01")
    assert texts(tmp_path) == ["first", "second", "third"]


def test_bytes_are_reported_up_to_the_size_on_disk(tmp_path: Path) -> None:
    written(tmp_path / "a.txt", TEXT * 1000)
    written(tmp_path / "b.txt.xz", TEXT * 1000)
    seen: list[int] = []
    assert len(list(readers.read([tmp_path], on_bytes=seen.append))) == 4000
    assert sum(seen) == readers.expected_bytes([tmp_path]) > 0


def test_reading_streams(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", b"good\n\nbad \xff\n")
    documents = readers.read([path])
    assert next(documents).text == "good"
    with pytest.raises(UserError):
        next(documents)


@pytest.mark.parametrize("name", ["nowhere", "picture.png", "empty"])
def test_wrong_paths_are_wrong_use_before_reading(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    written(tmp_path / "picture.png", b"")
    with pytest.raises(UsageError, match=name):
        readers.read([written(tmp_path / "good.txt", "text"), tmp_path / name])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"fine\n\xe9t\xe9\n", r"a\.txt:2: byte 0xe9 is not UTF-8"),
        ("a.txt", "été\n".encode("utf-16"), r"a\.txt:1: "),
        ("a.txt", b"fine\nPK\x03\x00\x00\n", r"a\.txt:2: a NUL byte"),
        ("a.txt.gz", b"fine\n\xff\n", r"a\.txt\.gz:2: byte 0xff is not UTF-8"),
        ("a.jsonl", b'{"text": "fine"}\n{"text": oops}\n', r"a\.jsonl:2: not JSON"),
        ("a.jsonl", b'{"text": "cut', r"a\.jsonl:1: not JSON"),
        ("a.jsonl", b"[" * 100_000, r"a\.jsonl:1: not JSON"),
        ("a.jsonl", b'{"body": "x", "id": 1}', r"a\.jsonl:1: no field 'text' \(it has 'body', 'id'\): .*--text-field"),
        ("a.jsonl", b'["text"]', r"a\.jsonl:1: no field 'text'"),
        ("a.jsonl", b'{"text": 3}', r"a\.jsonl:1: field 'text' is not a string"),
        ("a.jsonl", b'{"text": "\\ud83d"}', r"a\.jsonl:1: field 'text' has half a surrogate pair"),
    ],
)
def test_bad_content_is_named_with_its_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        texts(written(tmp_path / name, content))
    assert caught.value.exit_code == 1
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("packed", [".gz", ".xz"])
def test_packed_files_that_are_cut_or_false(tmp_path: Path, packed: str) -> None:
    path = written(tmp_path / f"a.txt{packed}", "".join(f"line {i * i}\n" for i in range(20_000)))
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"just text\n", whole[:200] + b"damage" + whole[206:]):
        path.write_bytes(content)
        with pytest.raises(UserError, match=rf"a\.txt\{packed}:\d+: truncated, or not really \{packed}"):
            texts(path)


def test_a_folder_that_may_not_be_read_is_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "a.txt", "Read.")
    (tmp_path / "closed").mkdir()
    scan = os.scandir

    def scandir(path: str) -> object:  # as for a user without the right; root has every right
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(PermissionError, match="closed"):
        readers.files([tmp_path])
