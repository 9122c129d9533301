from __future__ import annotations

import bz2
import csv
import errno
import gzip
import io
import json
import lzma
from pathlib import Path

import pyarrow
import pytest
import zstandard
from pyarrow import parquet

from bertie.base.contracts import Document
from bertie.base.errors import MachineError, UsageError, UserError
from bertie.corpus import readers
from bertie.corpus.readers import ReadCounts, ReaderOptions
from bertie.files import encodings, sources

TEXT = "One line.\nAnother line.\n\n \nSecond document.\n\n\n"
COMPRESS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstandard.compress}


def texts(path: Path, **choices: object) -> list[str]:
    return [document.text for document in readers.read([path], ReaderOptions(**choices))]  # pyright: ignore[reportArgumentType]


def read_and_count(path: Path, **choices: object) -> tuple[list[str], ReadCounts]:
    counts = ReadCounts()
    options = ReaderOptions(**choices)  # pyright: ignore[reportArgumentType]
    return [document.text for document in readers.read([path], options, counts)], counts


def write(path: Path, content: str | bytes) -> Path:
    raw = content.encode() if isinstance(content, str) else content
    path.write_bytes(COMPRESS.get(path.suffix, bytes)(raw))
    return path


@pytest.mark.parametrize("compression", ["", *COMPRESS])
def test_blank_lines_separate_documents(tmp_path: Path, compression: str) -> None:
    path = write(tmp_path / f"a.txt{compression}", TEXT)
    assert list(readers.read([path])) == [
        Document("One line.\nAnother line.", f"{path}:1"),
        Document("Second document.", f"{path}:5"),
    ]


def test_a_file_as_one_document_keeps_its_blank_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "\n" + TEXT)
    assert list(readers.read([path], ReaderOptions(documents="file"))) == [
        Document("One line.\nAnother line.\n\n \nSecond document.", f"{path}:2")
    ]


def test_jsonl_records_are_documents(tmp_path: Path) -> None:
    rows = [{"text": "One.\n\nStill one."}, {"text": "  \n"}, {"id": 3, "text": "Zwei – ü."}]
    path = write(tmp_path / "a.jsonl", "\n".join(json.dumps(row) for row in rows) + "\n\n")
    assert list(readers.read([path])) == [
        Document("One.\n\nStill one.", f"{path}:1"),
        Document("Zwei – ü.", f"{path}:3"),
    ]


def test_csv_quotes_may_hold_commas_and_line_ends(tmp_path: Path) -> None:
    content = io.StringIO()
    csv.writer(content).writerows(
        [["id", " text"], ["1", 'He said "no", twice.\nThen\n\nleft.'], ["2", ""], ["3", "ü"]]
    )
    path = write(tmp_path / "a.csv", content.getvalue())
    assert texts(path) == ['He said "no", twice.\nThen\n\nleft.', "ü"]
    assert texts(path, text_field="id") == ["1", "2", "3"]


def test_parquet_rows_are_documents(tmp_path: Path) -> None:
    rows = [f"Row {number} – ü." for number in range(1000)]
    table = pyarrow.table({"id": list(range(1002)), "body": [*rows, None, " "]})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=300)
    found, counts = read_and_count(tmp_path / "a.parquet", text_field="body")
    assert found == rows
    assert {reason: count for reason, (count, _) in counts.skipped.items()} == {"not a string": 1}
    with pytest.raises(UserError, match=r"a\.parquet: no column 'text' \(it has 'id', 'body'\)"):
        texts(tmp_path / "a.parquet")
    whole = (tmp_path / "a.parquet").read_bytes()
    for content in (whole[:-100], b"no parquet", b""):
        (tmp_path / "a.parquet").write_bytes(content)
        with pytest.raises(UserError, match=r"truncated, or not really \.parquet"):
            texts(tmp_path / "a.parquet", text_field="body")


