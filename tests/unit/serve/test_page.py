"""The page at /: its files, headers and switches. tests/system/test_serve_page.py uses it in a browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bertie.checkpoints.sentence_transformers_format import SentenceEmbedding
from bertie.predict.predictor import Predictor
from bertie.serve.limits import Front
from bertie.serve.page import SCRIPTS, STYLES, assets
from bertie.serve.service import Service

from .conftest import Server, serving

SOURCE = Path(__file__).resolve().parents[3] / "src" / "bertie"
FILES = ("/", "/assets/page.css", "/assets/page.js", "/assets/icon.svg")
Build = Callable[..., Service]


@pytest.mark.parametrize("path", FILES)
def test_the_files_of_the_page(path: str, server: Server) -> None:
    answer = server.get(path)
    assert answer.status == 200
    kinds = {"/": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    assert answer.headers["content-type"].startswith(kinds[path.rpartition(".")[2]])
    assert answer.headers["x-content-type-options"] == "nosniff"
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert "unsafe" not in answer.headers["content-security-policy"]
    head = server.request("HEAD", path, None, {})
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == str(len(answer.body))


def test_an_unchanged_file_is_not_sent_again(server: Server) -> None:
    for path in FILES:
        first = server.get(path)
        assert first.headers["cache-control"] == "no-cache"
        again = server.get(path, **{"If-None-Match": first.headers["etag"]})
        assert (again.status, again.body) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]
        assert server.get(path, **{"If-None-Match": '"other"'}).status == 200


def test_the_page_has_no_script_of_its_own_and_names_no_other_host(server: Server) -> None:
    page = server.get("/").body.decode()
    assert re.findall(r"<script[^>]*>([^<]*)</script>", page) == [""]
    assert not re.search(r"<style|\son\w+=|\sstyle=", page)
    everything = "".join(server.get(path).body.decode() for path in FILES)
    hosts = set(re.findall(r"https?://([^/\"'`\s]+)", everything))
    assert hosts == {"www.w3.org"}  # the name of SVG, which nothing loads


def test_the_scripts_never_turn_text_into_markup() -> None:
    for name in SCRIPTS:
        text = (SOURCE / name).read_text(encoding="utf-8")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|Function\(", text), name
        assert not re.search(r"localStorage|sessionStorage|document\.cookie|indexedDB", text), name


@pytest.mark.parametrize("path", [SOURCE / name for name in (*SCRIPTS, *STYLES)], ids=lambda path: path.name)
def test_files_stay_small(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 400
    assert max(map(len, lines)) <= 150
    start = 0
    for number, line in enumerate(lines):
        if re.match(r"(async )?function|const \w+ = \{|  build", line):
            start = number
        elif line in ("}", "};", "  },") and path.suffix == ".js":
            assert number - start < 60, f"{path.name}:{start + 1}"


def test_the_page_needs_no_key_and_says_whether_requests_do(make_service: Build) -> None:
    with serving(make_service("mlm", key="sk-page")) as server:
        for path in FILES:
            assert server.get(path).status == 200
            assert b"sk-page" not in server.get(path).body
        assert b'data-needs-key="true"' in server.get("/").body
        assert server.get("/v1/models").status == 401
    assert 'data-needs-key="false"' in assets(needs_key=False)["/"][1]


def test_the_page_can_be_turned_off(make_service: Build) -> None:
    with serving(make_service("mlm"), Front(page=False)) as server:
        for path in FILES:
            assert server.get(path).status in (404, 405)  # a dialect may have POST /
        assert server.get("/v1/models").status == 200


def test_other_paths_and_methods_are_as_before(server: Server) -> None:
    assert server.get("/assets/other.js").status == 404
    assert server.get("/assets/../page.py").status == 404
    assert server.get("/index.html").status == 404
    answer = server.request("PUT", "/", b"", {})
    assert answer.status == 405
    assert {"GET", "HEAD"} <= set(answer.headers["allow"].split(", ")) <= {"GET", "HEAD", "POST"}


def test_the_models_say_what_the_page_needs(server: Server) -> None:
    cards = {card["id"]: card for card in server.get("/v1/models").json["data"]}
    assert [cards[name]["paired"] for name in ("classifier", "cross-encoder", "span")] == [False, True, None]
    assert (cards["mlm"]["mask_token"], cards["tagger"]["mask_token"]) == ("[MASK]", None)
    for card in cards.values():
        assert (card["engine"], card["layers"], card["heads"], card["attention_tokens"]) == ("plain", 2, 4, 64)
        assert (card["languages"], card["language"], card["sentence_vectors"]) == ([], "", False)


def test_the_card_of_a_sentence_model_says_so(make_service: Build, predictors: dict[str, Predictor]) -> None:
    how = SentenceEmbedding(stated=True)
    with serving(make_service(others={"it": replace(predictors["mlm"], text_embedding=how)})) as server:
        assert server.get("/v1/models/it").json["sentence_vectors"]
