"""`bertie demo`: run every step on one small corpus, and write a report."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bertie.base import config as configuration
from bertie.base import console, storage
from bertie.base.console import percent
from bertie.base.contracts import Document
from bertie.base.errors import UsageError
from bertie.corpus.encode import split_hash
from bertie.corpus.prepare import prepare
from bertie.corpus.sentences import split_sentences
from bertie.corpus.shards import open_shards
from bertie.corpus.vocabulary import train_tokenizer
from bertie.demo.compare import START, Comparison, compare
from bertie.demo.corpus import DemoData, folder_data, python_data
from bertie.demo.page import baselines, gains, page, seeds_phrase
from bertie.demo.search import INDEX, QUERIES, found_by, train_search
from bertie.files import sources
from bertie.predict.fill_mask import MaskPrediction
from bertie.predict.load import load
from bertie.pretraining.pretrain import pretrain
from bertie.pretraining.recipe import PretrainConfig
from bertie.tokenizers.tokenizer import NormalizerOptions, Tokenizer

VOCABULARY, EPOCHS, SEEDS = 8000, 2, 3
TEXT, LABELED = "data/text.jsonl", "data/sentences.csv"  # for the user's next steps
SENTENCES = (  # chosen by hand: their masks are words that this text often has
    "If the file does not [MASK], an exception is raised.",
    "If the argument is not [MASK], the default value is used.",
    "The optional [MASK] is a list of strings.",
    "Return an [MASK] over the keys of the dictionary.",
    "Open the [MASK] and read its contents.",
    "A subclass may [MASK] this method.",
)


def demo(
    out: str | Path, corpus: list[Path] | None = None, scale: float = 1.0, strip_accents: bool | None = None
) -> dict[str, Any]:
    """Train a vocabulary and a small BERT, fine-tune it, compare it with baselines, train a search, and write a report.

    A second call with the same arguments resumes: it keeps finished stages.

    Args:
        out: Output folder. Its `data` has the text, text.jsonl, and the labeled sentences, sentences.csv.
            `search` reads its `index`.
        corpus: Your own files or folders; None: Python's documentation.
        scale: Factor on the numbers of steps, epochs and seeds.
        strip_accents: Whether the vocabulary strips accents; None: as the text decides, see `train_tokenizer`.

    Returns:
        {"report", "run": paths, "seconds": duration, "eval": scores on held-out documents}, and if the text allows a
        classification task, {"accuracy": per seed, by initial weights, "bag_of_words": accuracy, "gain": mean accuracy
        pre-trained minus from scratch, "gain_error": its standard error}.

    Raises:
        UsageError: `out` holds something else, or an argument is out of range.
        UserError: The text cannot be read, or there is too little of it.
    """
    if not 0 < scale <= 100:
        raise UsageError(f"--scale {scale:g}: give a number from 0 (not included) to 100")
    out, paths = Path(out), corpus or []
    if corpus is not None and not corpus:
        raise UsageError("--corpus names no text: give files or folders, or remove it for Python's documentation")
    if not (out / "demo.json").is_file():
        storage.require_fresh(out, "the demo")
    sources.require_outside(out, paths)
    seconds: dict[str, float] = {}
    with _timed("read the text", seconds):
        data = folder_data(paths) if paths else python_data()
        text = _write_data(out, data, {"scale": scale, "strip_accents": strip_accents})
    with _timed("train the vocabulary", seconds):
        if not (out / "tokenizer").exists():
            rules = NormalizerOptions(strip_accents=strip_accents)
            train_tokenizer([text], out / "tokenizer", vocab_size=VOCABULARY, normalization=rules)
    with _timed("prepare shards", seconds):
        if not (out / "shards").exists():
            tokenizer = Tokenizer.load(out / "tokenizer")
            prepare([text], tokenizer, out / "shards", eval_share=_eval_share(data.documents))
    with _timed("pre-train", seconds):
        trained = pretrain(_recipe(scale), out / "shards", out / "bert")
    with _timed("fine-tune and compare", seconds):
        comparison = _comparison(out, data, scale)
    with _timed("train a search", seconds):
        train_search(out, text, scale)
    seconds = _add_earlier_calls(out, seconds)
    _report(out, data, bool(paths), comparison, trained["eval"], seconds)
    result = {"report": str(out / "report.html"), "run": str(out / "bert"), "seconds": round(sum(seconds.values()), 1)}
    if comparison is not None:
        gain, error, _ = comparison.gain(START[True])
        result |= {"accuracy": comparison.accuracy, "bag_of_words": comparison.bag_of_words}
        result |= {"gain": gain, "gain_error": error}
    return result | {"eval": trained["eval"]}


def _report(
    out: Path,
    data: DemoData,
    own: bool,
    comparison: Comparison | None,
    last: dict[str, Any],
    seconds: dict[str, float],
) -> None:
    """Write report.html and print a summary. own: whether the text is the user's own."""
    model = load(out / "bert")
    texts = _mask_sentences(data) if own else list(SENTENCES)
    predictions = {text: model.fill_mask(text)[0] for text in texts}
    found = found_by(out, data.test if own else [])
    storage.write_atomic(out / "report.html", page(out, data, comparison, predictions, found, seconds))
    _print_summary(out, data, last, predictions, comparison)


def _recipe(scale: float) -> PretrainConfig:
    config = configuration.load(PretrainConfig, "demo", "pretrain")
    return replace(config, training=replace(config.training, steps=max(10, round(config.training.steps * scale))))