def test_a_title_goes_before_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(",title,text\n0,One,First.\n1,,Second.\n", encoding="utf-8")
    rows = [{"title": None, "text": "First."}, {"text": "Second."}, {"title": "Three", "text": ""}]
    (tmp_path / "b.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    parquet.write_table(pyarrow.table({"title": ["One", None], "text": ["First.", "Second."]}), tmp_path / "c.parquet")
    assert texts(tmp_path / "a.csv", title_field="title") == ["One\nFirst.", "Second."]
    assert texts(tmp_path / "b.jsonl", title_field="title") == ["First.", "Second.", "Three"]
    assert texts(tmp_path / "c.parquet", title_field="title") == ["One\nFirst.", "Second."]
    assert texts(tmp_path / "a.csv", title_field="title", text_field="title") == ["One"]
    assert texts(tmp_path / "a.csv") == texts(tmp_path / "a.csv", title_field="name") == ["First.", "Second."]
    with pytest.raises(UserError, match=r"a\.csv: no column 'body' \(it has '', 'title', 'text'\)"):
        texts(tmp_path / "a.csv", title_field="title", text_field="body")


def test_a_hub_data_set_is_streamed(tmp_path: Path) -> None:
    write(tmp_path / "data" / "train.jsonl", "") if (tmp_path / "data").mkdir() else None
    (tmp_path / "data" / "train.jsonl").write_text('{"text": "one", "id": 1}\n{"text": "two", "id": 2}\n')
    found = [document.text for document in readers.read([f"hf:{tmp_path / 'data'}"])]
    assert found == ["one", "two"]
    with pytest.raises(UserError, match="no column 'body'"):
        list(readers.read([f"hf:{tmp_path / 'data'}"], ReaderOptions(text_field="body")))
    with pytest.raises(UserError, match="cannot open the data set"):
        list(readers.read([f"hf:{tmp_path / 'data'}::nosuch"]))


@pytest.mark.parametrize(
    ("name", "content", "choices", "expected"),
    [
        ("notes.jsonl.txt", b"No JSON.", {}, ["No JSON."]),  # only the end of a name states the format
        ("a.tsv", b'text\tid\nA "lone quote\t1\n"Both"\t2\n', {}, ['A "lone quote', '"Both"']),
        ("a.jsonl", b'{"body": "yes", "text": "no"}', {"text_field": "body"}, ["yes"]),
        ("a.txt", b"\xef\xbb\xbfOne.\r\n\r\nTwo.\r\n", {}, ["One.", "Two."]),
        ("a.jsonl", '\ufeff{"text": "one"}\n'.encode("utf-16-le"), {"encoding": "utf-16-le"}, ["one"]),
        ("a.jsonl", b'{"text": ""}\n' * 300_000 + b'{"text": "x"}\n', {}, ["x"]),
    ],
    ids=["name", "tsv", "field", "windows", "mark", "empty"],
)
def test_texts_are_read(
    tmp_path: Path, name: str, content: bytes, choices: dict[str, object], expected: list[str]
) -> None:
    assert texts(write(tmp_path / name, content), **choices) == expected


def test_a_text_file_whose_lines_end_in_carriage_returns_has_no_blank_lines_and_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"One.\r\rTwo.\r")
    with pytest.raises(UserError, match=r"its lines end in \\r alone"):
        texts(path)
    assert texts(path, documents="file") == ["One.\r\rTwo."]
    assert texts(write(path, b"One.\rStill one.\n\nTwo.\n")) == ["One.\rStill one.", "Two."]


@pytest.mark.parametrize("name", ["utf-16", "utf-32"])
def test_utf_16_and_32_are_detected_by_their_byte_order_mark(tmp_path: Path, name: str) -> None:
    text = "Zeile Ċ eins.\n\nZwei\u0a00.\n\n" * 2000  # a byte 0x0A within characters
    assert texts(write(tmp_path / "a.txt", text.encode(name))) == ["Zeile Ċ eins.", "Zwei\u0a00."] * 2000
    with pytest.raises(UserError, match=r"a\.txt:\d+: not valid utf-(16|32): the file is damaged"):
        texts(write(tmp_path / "a.txt", text.encode(name)[:-1]))


