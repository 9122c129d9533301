from __future__ import annotations

import os
from pathlib import Path

import fsspec
import pytest

from bertie.base.errors import UsageError, UserError
from bertie.corpus.readers import read
from bertie.files import sources
from bertie.files.sources import Source, find, groups


def names(*texts: str | Path) -> list[str]:
    return [source.name for source in find(texts)]


@pytest.mark.parametrize("name", ["nowhere", "picture.png", "empty"])
def test_wrong_paths_are_usage_errors_before_anything_is_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "picture.png").touch()
    (tmp_path / "good.txt").write_text("text")
    with pytest.raises(UsageError, match=name):
        read([tmp_path / "good.txt", tmp_path / name])


def test_folders_and_patterns_find_known_files_in_sorted_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a.jsonl.zst", "sub/c.csv", "sub/.hidden.txt", ".git/d.txt", "sub/notes.doc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert names(tmp_path) == ["a.jsonl.zst", "b.txt", "sub/c.csv"]
    assert names(str(tmp_path / "*.txt")) == ["b.txt"]
    assert names(str(tmp_path / "**" / "*.csv"), tmp_path / "b.txt") == ["sub/c.csv", "b.txt"]
    with pytest.raises(UsageError, match="no file matches"):
        find([str(tmp_path / "*.parquet")])
    with pytest.raises(UsageError, match="cannot tell the format"):
        find([str(tmp_path / "sub" / "*.doc")])


def test_an_existing_file_whose_name_looks_like_a_pattern_is_read(tmp_path: Path) -> None:
    (tmp_path / "a[1].txt").write_text("found")
    assert [document.text for document in read([tmp_path / "a[1].txt"])] == ["found"]


def test_urls_may_name_files_folders_and_patterns() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/corpus/a.txt", b"one\n\ntwo")
    memory.pipe("/corpus/sub/b.txt.gz", __import__("gzip").compress(b"three"))
    memory.pipe("/corpus/c.doc", b"no")
    for url in (["memory://corpus"], ["memory://corpus/a.txt", "memory://corpus/sub/*.gz"]):
        assert [document.text for document in read(url)] == ["one", "two", "three"]
    with pytest.raises(UsageError, match=r"no such file: memory://corpus/d\.txt"):
        find(["memory://corpus/d.txt"])
    with pytest.raises(UsageError, match="cannot tell the format"):
        find(["memory://corpus/c.doc"])
    with pytest.raises(UserError, match=r"cannot look up nosuch://a\.txt"):
        find(["nosuch://a.txt"])


def test_neighboring_files_are_grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MIN_GROUP_BYTES", 10)
    files = [Source(f"{size}.txt", "", size, "") for size in (3, 4, 5, 20, 1, 1)]
    assert [[file.size for file in group] for group in groups(files)] == [[3, 4], [5], [20], [1, 1]]
    many = [Source(f"{number}.txt", "", 1, "") for number in range(1600)]
    assert {len(group) for group in groups(many)} == {100}  # a sixteenth of all
    monkeypatch.setattr(sources, "MAX_GROUP_BYTES", 50)
    assert {len(group) for group in groups(many)} == {50}
    hub = Source("hf:a/b", "", 0, "")
    assert [len(group) for group in groups([files[0], hub, hub, files[0]])] == [1, 1, 1, 1]


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\n\ntwo\n")
    documents = read([path])
    next(documents)
    path.write_text("one\n\ntwo and more\n")
    with pytest.raises(UserError, match=r"a\.txt was changed while it was read"):
        list(documents)


def test_a_subfolder_without_read_permission_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("Read.")
    (tmp_path / "closed").mkdir()
    scan = os.scandir

    def scandir(path: str) -> object:  # as for a user without permission; root has all permissions
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(PermissionError, match="closed"):
        sources.find([tmp_path])


def test_linked_folders_are_read_once_and_suffixes_ignore_case(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "folder"
    elsewhere.mkdir()
    folder.mkdir()
    for path in (elsewhere / "b.txt", folder / "A.TXT", folder / "c.json"):
        path.write_text("x")
    (folder / "linked").symlink_to(elsewhere)
    (folder / "loop").symlink_to(folder)
    assert names(folder) == ["A.TXT", "linked/b.txt"]
    assert "1 of 3 files are not read" in capsys.readouterr().err
    assert [document.text for document in read([folder])] == ["x", "x"]


def test_paths_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("x")
    monkeypatch.chdir(tmp_path)
    assert [source.path for source in find(["a.txt"])] == [str(tmp_path / "a.txt")]


def test_a_file_name_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    try:
        Path(os.fsdecode(bytes(tmp_path) + b"/\xff.txt")).write_text("x")
    except OSError:
        pytest.skip("needs a file system with names that are not UTF-8")
    with pytest.raises(UsageError, match="the name is not UTF-8: rename the file"):
        find([tmp_path])


def test_recursive_patterns_end_at_cyclic_links(tmp_path: Path) -> None:
    for name in ("a.txt", "sub/b.txt", "sub/deep/c.txt", "sub/.git/d.txt", "sub/deep/e.doc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "sub" / "loop").symlink_to(tmp_path)
    (tmp_path / "sub" / "again").symlink_to(tmp_path / "sub")
    assert names(str(tmp_path / "**" / "*.txt")) == ["a.txt", "sub/b.txt", "sub/deep/c.txt"]
    assert names(str(tmp_path / "sub" / "**" / "*.txt")) == [
        "b.txt",
        "deep/c.txt",
        "loop/a.txt",
    ]  # the last one through a link
    assert names(str(tmp_path / "s?b" / "**" / "[c-z].txt")) == ["sub/deep/c.txt"]
    assert names(str(tmp_path / "**" / "deep" / "*.txt")) == ["sub/deep/c.txt"]


@pytest.mark.parametrize("text", ["hf:", "hf:a:b:c:d", ""])
def test_malformed_names_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"a data set is hf:ID|has an empty name"):
        find([text])
    sources.require_outside(Path("out"), [text])  # an empty name is not the current folder
