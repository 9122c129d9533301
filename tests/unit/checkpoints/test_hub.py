"""Uploads, against a stand-in for the hub on this machine that answers what huggingface_hub asks."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import _http

import bertie
from bertie.base.errors import UsageError, UserError
from bertie.checkpoints import hub
from bertie.cli import main

pytestmark = pytest.mark.filterwarnings(
    "ignore:Use 'content=:DeprecationWarning"
)  # how the hub's client uses its library
TOKEN = "hf_" + "x" * 34


@dataclass
class Hub:
    """The state of the stand-in."""

    address: str = ""
    private: dict[str, bool] = field(default_factory=dict)
    """The repositories, and whether they are private."""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Their committed files."""
    stored: dict[str, bytes] = field(default_factory=dict)
    """Large files by checksum, which a commit may name."""
    commits: int = 0
    fails: dict[str, int] = field(default_factory=dict)
    """Parts of paths, and with which status they fail; 0: the connection is dropped."""
    asked: list[str] = field(default_factory=list)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def answer(self) -> None:
        state: Hub = self.server.state
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/api/agent-harnesses":  # which program runs the client, which the hub would like to know
            self.reply({}, 404)
            return
        state.asked.append(f"{self.command} {self.path}")
        if (status := next((code for part, code in state.fails.items() if part in self.path), None)) is not None:
            if not status:
                self.close_connection = True
                return
            self.reply({"error": f"refused with {status}"}, status)
            return
        if self.path.startswith("/stored/"):
            name = self.path.rpartition("/")[2]
            assert hashlib.sha256(body).hexdigest() == name
            state.stored[name] = body
            self.reply({})
            return
        assert self.headers["Authorization"] == f"Bearer {TOKEN}", self.path
        self.reply(*self.api(state, body))

    do_GET = do_POST = do_PUT = answer  # noqa: N815 - names of the base class

    def api(self, state: Hub, body: bytes) -> tuple[Any, int]:
        path = self.path.partition("?")[0]
        if path == "/api/validate-yaml":
            return {"errors": [], "warnings": []}, 200
        given = json.loads(body) if body and not path.endswith("/commit/main") else {}
        if path == "/api/repos/create":
            repo = f"{given['organization'] or 'me'}/{given['name']}"
            found = {"url": f"{state.address}/{repo}", "error": "You already created this model repo"}
            if repo in state.private:
                return found, 409
            state.private[repo], state.files[repo] = given.get("visibility") == "private", {".gitattributes": b""}
            return found, 200
        repo = "/".join(path.removeprefix("/api/models/").removeprefix("/").split("/")[:2]).removesuffix(".git")
        if path.endswith("/preupload/main"):
            large = (".safetensors", ".onnx")
            modes = [
                {"path": each["path"], "uploadMode": "lfs" if each["path"].endswith(large) else "regular"}
                for each in given["files"]
            ]
            return {"files": [each | {"shouldIgnore": False} for each in modes]}, 200
        if path.endswith("/info/lfs/objects/batch"):
            return {
                "transfer": "basic",
                "objects": [
                    each | {"actions": {"upload": {"href": f"{state.address}/stored/{each['oid']}"}}}
                    for each in given["objects"]
                ],
            }, 200
        if path.endswith("/commit/main"):
            new = {}
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    new[value["path"]] = b64decode(value["content"])
                if line["key"] == "lfsFile":
                    new[value["path"]] = state.stored[value["oid"]]
            state.files[repo] |= new
            state.commits += 1
            return {"commitUrl": f"{state.address}/{repo}/commit/{'0' * 40}", "commitOid": "0" * 40}, 200
        if repo not in state.private:
            return {"error": "Repository not found"}, 404
        siblings = [{"rfilename": name} for name in state.files[repo]]
        return {"id": repo, "private": state.private[repo], "siblings": siblings}, 200

    def reply(self, value: Any, status: int = 200) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.state = Hub(f"http://127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", server.state.address)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # its protocol is that of a library without sources here
    monkeypatch.setattr(_http, "time", SimpleNamespace(sleep=lambda _: None, time=time.time))  # between its attempts
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield server.state
    server.shutdown()
    server.server_close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    out = tmp_path / "model"
    (out / "onnx").mkdir(parents=True)
    (out / "README.md").write_text("---\npipeline_tag: fill-mask\n---\n# A model\n")
    (out / "config.json").write_text("{}")
    (out / "model.safetensors").write_bytes(bytes(range(256)) * 100)
    (out / "onnx" / "model.onnx").write_bytes(b"graph")
    return out


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_is_uploaded_in_one_commit_to_a_private_repository(stand_in: Hub, folder: Path) -> None:
    assert hub.push(folder, "me/mine") == f"{stand_in.address}/me/mine"
    assert stand_in.private == {"me/mine": True}
    assert stand_in.files["me/mine"] == {".gitattributes": b""} | contents(folder)
    assert stand_in.commits == 1
    assert hub.push(folder, "other", public=True) == f"{stand_in.address}/me/other"
    assert stand_in.private["me/other"] is False


