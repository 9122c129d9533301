from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bertie.base import storage
from bertie.base.errors import UsageError, UserError


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_sha256_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc" * 1_000_000)
    assert storage.sha256(tmp_path / "a") == hashlib.sha256(b"abc" * 1_000_000).hexdigest()


def test_write_atomic_replaces_a_file(tmp_path: Path) -> None:
    for content in ("first\n", b"second", "dritte ü"):
        storage.write_atomic(tmp_path / "a", content)
        expected = content if isinstance(content, bytes) else content.encode()
        assert (tmp_path / "a").read_bytes() == expected
    assert names(tmp_path) == {"a"}


@pytest.mark.parametrize("stage", ["fsync", "replace"])
def test_the_old_content_remains_if_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    storage.write_atomic(tmp_path / "a", "old")
    monkeypatch.setattr(os, stage, fail)
    with pytest.raises(UserError, match=r"cannot write .*a: No space left on device"):
        storage.write_atomic(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "old"
    assert names(tmp_path) == {"a"}


def test_writing_into_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot write .*missing"):
        storage.write_atomic(tmp_path / "missing" / "a", "x")


def test_atomic_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    with storage.atomic_folder(tmp_path / "deep" / "out") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "a").write_text("x")
        assert not (tmp_path / "deep" / "out").exists()
        assert folder.name.startswith(".")
    assert (tmp_path / "deep" / "out" / "inner" / "a").read_text() == "x"
    assert names(tmp_path / "deep") == {"out"}


@pytest.mark.parametrize("error", [ValueError, UserError, KeyboardInterrupt])
def test_an_error_leaves_no_folder(tmp_path: Path, error: type[BaseException]) -> None:
    def write() -> None:
        with storage.atomic_folder(tmp_path / "out") as folder:
            (folder / "a").write_text("x")
            raise error

    with pytest.raises(error):
        write()
    assert names(tmp_path) == set()


def test_a_full_disk_leaves_no_folder(tmp_path: Path) -> None:
    def write() -> None:
        with storage.atomic_folder(tmp_path / "out"):
            raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match=r"cannot write .*out: No space left on device"):
        write()
    assert names(tmp_path) == set()


def test_a_disk_error_while_a_folder_is_replaced_keeps_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace(content: str) -> None:
        with storage.atomic_folder(tmp_path / "out", replace=True) as folder:
            (folder / "a").write_text(content)

    def fail(path: Path) -> None:
        raise OSError(28, "No space left on device", str(path))

    replace("first")
    with monkeypatch.context() as patch:
        patch.setattr(storage, "fsync", fail)
        with pytest.raises(UserError, match="No space left"):
            replace("second")
    assert (tmp_path / "out" / "a").read_text() == "first"
    replace("third")
    assert (tmp_path / "out" / "a").read_text() == "third"
    assert names(tmp_path) == {"out"}


