"""Files that somebody else wrote to run code, to read other files, or to look like another message."""

import io
import json
import pickle
import struct
import zipfile
from pathlib import Path

import pytest
import torch

from bertie.base import console, storage, untrusted
from bertie.base.errors import LONGEST_MESSAGE, UsageError, UserError
from bertie.checkpoints import pickled
from bertie.checkpoints.find import read_tensors, run_settings
from bertie.checkpoints.pickled import read_pickled, require_plain
from bertie.checkpoints.tensorflow.tensor_bundle import open_bundle, write_bundle
from bertie.predict.convert.conversion import _require_outside


def called(name: bytes, argument: bytes) -> bytes:
    return b"\x80\x02c%s\n%s\x85R." % (name, argument)


def _zipped(data: bytes) -> bytes:
    file = io.BytesIO()
    torch.save({"a": torch.ones(2)}, file)
    written = io.BytesIO()
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(written, "w") as new:
        for name in old.namelist():
            new.writestr(name, data if name.endswith("data.pkl") else old.read(name))
    return written.getvalue()


def _legacy(data: bytes) -> bytes:
    start = (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {}})
    return b"".join(pickle.dumps(value, 2) for value in start) + data + pickle.dumps([], 2)


READERS = {
    "a.json": storage.read_json,
    "modules.json": storage.read_json_list,
    "config.toml": lambda path: run_settings(path.parent),
    "m.index": lambda path: open_bundle(path.parent / "m"),
}
WEIGHTS = ("model.safetensors", "pytorch_model.bin", "m.data-00000-of-00001")


@pytest.mark.parametrize("name", READERS)
def test_a_file_that_is_too_large_is_refused_unread(tmp_path, name):
    with open(tmp_path / name, "wb") as file:
        file.truncate(1 << 40)  # it takes no space, and fits into no memory
    with pytest.raises(UserError, match=rf"{name} .* 1,099,511,627,776 bytes"):
        READERS[name](tmp_path / name)


@pytest.mark.parametrize("name", [*READERS, *WEIGHTS])
def test_a_pointer_of_git_lfs_is_named(tmp_path, name):
    write_bundle(tmp_path / "m", [("a", torch.ones(2))])
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    read = READERS["m.index"] if name.startswith("m.") else READERS.get(name, read_tensors)
    with pytest.raises(UserError, match=rf"{name} is a pointer of Git LFS, not the file: run `git lfs pull`"):
        read(tmp_path / name)


@pytest.mark.parametrize("wrapped", [_zipped, _legacy])
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (called(b"builtins\nbytearray", b"K\x64"), "builtins.bytearray"),
        (called(b"__builtin__\nbytearray", b"K\x64"), "__builtin__.bytearray"),
        (called(b"_codecs\nencode", b"X\x01\x00\x00\x00a"), "_codecs.encode"),
        (called(b"torch._utils\n_rebuild_sparse_tensor", b"K\x64"), "_rebuild_sparse_tensor"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "SHORT_BINUNICODE"),
        (b"\x80\x02(K\x01ios\nsystem\n.", "INST"),
    ],
)
def test_a_pickle_of_more_than_tensors_is_refused_unread(tmp_path, monkeypatch, wrapped, data, message):
    (tmp_path / "a.bin").write_bytes(wrapped(data))
    monkeypatch.setattr(pickled.torch, "load", lambda *_, **__: pytest.fail("it is read"))
    with pytest.raises(UserError, match=f"a.bin is not read: it holds more than tensors .*{message}"):
        read_pickled(tmp_path / "a.bin")


def test_the_pickle_of_a_training_is_plain():
    file = io.BytesIO()
    tensors = {f"layer.{i}": torch.nn.Parameter(torch.ones(1)) for i in range(3000)}
    module = torch.nn.Linear(2, 2).state_dict()
    plain = {"set": {1, 2}, "size": torch.ones(2, 3).shape, "device": torch.device("cpu"), "dtype": torch.float16}
    schedule = torch.optim.lr_scheduler.MultiStepLR(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]), [3, 5])
    trained = {"epoch": 3, "schedule": schedule.state_dict(), "shape": [(1, None, 2.5, True), 2**40], **plain}
    torch.save({"state_dict": tensors, "module": module, "small": torch.ones(2, dtype=torch.uint16), **trained}, file)
    with zipfile.ZipFile(file) as parts:
        require_plain(io.BytesIO(next(parts.read(name) for name in parts.namelist() if name.endswith("data.pkl"))))


def _write_header(path: Path, header: dict[str, object], data: bytes = b"") -> None:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.mark.parametrize("dtype", ["U32", "U64", "U16"])
def test_unsigned_integers_are_read(tmp_path, dtype):
    _write_header(
        tmp_path / "a.safetensors",
        {"a": {"dtype": dtype, "shape": [1], "data_offsets": [0, int(dtype[1:]) // 8]}},
        b"\1" * (int(dtype[1:]) // 8),
    )
    assert read_tensors(tmp_path / "a.safetensors")["a"].numel() == 1


def test_weights_that_do_not_fit_into_memory_are_named(tmp_path, monkeypatch):
    def empty(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 42949672960 bytes")

    _write_header(tmp_path / "a.safetensors", {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4)
    monkeypatch.setattr(torch.Tensor, "clone", empty)
    with pytest.raises(UserError, match=r"a\.safetensors does not fit into memory"):
        read_tensors(tmp_path / "a.safetensors")


def test_no_file_is_a_link_out_of_its_folder(tmp_path):
    folder, outside = tmp_path / "model", tmp_path / "secret"
    folder.mkdir()
    outside.write_text("{}")
    (tmp_path / "elsewhere").mkdir()
    (folder / "data").symlink_to(tmp_path / "elsewhere")  # a folder, of which nothing is read
    (folder / "config.json").write_text("{}")
    (folder / "same.json").symlink_to("config.json")
    untrusted.require_inside(folder)
    (folder / "added_tokens.json").symlink_to(outside)
    with pytest.raises(UserError, match=r"added_tokens.json is a link to .*secret"):
        untrusted.require_inside(folder)
    with pytest.raises(UserError, match="data/x"):
        untrusted.require_inside(folder, ["data/x"])


def test_a_link_into_the_cache_of_the_hub_is_inside(tmp_path):
    folder = tmp_path / "snapshots" / "1"
    for path in (folder, tmp_path / "blobs"):
        path.mkdir(parents=True)
    (tmp_path / "blobs" / "b").write_text("{}")
    (folder / "config.json").symlink_to("../../blobs/b")
    untrusted.require_inside(folder)


def test_messages_are_one_short_line(capsys):
    assert str(UserError("a\nb\x1b[31mé", "c\r")) == r"a\nb\x1b[31mé. c\r"
    assert len(str(UserError("n" * 10**6))) < LONGEST_MESSAGE + 10
    console.warn("a\nb")
    assert capsys.readouterr().err == "warning: a\\nb\n"


def test_the_result_of_convert_is_not_beside_the_source_of_tensorflow(tmp_path):
    (tmp_path / "model.ckpt.index").touch()
    with pytest.raises(UsageError, match="is in the source"):
        _require_outside(tmp_path / "out", tmp_path / "model.ckpt")
    _require_outside(tmp_path / "out", tmp_path / "other.ckpt", Path("owner/model"))