@pytest.mark.parametrize("name", ["windows-1252", "windows-1250", "koi8-r", "shift_jis", "gb18030"])
def test_other_encodings_are_guessed_and_reported(tmp_path: Path, name: str) -> None:
    line = {
        "windows-1252": "Für die Größe der Häuser müssen wir überall prüfen, ob das möglich ist – „natürlich“.",
        "windows-1250": "Tento člověk přišel včera večer domů a řekl, že už nikdy nepůjde do práce, protože má dovolenou.",
        "koi8-r": "Съешь же ещё этих мягких французских булок, да выпей чаю. Привет, как дела сегодня?",
        "shift_jis": "これは日本語の文章です。今日は天気がとても良いので、公園へ散歩に行きました。",
        "gb18030": "这是一个中文句子。今天天气很好，我们去公园散步，然后回家吃饭。",
    }[name]
    if name == "windows-1252":
        line = line.replace("„", '"').replace("“", '"')
    content = "\n\n".join(f"{number} {line}" for number in range(200))
    path = write(tmp_path / "a.txt", content.encode(name))
    assert texts(path, encoding=name) == content.split("\n\n")
    found, counts = read_and_count(path)
    assert found == content.split("\n\n"), counts.encodings
    assert [count for count, _ in counts.encodings.values()] == [1]
    assert any("encoding guessed as" in line for line in counts.lines())


def test_utf_8_with_some_broken_lines_is_utf_8(tmp_path: Path) -> None:
    lines = [f"Straße {number}".encode() for number in range(100)]
    path = write(tmp_path / "a.txt", b"\n\n".join([*lines, "café".encode("latin-1"), b"last"]))
    found, counts = read_and_count(path)
    assert found == [*(line.decode() for line in lines), "last"]
    assert counts.skipped == {"not in utf-8": [1, f"{path}:201: not UTF-8 (byte 0xe9)"]}
    with pytest.raises(UserError, match=r"a\.txt:201: not UTF-8 \(byte 0xe9\)"):
        texts(path, strict=True)


@pytest.mark.parametrize("name", ["klingon", "hex", "rot13", "zip"])
def test_encodings_that_are_not_for_text_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=f"--encoding {name}: no such encoding"):
        texts(write(tmp_path / "a.txt", "61"), encoding=name)