def test_a_killed_process_leaves_only_temporary_files(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys; from bertie.base import storage\n"
        "with storage.atomic_folder(pathlib.Path(sys.argv[1])) as folder:\n"
        "    (folder / 'a').write_text('x'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "out")], check=False)
    assert names(tmp_path) == {".out.tmp-new", ".out.tmp-lock"}
    with storage.atomic_folder(tmp_path / "out") as folder:
        assert names(folder) == set()
    assert names(tmp_path) == {"out"}
    (tmp_path / "out").rename(tmp_path / "kept")
    for name in (".b.tmp-123", ".c.tmp-123"):
        (tmp_path / name).write_text("half")
    storage.remove_leftovers(tmp_path, "c")
    assert names(tmp_path) == {"kept", ".b.tmp-123"}
    storage.remove_leftovers(tmp_path)
    assert names(tmp_path) == {"kept"}


def test_atomic_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    with storage.atomic_file(tmp_path / "new" / "a") as temporary:
        temporary.write_text("whole")
        assert names(tmp_path / "new") == {".a.tmp-new", ".a.tmp-lock"}
        with pytest.raises(UsageError, match="another process"), storage.atomic_file(tmp_path / "new" / "a"):
            pass
    assert (tmp_path / "new" / "a").read_text() == "whole"

    def fail(error: BaseException) -> None:
        with storage.atomic_file(tmp_path / "new" / "a") as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(UserError, match=r"cannot write .*a: No space left"):
        fail(OSError(28, "No space left on device"))
    with pytest.raises(KeyboardInterrupt):
        fail(KeyboardInterrupt())
    assert (tmp_path / "new" / "a").read_text() == "whole"
    assert names(tmp_path / "new") == {"a"}


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with storage.atomic_folder(tmp_path / "out") as folder:
        (folder / "a").write_text("first")
        for _ in range(2):
            with pytest.raises(UsageError, match="another process is writing"), storage.atomic_folder(tmp_path / "out"):
                pass
    assert (tmp_path / "out" / "a").read_text() == "first"
    assert names(tmp_path) == {"out"}


def test_json_is_read_back(tmp_path: Path) -> None:
    value = {"a": [1, 2.5, None, True], "ü": {"b": "ß"}}
    storage.write_json(tmp_path / "a.json", value)
    assert storage.read_json(tmp_path / "a.json") == value
    assert "ü" in (tmp_path / "a.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": 1', b"\xff", b"[1]", b"3", b"[" * 100_000])
def test_damaged_json_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.json is damaged"):
        storage.read_json(tmp_path / "a.json")


@pytest.mark.parametrize(
    "content",
    [
        '{"a": 1,\n "b": {"a": {}}, "a": 1}',
        '\n\n[{"b": 1}, {"b": 1},\n {"c": "\\"b\\": }{", "b" \n: [], "\\u0062": "x"}]\n',
        '{"b": "a",\n"a":\n{"x": {"y": 1,\n"y"\t: 2}}}',
    ],
)
def test_a_key_that_stands_twice_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.json").write_text(content)
    read = storage.read_json_list if content.lstrip()[0] == "[" else storage.read_json
    with pytest.raises(UserError, match=r"x\.json: the key '[aby]' occurs twice in an object: keep one"):
        read(tmp_path / "x.json")


def test_the_size_of_json_is_bounded(tmp_path: Path) -> None:
    storage.write_json(tmp_path / "a.json", {"a": "x" * 1000})
    with pytest.raises(UserError, match=r"a\.json .*1,\d+ bytes.* 1,000"):
        storage.read_json(tmp_path / "a.json", 1000)
    assert storage.read_json(tmp_path / "a.json", None) == storage.read_json(tmp_path / "a.json")


def test_read_json_list_requires_an_array(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[1, {"a": 2}]')
    assert storage.read_json_list(tmp_path / "a.json") == [1, {"a": 2}]
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(UserError, match="is not a JSON array"):
        storage.read_json_list(tmp_path / "a.json")
    storage.write_json(tmp_path / "a.json", {"b": 1, "c": 2})
    with pytest.raises(UserError, match="holds a JSON object, but must hold a list of tasks"):
        storage.read_json_list(tmp_path / "a.json", "a list of tasks")
    (tmp_path / "a.json").write_text("[1]")
    with pytest.raises(UserError, match="holds a JSON value, but must hold an object"):
        storage.read_json(tmp_path / "a.json", None, "an object")


def test_a_missing_json_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no such file: .*a\.json"):
        storage.read_json(tmp_path / "a.json")


def test_require_fresh_refuses_a_folder_with_files(tmp_path: Path) -> None:
    storage.require_fresh(tmp_path / "new", "the run")
    storage.require_fresh(tmp_path, "the run")  # an empty folder is accepted
    (tmp_path / "a").write_text("x")
    for path in (tmp_path, tmp_path / "a"):
        with pytest.raises(UsageError, match="already exists: choose another place for the run"):
            storage.require_fresh(path, "the run")


def test_verify_names_missing_and_altered_files(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    paths = [tmp_path / "inner" / "b", tmp_path / "a"]
    for path in paths:
        path.write_text(f"content of {path.name}")
    found = storage.checksums(tmp_path, paths)
    assert list(found) == ["inner/b", "a"]
    assert json.loads(json.dumps(found)) == found
    storage.verify(tmp_path, found, "do something")
    damages = {
        "was altered": "content of B",
        "bytes instead of": "content",
    }
    for message, content in damages.items():
        (tmp_path / "inner" / "b").write_text(content)
        with pytest.raises(UserError, match=f"inner/b .*{message}.*do something"):
            storage.verify(tmp_path, found, "do something")
    (tmp_path / "inner" / "b").unlink()
    with pytest.raises(UserError, match="inner/b is missing: do something"):
        storage.verify(tmp_path, found, "do something")


def test_a_folder_is_replaced_at_the_end_of_the_block(tmp_path: Path) -> None:
    path = tmp_path / "out"
    for content in ("one", "two"):
        with storage.atomic_folder(path, replace=True) as folder:
            (folder / "file").write_text(content)
            assert content == "one" or (path / "file").read_text() == "one"
    assert (path / "file").read_text() == "two"
    assert list(tmp_path.iterdir()) == [path]