def _eval_share(documents: list[Document]) -> float:
    """Return 5 % or, for a short corpus, the share that holds out 8 documents, but at most half of them."""
    hashes = sorted({split_hash(document.text) for document in documents})
    return 0.05 if len(hashes) >= 160 else hashes[min(8, len(hashes) // 2)]


def _write_data(out: Path, data: DemoData, settings: dict[str, Any]) -> Path:
    """Open the output folder, and write the documents and, as a table for Excel, the labeled sentences."""
    lines = [json.dumps({"text": document.text, "source": document.source}) + "\n" for document in data.documents]
    content = "".join(lines)
    fingerprinted = repr((content, data.train, data.test))
    _open_folder(out, {"text": hashlib.sha256(fingerprinted.encode()).hexdigest(), **settings})
    (out / TEXT).parent.mkdir(exist_ok=True)
    storage.write_atomic(out / TEXT, content)
    if data.test:
        rows, table = ((each.text, each.label, each.source) for each in data.sentences), io.StringIO(newline="")
        csv.writer(table).writerows([("text", "label", "document"), *rows])
        # Without a byte order mark, Excel reads another encoding.
        storage.write_atomic(out / LABELED, table.getvalue().encode("utf-8-sig"))
    return out / TEXT


def _open_folder(out: Path, settings: dict[str, Any]) -> None:
    if (out / "demo.json").is_file():
        if storage.read_json(out / "demo.json") == settings:
            return
        if (out / "bert").exists():
            raise UsageError(f"{out} holds a demo of another text, --scale or --keep-accents: give another --out")
        for part in ("tokenizer", "shards"):  # of a demo that failed before it had a model
            shutil.rmtree(out / part, ignore_errors=True)
        storage.write_json(out / "demo.json", settings)
        return
    with storage.atomic_folder(out) as folder:
        storage.write_json(folder / "demo.json", settings)


def _comparison(out: Path, data: DemoData, scale: float) -> Comparison | None:
    """Return the comparison, stored in comparison.json for later calls; None if the text does not allow a task."""
    if not data.test:
        console.info(
            "no classifier: it needs 2 files or subfolders with at least 4 documents and 50 sentences each (in .txt files, "
            "a blank line ends a document)"
        )
        return None
    path = out / "comparison.json"
    if not path.is_file():
        epochs, seeds = max(1, round(EPOCHS * scale)), max(2, round(SEEDS * min(scale, 1)))
        partial = out / "comparison-so-far.json"
        storage.write_json(path, asdict(compare(data, out / "bert", epochs, seeds, partial)))
        partial.unlink()
    return Comparison(**storage.read_json(path))


def _mask_sentences(data: DemoData, count: int = 6) -> list[str]:
    """Choose sentences and mask the longest word of each.

    The sentences are test sentences, if there are any: pre-training has not seen those. The same text gives the same
    ones.
    """
    texts = [example.text for example in data.test] or [
        first for d in data.documents[:1000] for first in split_sentences(d.text)[:1]
    ]
    short = [text for text in texts if 5 <= len(text.split()) <= 20 and len(text) < 200]
    short = short or [text.strip()[:40] for text in texts]  # for scripts without spaces, and text without full stops
    chosen = sorted(short, key=lambda text: hashlib.sha256(text.encode()).digest())[:count]
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


def _add_earlier_calls(out: Path, seconds: dict[str, float]) -> dict[str, float]:
    """Add the seconds of earlier calls, which ran the stages that this call did not repeat."""
    path = out / "seconds.json"
    earlier = storage.read_json(path) if path.is_file() else {}
    earlier.pop("read the text", None)  # every call repeats this stage
    total = {stage: taken + earlier.get(stage, 0.0) for stage, taken in seconds.items()}
    storage.write_json(path, total)
    return total


def _print_summary(
    out: Path,
    data: DemoData,
    last: dict[str, Any],
    predictions: dict[str, list[MaskPrediction]],
    comparison: Comparison | None,
) -> None:
    loss, accuracy = baselines(open_shards(out / "shards"))
    console.info(
        f"held-out documents: {percent(last['mlm_accuracy'])} of masked tokens right, loss {last['mlm_loss']:.2f} nats "
        f"(word frequencies of the training text: {percent(accuracy)}, {loss:.2f} nats)"
    )
    for text, [best, *_] in predictions.items():
        console.info(f"  {text.replace('[MASK]', f'[{best.token}]')}  {percent(best.probability)}")
    if comparison is not None:
        console.info(f"{data.question} Test accuracy, mean of {seeds_phrase(comparison)}:")
        for name, accuracy, *_ in comparison.table():
            console.info(f"  {accuracy:>16}  {name}")
        console.info(gains(comparison))
    console.info(f'report: {out / "report.html"}; try the model: bertie fill-mask {out / "bert"} "… [MASK] …"')
    if (out / INDEX).exists():
        console.info(
            f'search the text: bertie search {out / INDEX} "{QUERIES[0]}"; with a page: bertie serve {out / INDEX}'
        )
    console.info(f"text: {out / TEXT}" + f"; labeled sentences: {out / LABELED}; fine-tune on them:" * bool(data.test))
    if data.test:
        command = f"bertie finetune classify --train {out / LABELED} --model {out / 'bert'} --out {out / 'classifier'}"
        console.info(f"  {command}")