def test_models_do_not_mix(stand_in: Hub, folder: Path) -> None:
    stand_in.private["me/mine"], stand_in.files["me/mine"] = True, {".gitattributes": b"", "pytorch_model.bin": b"old"}
    with pytest.raises(
        UserError, match=r"me/mine already holds pytorch_model\.bin.*: give another name; .* is complete"
    ):
        hub.push(folder, "me/mine")
    assert stand_in.files["me/mine"]["pytorch_model.bin"] == b"old"
    assert stand_in.commits == 0


@pytest.mark.parametrize(
    ("private", "message"), [(False, "is public: give --public"), (True, "is private: omit --pub")]
)
def test_a_model_becomes_as_public_as_asked_for(private: bool, message: str, stand_in: Hub, folder: Path) -> None:
    stand_in.private["me/mine"], stand_in.files["me/mine"] = private, {}
    with pytest.raises(UserError, match=message):
        hub.push(folder, "me/mine", public=private)
    assert stand_in.commits == 0
    hub.push(folder, "me/mine", public=not private)  # an empty repository, such as after a failed upload
    assert stand_in.commits == 1


STEPS = ("repos/create", "api/models/me/mine", "validate-yaml", "preupload", "objects/batch", "stored", "commit")


@pytest.mark.parametrize("status", [401, 0])
def test_a_failed_upload_is_one_line_and_leaves_the_folder(status: int, stand_in: Hub, folder: Path) -> None:
    before, reason = contents(folder), f"{status}, .*" if status else "(?i:.*(disconnected|reset|closed|without).*)"
    for step in STEPS:
        stand_in.fails, stand_in.commits = {step: status}, 0
        with pytest.raises(UserError, match=f"the upload to me/mine failed: {reason}; .*hf upload me/mine") as raised:
            hub.push(folder, "me/mine")
        assert "\n" not in str(raised.value), step
        assert stand_in.commits == 0, step
        assert not stand_in.files.get("me/mine", {}).keys() - {".gitattributes"}, step
    assert contents(folder) == before


@pytest.mark.parametrize("name", ["", "https://hub/me/mine"])
def test_names_of_no_repository_are_refused(name: str, stand_in: Hub) -> None:
    with pytest.raises(UsageError, match="is not the name of a repository"):
        hub.require_repo(name)
    assert stand_in.asked == []


def test_a_token_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="no token for the hub"):
        hub.require_repo("me/mine")


def test_the_id_of_a_download(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--google-bert--bert-base-uncased" / "snapshots" / ("0" * 40)
    assert hub.hub_id(snapshot) == hub.hub_id(snapshot / "0_Transformer") == "google-bert/bert-base-uncased"
    assert hub.hub_id(tmp_path) == hub.hub_id(tmp_path / "models--x--y" / "other") == ""


def test_convert_uploads_only_what_it_has_compared(
    stand_in: Hub, pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["convert", str(pretrained), str(tmp_path / "out"), "--to", "torch", "--push", "me/mine"]
    assert main([*command[:-1], "me mine"]) == 2
    assert main([*command[:-2], "--public"]) == 2
    with monkeypatch.context() as patch:
        patch.setattr("bertie.predict.convert.export_checks.TOLERANCE", -1.0)
        assert main(command) == 1
    assert stand_in.asked == []
    assert list(tmp_path.iterdir()) == []
    stand_in.fails = {"commit": 500}
    assert main(command) == 1
    assert "bertie: the upload to me/mine failed: 500, refused with 500; " in capsys.readouterr().err
    assert bertie.load(tmp_path / "out", threads=1).engine == "torch"


@pytest.mark.slow
def test_the_command_finds_the_hub_and_the_token_itself(stand_in: Hub, pretrained: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bertie", "convert", pretrained, tmp_path / "out", "--to", "hf"]
    command += ["--push", "me/mine", "--json"]
    environment = os.environ | {"HF_ENDPOINT": stand_in.address, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}
    ran = subprocess.run(command, env=environment, capture_output=True, check=True)
    assert json.loads(ran.stdout.splitlines()[-1])["pushed"] == f"{stand_in.address}/me/mine"
    assert {".gitattributes": b""} | contents(tmp_path / "out") == stand_in.files["me/mine"]
