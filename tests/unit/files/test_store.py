from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from bertie.base.errors import MachineError, UsageError, UserError, redacted
from bertie.files import store
from bertie.files.sources import find
from bertie.files.store import Store

CONTENT = bytes(range(250))
Answer = Callable[[int, bytes], bytes]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Answer]]:
    """What happens to the requests of memory://, in their order. Later ones succeed."""
    answers: list[Answer] = []
    read = MemoryFileSystem.cat_file

    def cat_file(system: MemoryFileSystem, path: str, start: int | None = None, end: int | None = None) -> bytes:
        found = read(system, path, start=start, end=end)
        return answers.pop(0)(start or 0, found) if answers else found

    fsspec.filesystem("memory").pipe_file("/store/a", CONTENT)
    monkeypatch.setattr(MemoryFileSystem, "cat_file", cat_file)
    monkeypatch.setattr(store, "CHUNK", 100)
    monkeypatch.setattr(store, "PAUSE", 0.0)
    yield answers
    fsspec.filesystem("memory").rm("/store", recursive=True)


def fail(start: int, _: bytes) -> bytes:
    raise OSError(f"connection reset\nat {start}")


def test_a_store_without_ranges_sends_the_whole_file(answers: list[Answer]) -> None:
    answers += [lambda *_: CONTENT]
    assert Store("memory://store").read("a", 100, 250) == CONTENT[100:]


def test_failed_and_short_answers_are_repeated(answers: list[Answer]) -> None:
    answers += [fail, lambda _, found: found[:-1], lambda _, found: found + found[:7], lambda *_: b"", fail]
    assert Store("memory://store").read("a", 100, 250) == CONTENT[100:200]
    assert not answers


def test_a_store_that_always_fails_is_named(answers: list[Answer]) -> None:
    answers += [fail] * store.ATTEMPTS
    with pytest.raises(
        MachineError, match=r"reading memory://store/a failed 8 times, .*connection reset at 100: repeat"
    ):
        Store("memory://store").read("a", 100, 250)
    assert not answers


def test_what_a_store_says_names_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> bytes:
        raise OSError("no bucket 'me:hidden@store', and hidden is no key of me")

    monkeypatch.setattr(store, "ATTEMPTS", 1)
    monkeypatch.setattr(MemoryFileSystem, "cat_file", refuse)
    with pytest.raises(MachineError, match=r"because no bucket '…@store', and … is no key of me") as refused:
        Store("memory://me:hidden@store").read("a", 0, 250)
    assert "hidden" not in str(refused.value)


def test_a_traceback_shows_no_secrets() -> None:
    for url, work in (
        ("nothing://me:hidden@store", lambda url: Store(url).read("a", 0, 250)),
        ("nothing://me:hidden@store/a.txt", lambda url: find([url])),
    ):
        with pytest.raises(UserError) as refused:
            work(url)
        assert "hidden" not in "".join(traceback.format_exception_only(refused.value))
        shown = refused.value.__cause__ or (None if refused.value.__suppress_context__ else refused.value.__context__)
        assert shown is None


def test_files_of_unknown_size_are_repeated_until_they_can_be_read(answers: list[Answer]) -> None:
    answers += [lambda _, found: found[:9]]

    def read(content: bytes) -> int:
        if content != CONTENT:
            raise ValueError("incomplete")
        return len(content)

    assert Store("memory://store").read_whole("a", read) == 250


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://store/none", r"memory://store/none/a is missing"),
        ("s3://bucket/shards", r"cannot read s3://bucket/shards/a: Install s3fs"),
        (
            "s4://bucket/shards",
            r"s4://bucket/shards is not the URL of a store \(Protocol not known: s4\): give one such as s3:",
        ),
    ],
)
def test_errors_that_do_not_pass_are_not_repeated(url: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "ATTEMPTS", 1)
    monkeypatch.setitem(__import__("sys").modules, "s3fs", None)  # as if it were not installed
    with pytest.raises(UserError, match=message):
        Store(url).read("a", 0, 250)


def test_a_query_is_refused() -> None:
    with pytest.raises(UsageError, match=r"https://host/shards\?… has a query, and shards need the URL of a folder"):
        Store("https://host/shards?token=secret")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:secret@host/a?key=b", "https://…@host/a?…"),
        ("reading https://token@host/a failed: why?", "reading https://…@host/a failed: why?"),
        ("https://me:p@ss@host/a@b and https://to@ken@host", "https://…@host/a@b and https://…@host"),
        ("'ftp://me:secret@host/a' and \"https://host/b?sig=c\": no", "'ftp://…@host/a' and \"https://host/b?…\": no"),
        ("abfs://container@account/a", "abfs://container@account/a"),
        ("s3://bucket/a?.txt me@host", "s3://bucket/a?.txt me@host"),
    ],
)
def test_messages_have_no_secrets(text: str, shown: str) -> None:
    assert redacted(text) == shown
    assert str(UserError(text)) == shown
