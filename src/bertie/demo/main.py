"""`bertie demo`: the whole way on one small corpus, and a page that shows what came of it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bertie import config as configuration
from bertie import console, storage
from bertie.demo.compare import Comparison, compare
from bertie.demo.corpus import DemoData, folder_data, python_data
from bertie.demo.page import page
from bertie.errors import UsageError
from bertie.files import sources
from bertie.predict.predictor import load
from bertie.pretraining.pretrain import pretrain
from bertie.pretraining.recipe import PretrainConfig
from bertie.text.prepare import prepare
from bertie.text.sentences import split_sentences
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import train_tokenizer

VOCABULARY, EPOCHS, SEEDS = 8000, 3, 5
PROGRAMMERS = (
    "Return the [MASK] of the list.",
    "If the file does not [MASK], an exception is raised.",
    "The default [MASK] of this argument is None.",
    "Read up to n [MASK] from the stream.",
    "This method is called when the [MASK] is closed.",
    "Remove and [MASK] an item from the end of the list.",
)


def demo(out: str | Path, corpus: list[Path] | None = None, scale: float = 1.0) -> dict[str, Any]:
    """Vocabulary, shards, pre-training, fine-tuning and a report, in the folder `out`; stages that are done are kept.

    corpus: the user's files or folders; none: Python's documentation. scale: factor on steps, epochs and seeds.
    Returns {"report", "run", "seconds", "eval": held-out scores, "accuracy": …, "gain", "gain_error"}.
    """
    if not 0 < scale <= 100:
        raise UsageError(f"--scale {scale:g}: give a positive number, 1 is the usual size")
    out, paths = Path(out), corpus or []
    if corpus is not None and not corpus:
        raise UsageError("--corpus names no text: give files or folders, or leave it out for Python's documentation")
    if not (out / "demo.json").is_file():
        storage.require_fresh(out, "the demo")
    sources.require_outside(out, paths)
    seconds: dict[str, float] = {}
    with _timed("read the text", seconds):
        data = folder_data(paths) if paths else python_data()
        lines = [json.dumps({"text": document.text, "source": document.source}) + "\n" for document in data.documents]
        content = "".join(lines)
        everything = repr((content, data.train, data.test))
        _open_folder(out, {"text": hashlib.sha256(everything.encode()).hexdigest(), "scale": scale})
        text = out / "corpus.jsonl"
        storage.write_atomic(text, content)
    with _timed("train the vocabulary", seconds):
        if not (out / "tokenizer").exists():
            train_tokenizer([text], out / "tokenizer", vocab_size=VOCABULARY, exact=False)
    with _timed("prepare shards", seconds):
        if not (out / "shards").exists():
            share = max(0.05, min(0.5, 8 / len(data.documents)))  # some held-out documents, however few there are
            prepare([text], Tokenizer.load(out / "tokenizer"), out / "shards", eval_share=share)
    with _timed("pre-train", seconds):
        config = configuration.load(PretrainConfig, "demo", "pretrain")
        steps = max(10, round(config.training.steps * scale))
        config = replace(config, training=replace(config.training, steps=steps))
        trained = pretrain(config, out / "shards", out / "bert")
    with _timed("fine-tune and compare", seconds):
        comparison = _comparison(out, data, scale)
    model = load(out / "bert")
    texts = list(PROGRAMMERS) if not paths else _own_masks(data)
    guesses = {text: model.fill_mask(text)[0] for text in texts}
    seconds = _in_all(out, seconds)
    storage.write_atomic(out / "report.html", page(out, data, comparison, guesses, seconds))
    _tell(out, trained["eval"], comparison)
    result = {"report": str(out / "report.html"), "run": str(out / "bert"), "seconds": round(sum(seconds.values()), 1)}
    if comparison is not None:
        gain, error = comparison.gain
        result |= {"accuracy": comparison.accuracy, "bag_of_words": comparison.bag_of_words}
        result |= {"gain": gain, "gain_error": error}
    return result | {"eval": trained["eval"]}


def _open_folder(out: Path, settings: dict[str, Any]) -> None:
    if (out / "demo.json").is_file():
        if storage.read_json(out / "demo.json") != settings:
            raise UsageError(f"{out} holds a demo of another text or scale: give another --out")
        return
    with storage.atomic_folder(out) as folder:
        storage.write_json(folder / "demo.json", settings)


def _comparison(out: Path, data: DemoData, scale: float) -> Comparison | None:
    """None where the text holds no question. Kept in comparison.json, so that a second call has nothing to do."""
    if not data.test:
        console.info(
            "no classifier: it tells 2 to 20 files, or else sub-folders, apart, each of at least 4 documents and 50 sentences"
        )
        return None
    known = out / "comparison.json"
    if not known.is_file():
        epochs, seeds = max(1, round(EPOCHS * scale)), max(2, round(SEEDS * min(scale, 1)))
        so_far = out / "comparison-so-far.json"
        storage.write_json(known, asdict(compare(data, out / "bert", epochs, seeds, so_far)))
        so_far.unlink()
    return Comparison(**storage.read_json(known))


def _own_masks(data: DemoData, count: int = 6) -> list[str]:
    """Sentences, each with its longest word masked, unread by pre-training where there are such; the same for the same text."""
    texts = [example.text for example in data.test] or [
        first for d in data.documents[:1000] for first in split_sentences(d.text)[:1]
    ]
    fitting = [text for text in texts if 5 <= len(text.split()) <= 20 and len(text) < 200]
    fitting = fitting or [text.strip()[:40] for text in texts]  # as in scripts without spaces, or without full stops
    chosen = sorted(fitting, key=lambda text: hashlib.sha256(text.encode()).digest())[:count]
    return [_masked(text) for text in chosen]


def _masked(text: str) -> str:
    words = text.split()
    word = max(words, key=len)
    hidden = word if len(word) < 20 and len(words) > 1 else word[len(word) // 2]
    return text.replace(hidden, "[MASK]", 1)


@contextmanager
def _timed(title: str, seconds: dict[str, float]) -> Iterator[None]:
    console.info(f"── {title}")
    started = time.monotonic()
    yield
    seconds[title] = time.monotonic() - started


def _in_all(out: Path, seconds: dict[str, float]) -> dict[str, float]:
    """What the stages took together with the calls before this one, which did what this one did not have to."""
    path = out / "seconds.json"
    before = storage.read_json(path) if path.is_file() else {}
    before.pop("read the text", None)  # every call does that anew
    together = {stage: taken + before.get(stage, 0.0) for stage, taken in seconds.items()}
    storage.write_json(path, together)
    return together


def _tell(out: Path, last: dict[str, Any], comparison: Comparison | None) -> None:
    console.info(f"held-out documents: masked-LM loss {last['mlm_loss']:.2f}, next sentence {last['nsp_accuracy']:.3f}")
    if comparison is not None:
        for name, accuracy, *_ in comparison.table():
            console.info(f"  {accuracy:>16}  {name}")
        gain, error = comparison.gain
        console.info(
            f"(± is the 95 % interval) pre-training gains {100 * gain:.1f} points, standard error {100 * error:.1f}"
        )
    console.info(f'look at {out / "report.html"}; ask {out / "bert"}: bertie fill-mask {out / "bert"} "… [MASK] …"')
