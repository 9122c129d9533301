from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from bertie.base.errors import UserError
from bertie.files.encodings import Encoding, detect_stream
from bertie.files.formats import NoHeaderError, read_records
from bertie.files.lines import NUL_BYTE, OVERSIZE, BadRecord, decode_lines, require_line_feeds
from bertie.files.sources import Format, split_suffix


def records(format: Format, content: bytes, **options: Any) -> list[tuple[int, Any]]:
    return list(read_records(format, "a", io.BytesIO(content), **options))


def reasons(found: list[tuple[int, Any]]) -> list[tuple[int, str]]:
    return [(number, record.reason) for number, record in found if isinstance(record, BadRecord)]


def values(found: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
    return [(number, record) for number, record in found if not isinstance(record, BadRecord)]


@pytest.mark.parametrize(
    ("format", "content", "good", "bad"),
    [
        ("txt", b"\xef\xbb\xbfa\r\n\nb\x00\n\xff\nc", [(1, "a"), (2, ""), (5, "c")], ["a NUL byte", "not in utf-8"]),
        (
            "jsonl",
            b' {"text": "a"}\t\n\n[1]\n{"text": \n\xff\n{"text": "b"}\n{"text": "", "text": ""}\n{"text": "a"} x',
            [(1, "a"), (6, "b")],
            ["not a JSON object", "not JSON", "not in utf-8", "a key twice", "not JSON"],
        ),
        (
            "tsv",
            b'n\ttext\n1\t"a\n\n2\n3\t\xff\n4\tx\x00\n5\tb\rc\n',
            [(2, '"a'), (7, "b\rc")],
            ["columns that do not match the first line", "not in utf-8", "a NUL byte"],
        ),
        (
            "csv",
            b'n,text\n1,"a\r\n, b"\n2\n3,\xff\n4,x\x00\n\n5,c\n',
            [(2, "a\r\n, b"), (8, "c")],
            ["columns that do not match the first line", "not in utf-8", "a NUL byte"],
        ),
    ],
)
def test_bad_records_stay_in_their_place(
    format: Format, content: bytes, good: list[tuple[int, str]], bad: list[str]
) -> None:
    found = records(format, content)
    assert [(number, record["text"]) for number, record in values(found)] == good
    assert [reason for _, reason in reasons(found)] == bad
    assert [number for number, _ in found] == sorted(number for number, _ in found)


def test_only_the_requested_field_is_checked_and_returned() -> None:
    content = b"id,id,text\n1,\xff,a\n2,3,\xff\n"
    assert values(records("csv", content, fields=("text",))) == [(2, {"text": "a"})]
    with pytest.raises(UserError, match="two columns are named 'id'"):
        records("csv", content)
    with pytest.raises(UserError, match=r"no column 'body' \(it has 'id', 'id', 'text'\)"):
        records("csv", content, fields=("body",))


def test_a_table_whose_header_cannot_be_read_is_an_error() -> None:
    with pytest.raises(UserError, match=r"a:1: not UTF-8 \(byte 0xff\)"):
        records("tsv", b"text\xff\na\n")
    for content in (b"", b"\n\n"):
        with pytest.raises(NoHeaderError, match="a is empty"):
            records("csv", content)


def test_a_table_without_a_header() -> None:
    found = records("tsv", b"1\ta\n2\tb\n", headerless=lambda cells: ["n", "text"] if cells[0] == "1" else None)
    assert found == [(1, {"n": "1", "text": "a"}), (2, {"n": "2", "text": "b"})]


@pytest.mark.parametrize("format", ["txt", "jsonl", "tsv", "csv"])
def test_an_oversize_line_costs_only_itself(format: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertie.files.lines.MAX_RECORD_BYTES", 100)
    row, header = ('{"text": "%s"}\n', "") if format == "jsonl" else ("%s\n", "text\n")
    content = (header + row % "a" + row % ("x" * 250) + row % "b").encode()
    found = records(format, content)
    start = 2 if format in ("tsv", "csv") else 1
    assert found[-3:] == [(len(found) + start - 3, {"text": "a"}), (start + len(found) - 2, OVERSIZE), found[-1]]
    assert found[-1] == (start + len(found) - 1, {"text": "b"})


def test_an_open_quote_is_unsynchronized_and_counts_the_lines_it_takes() -> None:
    [(number, record)] = records("csv", b'text\n"open\nb\nc\n')
    assert isinstance(record, BadRecord)
    assert (number, record.lines, record.unsynchronized) == (2, 3, True)
    assert record.detail.endswith("is a quote left open? (lost with 2 lines after it)")


def test_parquet_rows_have_all_columns_or_one(tmp_path: Path) -> None:
    texts = pyarrow.array([b"a", b"\xff", b"b"]).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"text": texts, "n": [1, 2, 3]}), tmp_path / "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes()
    found = records("parquet", content)
    assert values(found) == [(1, {"text": "a", "n": 1}), (3, {"text": "b", "n": 3})]
    assert reasons(found) == [(2, "not in utf-8")]
    assert records("parquet", content, fields=("n",)) == [(1, {"n": 1}), (2, {"n": 2}), (3, {"n": 3})]


def test_a_parquet_page_that_differs_from_its_checksum_is_an_error(tmp_path: Path) -> None:
    texts = [f"text {i}" for i in range(100)]
    plain: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet", **plain)
    content = (tmp_path / "a.parquet").read_bytes()
    assert len(records("parquet", content)) == 100
    with pytest.raises(UserError, match=r"a: row 1: truncated, or not really \.parquet"):
        records("parquet", content.replace(b"text 50", b"test 50"))


def test_utf_16_lines_are_decoded_and_the_stream_stays_open() -> None:
    stream = io.BytesIO("\ufeffa\nb\x00\nc".encode("utf-16-le"))
    assert list(decode_lines("a", stream, Encoding("utf-16-le"))) == [(1, "a\n"), (2, NUL_BYTE), (3, "c")]
    assert not stream.closed


def test_a_detected_stream_starts_at_the_first_byte() -> None:
    for content, name in (("é".encode(), "utf-8"), ("é".encode("utf-16"), "utf-16"), (b"", "utf-8")):
        encoding, stream = detect_stream("a", io.BytesIO(content))
        assert (encoding.name, stream.read()) == (name, content)


@pytest.mark.parametrize(
    ("content", "may_be_one_line", "accepted"),
    [
        (b"a\rb", False, False),
        (b"a\rb\n", False, False),
        (b"a\rb\n", True, True),
        (b"a\rb\nc\n", False, True),
        (b"a\r", False, True),
    ],
)
def test_lines_that_end_in_carriage_returns_are_refused(content: bytes, may_be_one_line: bool, accepted: bool) -> None:
    lines = decode_lines("a", io.BytesIO(content), Encoding("utf-8"))
    checked = require_line_feeds("a", lines, may_be_one_line)
    if accepted:
        assert "".join(str(line) for _, line in checked).encode() == content
    else:
        with pytest.raises(UserError, match=r"a: its lines end in \\r alone"):
            list(checked)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("A.JSONL.GZ", (".jsonl", ".gz")),
        ("s3://bucket/a.b.csv", (".csv", "")),
        ("a.gz", ("", ".gz")),
    ],
)
def test_suffixes(name: str, expected: tuple[str, str]) -> None:
    assert split_suffix(name) == expected
