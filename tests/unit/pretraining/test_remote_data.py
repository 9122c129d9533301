"""Pre-training on shards in an object store: the same bytes as from a folder, whole or in sections."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest
from tests.unit.small_recipes import interrupted, pretraining

import bertie
from bertie.base.errors import UsageError
from bertie.batches.contiguous import DocSentences
from bertie.cli import main
from bertie.corpus.prepare import prepare
from bertie.corpus.remote_shards import ShardCache
from bertie.corpus.shards import open_shards
from bertie.model.config import TransformerConfig
from bertie.objectives import MaskedLM
from bertie.pretraining.dry_run import dry_run
from bertie.pretraining.recipe import PretrainConfig
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.training.run_folder import read_metrics

URL = "memory://me:secret@bucket/shards"


@pytest.fixture(scope="module")
def config(tiny_config: TransformerConfig) -> PretrainConfig:
    training = {"steps": 10, "row_tokens": 128, "eval_every": 5, "checkpoint_every": 1, "shuffle_tokens": 1_250}
    size = replace(tiny_config, hidden_dropout_prob=0.1)
    return pretraining(size, DocSentences(max_length=32), (MaskedLM(),), **training)


@pytest.fixture(scope="module")
def local(
    small_texts: list[str], small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Shards of five files, of which memory:// has a copy."""
    folder = tmp_path_factory.mktemp("five")
    files = [folder / f"{part}.jsonl" for part in range(5)]
    for part, file in enumerate(files):
        texts = small_texts[6 * part : 6 * part + 6]
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    prepare(files, small_tokenizer, folder / "shards", eval_share=0.1, shard_bytes=2_000)
    memory = fsspec.filesystem("memory")
    for path in (folder / "shards").rglob("*"):
        if path.is_file():
            memory.pipe_file(f"/me:secret@bucket/shards/{path.relative_to(folder / 'shards')}", path.read_bytes())
    yield folder / "shards"
    memory.rm("/me:secret@bucket", recursive=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_from_a_store_resumes_to_the_bytes_of_a_local_run(
    config: PretrainConfig, local: Path, tmp_path: Path, workers: int
) -> None:
    config = replace(config, training=replace(config.training, workers=workers))
    bertie.pretrain(config, local, tmp_path / "local", threads=1)
    sections = {json.loads(path.read_text())["section"] for path in (tmp_path / "local").rglob("counters.json")}
    assert sections
    cache, seen = ShardCache(tmp_path / "cache"), []
    for _ in range(2):
        with interrupted(lambda counters: seen.append(counters) or len(seen) % 3 == 0):
            bertie.pretrain(config, URL, tmp_path / "remote", threads=1, cache=cache)
    bertie.pretrain(config, URL, tmp_path / "remote", threads=1, cache=cache)
    assert {counters.section for counters in seen} >= {0, 1}
    assert (
        read_metrics(tmp_path / "remote", "train")[-1]["epoch"]
        == read_metrics(tmp_path / "local", "train")[-1]["epoch"]
    )
    first, second = ((tmp_path / run / "model.safetensors").read_bytes() for run in ("local", "remote"))
    assert first == second
    environment = json.loads((tmp_path / "remote" / "environment.json").read_text())
    assert environment["shards"] == "memory://…@bucket/shards"
    found = [path for path in (tmp_path / "remote").rglob("*") if path.is_file() and b"secret" in path.read_bytes()]
    assert not found


@pytest.mark.usefixtures("local")
def test_a_refused_store_is_not_recorded(config: PretrainConfig, small_shards: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = replace(config, training=replace(config.training, shuffle_tokens=0, steps=2, checkpoint_every=0))
    bertie.pretrain(config, small_shards, run, threads=1)
    (run / "manifest.json").unlink()  # as before its end
    with pytest.raises(UsageError, match="was made from other data"):
        bertie.pretrain(config, URL, run, threads=1, cache=ShardCache(tmp_path / "cache"))
    assert "shards" not in json.loads((run / "environment.json").read_text())


def test_a_dry_run_and_glove_read_from_a_store(config: PretrainConfig, local: Path, tmp_path: Path) -> None:
    cache = ShardCache(tmp_path / "cache")
    found = dry_run(config, URL, tmp_path / "run", threads=1, cache=cache)
    assert found["losses"] == dry_run(config, local, tmp_path / "run", threads=1)["losses"]
    settings = bertie.GloveConfig(hidden_size=4, epochs=2)
    found = bertie.glove(URL, tmp_path / "remote", settings, threads=1, cache=cache)
    assert found["losses"] == bertie.glove(local, tmp_path / "local", settings, threads=1)["losses"]


def test_sections_and_caches_that_are_too_small_are_refused(
    config: PretrainConfig, local: Path, tmp_path: Path
) -> None:
    small = replace(config, training=replace(config.training, shuffle_tokens=300))
    with pytest.raises(UsageError, match=r"training\.shuffle_tokens is 300"):
        bertie.pretrain(small, local, tmp_path / "run", threads=1)
    open_shards(URL, ShardCache(tmp_path / "cache"))  # the small files
    with pytest.raises(
        UsageError, match=r"the cache .* may hold 5e-06 GB, .* memory://…@bucket/shards .*: raise --cache-gb"
    ):
        bertie.pretrain(config, URL, tmp_path / "run", threads=1, cache=ShardCache(tmp_path / "cache", 5e-6))


def test_check_refuses_a_store(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "--check", URL]) == 2
    assert "--check memory://…@bucket/shards: give a local folder" in " ".join(capsys.readouterr().err.split())
