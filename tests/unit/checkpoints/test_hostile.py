"""Files that somebody else wrote to take memory or time, to read other files, or to look like another message."""

import io
import json
import pickle
import struct
import zipfile
from pathlib import Path

import pytest
import torch

from bertie import console, storage, untrusted
from bertie.checkpoints import pickled, weight_files
from bertie.checkpoints.huggingface import class_names
from bertie.checkpoints.pickle_check import require_small
from bertie.checkpoints.pickled import read_pickled
from bertie.checkpoints.tensorflow.table import read_table, write_table
from bertie.checkpoints.tensorflow.tensor_bundle import open_bundle, write_bundle
from bertie.checkpoints.weight_files import read_tensors
from bertie.errors import LONGEST_MESSAGE, UsageError, UserError
from bertie.files.model_folder import ModelFolder
from bertie.predict.checkpoint_task import run_settings
from bertie.predict.export import _require_outside

BYTES = b"\x80\x02}X\x01\x00\x00\x00acbuiltins\nbytearray\nJ\x00\x00\x00\x7f\x85Rs."
OLD_BYTES = BYTES.replace(b"builtins", b"__builtin__")
PAIRS = b"\x80\x02K\x01q\x00" + b"".join(b"h%ch%c\x86q%c" % (i, i, i + 1) for i in range(40)) + b"}h\x28K\x01s."
"""A key of 2^40 parts: each tuple holds the one before twice."""
LISTS = b"\x80\x02K\x01q\x00" + b"".join(b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(40))
"""The same with lists, which are filled after they were made."""
TENSOR = (
    b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000"
    b"X\x03\x00\x00\x00cpuK\x02tQK\x00J\x00\x00\x00\x7f\x85K\x00\x85\x89ccollections\nOrderedDict\n)RtR"
)
"""2^31 times the same number."""
TEXT = b"c_codecs\nencode\n" * 30 + b"X\x01\x00\x00\x00a" + b"X\x03\x00\x00\x00hex\x86R" * 30


def called(name: bytes, argument: bytes) -> bytes:
    return b"\x80\x02c%s\n%s\x85R." % (name, argument)


LATER = b"\x80\x02]q\x00\x85h\x00K\x01a."
COPIES = b"\x80\x02](%seq\x00(%st." % (b"K\x01" * 1000, b"ctorch\nSize\nh\x00\x85R" * 10_000)
DEEP = b"\x80\x02" + b"(" * 1000 + b"t" * 1000 + b"."
TUPLES = b"\x80\x02K\x01" + b"\x85" * 1000 + b"."


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
    "tokenizer.json": lambda path: ModelFolder(path.parent).read(path.name),
    "config.toml": lambda path: run_settings(path.parent),
    "m.index": lambda path: open_bundle(path.parent / "m"),
}
WEIGHTS = ("model.safetensors", "pytorch_model.bin", "m.data-00000-of-00001")


@pytest.mark.parametrize("name", READERS)
def test_a_file_that_is_too_large_is_refused_unread(tmp_path, name):
    with open(tmp_path / name, "wb") as file:
        file.truncate(1 << 40)  # it takes no space, and fits into no memory
    with pytest.raises(UserError, match=rf"{name} has 1,099,511,627,776 bytes, .* at most [\d,]+ are read"):
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
        *((BYTES, "bytearray"), (OLD_BYTES, "bytearray"), (PAIRS, "names"), (DEEP, "deep"), (TUPLES, "deep")),
        *((LISTS + b".", "names"), (COPIES, "names"), (LATER, "already part"), (b"\x80\x02" + TEXT + b".", "encode")),
        *((called(name, TENSOR), name.split()[1].decode()) for name in (b"__builtin__\nset", b"torch\nSize")),
        *((called(name, b"K\x64"), name.split()[1].decode()) for name in (b"torch\nFloatTensor", b"torch\nTensor")),
        (called(b"collections\nOrderedDict", TENSOR), "OrderedDict"),
        (b"\x80\x02ccollections\nOrderedDict\n)R" + TENSOR + b"b.", "state of an object"),
        (b"\x80\x02" + TENSOR + b"K\x01\x85b.", "state of an object"),
        (b"\x80\x02K\x01K\x01\x85R.", "a call"),
    ],
)
def test_a_pickle_that_would_build_large_objects_is_refused_unread(tmp_path, monkeypatch, wrapped, data, message):
    (tmp_path / "a.bin").write_bytes(wrapped(data))
    monkeypatch.setattr(pickled.torch, "load", lambda *_, **__: pytest.fail("it is read"))
    with pytest.raises(UserError, match=f"a.bin is not read: it .*{message}"):
        read_pickled(tmp_path / "a.bin")


def test_the_pickle_of_many_tensors_is_small():
    file = io.BytesIO()
    tensors = {f"layer.{i}": torch.nn.Parameter(torch.ones(1)) for i in range(3000)}
    module = torch.nn.Linear(2, 2).state_dict()
    plain = {"set": {1, 2}, "size": torch.ones(2, 3).shape, "device": torch.device("cpu"), "dtype": torch.float16}
    schedule = torch.optim.lr_scheduler.MultiStepLR(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]), [3, 5])
    trained = {"epoch": 3, "schedule": schedule.state_dict(), "shape": [(1, None, 2.5, True), 2**40], **plain}
    torch.save({"state_dict": tensors, "module": module, "small": torch.ones(2, dtype=torch.uint16), **trained}, file)
    with zipfile.ZipFile(file) as parts:
        require_small(io.BytesIO(next(parts.read(name) for name in parts.namelist() if name.endswith("data.pkl"))))


def test_a_compressed_file_is_refused_also_if_python_finds_no_directory(tmp_path):
    file, packed = io.BytesIO(), io.BytesIO()
    torch.save({"a": torch.zeros(1000)}, file)
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    for end, message in ((b"", "compressed"), (b"PK\x05\x06", "damaged")):
        (tmp_path / "a.bin").write_bytes(packed.getvalue() + end)
        with pytest.raises(UserError, match=message):
            read_pickled(tmp_path / "a.bin")


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


def test_too_many_tensors_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(weight_files, "MAX_TENSORS", 2)
    _write_header(
        tmp_path / "a.safetensors", {str(i): {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(3)}
    )
    with pytest.raises(UserError, match="more than 2 tensors"):
        read_tensors(tmp_path / "a.safetensors")


def test_weights_that_do_not_fit_into_memory_are_named(tmp_path, monkeypatch):
    def empty(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 42949672960 bytes")

    _write_header(tmp_path / "a.safetensors", {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4)
    monkeypatch.setattr(weight_files.torch, "empty", empty)
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


def test_long_keys_and_many_classes_are_refused_before_they_are_copied():
    with pytest.raises(UserError, match="a key has 20,000 bytes"):
        read_table(write_table({b"k" * 20_000: b""}))
    with pytest.raises(UsageError, match="at most 100,000"):
        class_names({"id2label": {str(i): "a" for i in range(100_001)}})