def test_text_files_of_a_folder_are_read_in_sorted_order(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub" / "a.txt", "third")
    write(tmp_path / "b.jsonl.gz", '{"text": "second"}')
    write(tmp_path / "a.txt.xz", "first")
    write(tmp_path / "picture.png", b"\x00\x01")
    assert texts(tmp_path) == ["first", "second", "third"]


def test_documents_are_streamed_before_the_file_ends(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt.gz", b"good\n\n" + b"".join(b"%d\n" % (n * n) for n in range(500_000)))
    path.write_bytes(path.read_bytes()[:-100])
    documents = readers.read([path])
    assert next(documents).text == "good"
    with pytest.raises(UserError):
        list(documents)


@pytest.mark.parametrize(
    ("name", "content", "reason", "message"),
    [
        ("a.txt", b"fine\n" + b"x" * 100 + b"PK\x03\x00\x00\n", "a NUL byte", r"a\.txt:2: a NUL byte"),
        ("a.jsonl", b'{"text": "fine"}\n{"text": oops}\n', "not JSON", r"a\.jsonl:2: not valid JSON"),
        ("a.jsonl", b'{"text": "fine"}\n{"text": "cut', "not JSON", r"a\.jsonl:2: not valid JSON"),
        ("a.jsonl", b'{"text": "fine"}\n' + b"[" * 100_000, "not JSON", r"a\.jsonl:2: not valid JSON"),
        (
            "a.jsonl",
            b'{"text": "fine"}\n{"body": "x", "id": 1}',
            "no field 'text'",
            r"a\.jsonl:2: no field 'text' \(it has 'body', 'id'\): .*--text-field",
        ),
        (
            "a.jsonl",
            b'{"text": "fine"}\n["text"]',
            "not a JSON object",
            r"a\.jsonl:2: expected a JSON object.*found list",
        ),
        ("a.jsonl", b'{"text": "fine"}\n{"text": 3}', "not a string", r"a\.jsonl:2: field 'text' is not a string"),
        (
            "a.jsonl",
            b'{"text": "fine"}\n{"text": "\\ud83d"}',
            "half a surrogate pair",
            r"a\.jsonl:2: field 'text' has half a surrogate pair",
        ),
        ("a.jsonl", b'{"text": "fine"}\n{"text": "a\\u0000b"}', "a NUL byte", r"a\.jsonl:2: a NUL byte"),
        (
            "a.csv",
            b"text,id\nfine,1\nonly one\n",
            "columns that do not match the first line",
            r"a\.csv:3: 1 column, but the first line has 2",
        ),
        ("a.csv", b'text,id\nfine,1\n"open,2\n', "not CSV", r"a\.csv:3: not valid CSV.*is a quote left open"),
    ],
)
def test_bad_records_are_counted_or_with_strict_refused(
    tmp_path: Path, name: str, content: bytes, reason: str, message: str
) -> None:
    path = write(tmp_path / name, content)
    found, counts = read_and_count(path)
    assert found == ["fine"]
    assert {reason: count for reason, (count, _) in counts.skipped.items()} == {reason: 1}
    with pytest.raises(UserError, match=message) as caught:
        texts(path, strict=True)
    assert caught.value.exit_code == 1
    assert "\n" not in str(caught.value)


def test_a_file_without_any_usable_record_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"body": "x"}\n{"body": "y"}\n')
    with pytest.raises(UserError, match=r"no record of .*a\.jsonl can be used: .*a\.jsonl:2: no field 'text'"):
        texts(path)
    with pytest.raises(UserError, match="two columns are named 'text'"):
        texts(write(tmp_path / "a.csv", "text,text\na,b\n"))
    with pytest.raises(UserError, match=r"a\.txt:1: not text in a known encoding"):
        texts(write(tmp_path / "a.txt", b"\x00\x01\x02" * 100))


@pytest.mark.parametrize("compression", COMPRESS)
def test_truncated_or_damaged_compressed_files_are_errors(tmp_path: Path, compression: str) -> None:
    path = write(tmp_path / f"a.txt{compression}", "".join(f"line {i * i}\n" for i in range(20_000)))
    whole = path.read_bytes()
    contents = [whole[: len(whole) // 2], whole[:-5], b"just text\n", b"x"]
    if compression != ".zst":  # its frames have no checksum, so a changed byte may go unnoticed
        contents.append(whole[:200] + b"damage" + whole[206:])
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(UserError, match=rf"a\.txt\{compression}:\d+: truncated, or not really \{compression}"):
            texts(path)


def test_all_frames_of_a_compressed_file_are_read(tmp_path: Path) -> None:
    for compression, pack in COMPRESS.items():
        path = tmp_path / f"a.txt{compression}"
        path.write_bytes(pack(b"one\n\n") + pack(b"two\n"))
        assert texts(path) == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "lines", "place"),
    [
        ("a.txt", ["x" * 5000, "", "fine"], 1),
        ("a.txt", ["", "", *["no blank line"] * 100, "", "fine"], 3),
        ("a.jsonl", [json.dumps({"text": "x" * 5000}), '{"text": "fine"}'], 1),
        ("a.csv", ["text", "x" * 5000, "fine"], 2),
        ("a.tsv", ["text", "x" * 5000, "fine"], 2),
    ],
)
def test_an_oversize_record_is_skipped(
    tmp_path: Path, name: str, lines: list[str], place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertie.files.lines.MAX_RECORD_BYTES", 1000)
    path = write(tmp_path / name, "\n".join(lines))
    found, counts = read_and_count(path)
    assert found == ["fine"]
    [(count, message)] = counts.skipped.values()
    assert count == 1
    assert message.startswith(f"{path}:{place}: ")


def test_the_sample_may_end_inside_a_character(tmp_path: Path) -> None:
    content = "ü" * (encodings.SAMPLE_BYTES // 2 + 10)
    for before in ("", "a"):
        assert texts(write(tmp_path / "a.txt", before + content)) == [before + content]


@pytest.mark.parametrize("compression", COMPRESS)
def test_damage_after_the_first_frame_is_not_taken_for_the_end(tmp_path: Path, compression: str) -> None:
    parts = [COMPRESS[compression](f"Document {i}.\n\n".encode() * 100) for i in range(3)]
    path = tmp_path / f"a.txt{compression}"

    def read(content: bytes) -> list[str]:
        path.write_bytes(content)
        return texts(path)

    assert len(read(b"".join(parts))) == 300
    for padding in (bytes(512), bytes(4096), bytes(10_000)):  # as on tapes, also longer than a read
        assert len(read(padding.join([*parts, b""]))) == 300
        with pytest.raises(UserError, match="truncated, or not really"):
            read(parts[0] + padding + b"garbage")
    for at in range(3):
        broken = bytearray(parts[1])
        broken[at] ^= 0xFF
        with pytest.raises(UserError, match="truncated, or not really"):
            read(parts[0] + bytes(broken) + parts[2])
    with pytest.raises(UserError, match="truncated, or not really"):
        read(parts[0] + b"garbage")
    with pytest.raises(UserError, match="it is empty"):
        read(b"")


def test_zstandard_files_with_a_long_window_are_read(tmp_path: Path) -> None:
    settings = zstandard.ZstdCompressionParameters.from_level(3, window_log=28, enable_ldm=True)
    compressor = zstandard.ZstdCompressor(compression_params=settings).compressobj()
    (tmp_path / "a.txt.zst").write_bytes(compressor.compress(b"One.\n\nTwo.") + compressor.flush())
    assert texts(tmp_path / "a.txt.zst") == ["One.", "Two."]


LATIN1, ROWS = b"\n\ncaf\xe9 cr\xe8me\n", [b'"broken \xe9",1', b'"two\nlines",2', b'"broken \xe9\ntoo",3', b"fine,4"]


@pytest.mark.parametrize(
    ("name", "content", "expected", "skipped"),
    [
        *(
            ("a.txt", "\n\n".join([line] * 8).encode() + LATIN1, [line] * 8, 1)  # the encoding remains UTF-8
            for line in (
                "Les élèves étaient là.",
                "Ärger über Öl.",
                "Где они были?",
                "彼らはどこにいた。",
                "أين كانوا؟",
            )
        ),
        ("a.csv", b"text,id\n" + b"\n".join(ROWS) + "\né,5".encode() * 9, ["two\nlines", "fine", *"ééééééééé"], 2),
        ("a.csv", b"text,id\ngood,0\n" + b'"open,1\n' + b"lost,2\n" * 99, ["good"], 100),
        ("a.jsonl", b'{"text": " a "}\n{"text": ""}\n{"text": " \\n"}\n', ["a"], 0),
    ],
)
def test_only_what_is_broken_is_skipped(
    tmp_path: Path, name: str, content: bytes, expected: list[str], skipped: int
) -> None:
    found, counts = read_and_count(write(tmp_path / name, content))
    assert found == expected
    assert sum(count for count, _ in counts.skipped.values()) == skipped
    assert counts.blank == 2 * (name == "a.jsonl")


def test_a_parquet_cell_that_is_not_utf_8_is_skipped(tmp_path: Path) -> None:
    cells = pyarrow.array([b"one", b"\xff\xfe", b"three"]).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"text": cells}), tmp_path / "a.parquet")
    found, counts = read_and_count(tmp_path / "a.parquet")
    assert (found, counts.skipped["not in utf-8"][0]) == (["one", "three"], 1)


def test_a_failing_disk_is_a_machine_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(io.BytesIO):
        def read(self, *_: object) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    path = write(tmp_path / "a.txt", "One.")
    monkeypatch.setattr(sources, "_open_raw", lambda _: Failing())
    with pytest.raises(MachineError, match=r"cannot read .*a\.txt: Input/output error"):
        texts(path)


def test_a_file_that_is_deleted_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "One.\n\nTwo.")
    found = readers.read([path])
    next(found)
    path.unlink()
    with pytest.raises(UserError, match="was changed while it was read"):
        list(found)
