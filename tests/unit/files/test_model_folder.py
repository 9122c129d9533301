"""The small files of a model's folder: each is read once."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertie.base.errors import UserError
from bertie.files.model_folder import KEPT, ModelFolder


def test_a_file_is_read_and_parsed_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a": 1}')
    (tmp_path / "vocab.txt").write_bytes("\ufeffä\n".encode())
    folder = ModelFolder(tmp_path)
    first, text, checksum = folder.json("config.json"), folder.text("vocab.txt"), folder.sha256("config.json")
    for path in tmp_path.iterdir():
        path.unlink()
    assert folder.json("config.json") is first == {"a": 1}
    assert folder.text("vocab.txt") == text == "ä\n"
    assert folder.sha256("config.json") == checksum
    assert [folder.has("config.json"), folder.has("task.json")] == [True, False]
    assert (folder.json("task.json"), folder.json_list("modules.json")) == ({}, [])
    with pytest.raises(UserError, match=r"config\.json is damaged"):
        folder.json_list("config.json")


def test_forgetting_keeps_the_values_of_small_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a": 1}')
    (tmp_path / "tokenizer.json").write_text('{"b": "' + "x" * KEPT + '"}')
    folder = ModelFolder(tmp_path)
    assert all(map(folder.json, ("config.json", "tokenizer.json")))
    folder.forget()
    for path in tmp_path.iterdir():
        path.unlink()
    assert [folder.has("config.json"), folder.has("tokenizer.json")] == [True, False]


def test_a_folder_inside_knows_the_one_above(tmp_path: Path) -> None:
    (tmp_path / "0_Transformer").mkdir()
    folder = ModelFolder(tmp_path)
    assert folder.inside("") is folder
    assert folder.inside("0_Transformer").above is folder is folder.inside("0_Transformer").above


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("{}")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").symlink_to(tmp_path / "secret")
    with pytest.raises(UserError, match=r"config\.json is a link to .* outside the folder"):
        ModelFolder(tmp_path / "model").json("config.json")
