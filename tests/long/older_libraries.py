"""Load what `convert` writes in transformers 4 and sentence-transformers 5, and compare. Not run by pytest.

    python tests/long/older_libraries.py [--environment FOLDER] [--version VERSION] [NAME…]

The environment gets transformers (VERSION, or the newest 4.x), sentence-transformers 5 and the torch of this environment, about
1.3 GB, unless it is there. The models are those of stand_ins.py and of tests/parity/hub_table.py whose names contain a NAME, by
default all. Fails if a library does not load a folder, unless transformers has no such class, or if tokens, class names or
predicted names differ from bertie's for the source, or numbers by more than 1e-5 of the largest value.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from environments import parser_of, python_with
from stand_ins import KINDS, OF_THE_HUB, SCORE, StandIn

import bertie
from bertie.model.head_facts import facts_of
from bertie.predict.convert.compare_transformers import CLASSES
from bertie.predict.convert.compared_texts import ComparedTexts, sequences_of
from bertie.predict.convert.comparison import TOLERANCE, compared
from bertie.predict.predictor import Predictor
from bertie.predict.vectors import head_outputs, token_vectors

LIMIT = 1e-5
"""Largest difference of a number, relative to the largest value."""


def install(environment: Path, version: str) -> Path:
    """Return the environment's Python."""
    own = f"torch=={torch.__version__.partition('+')[0]}"
    return python_with(environment, f"transformers{version}", "sentence-transformers>=5,<6", own)


def job_of(model: StandIn, predictor: Predictor, folder: Path, target: str) -> dict[str, Any]:
    """Return what the libraries are asked."""
    texts, tokenizer = ComparedTexts.of(predictor.tokenizer, predictor.max_length), predictor.tokenizer
    kind = head_of(predictor)
    shape = facts_of(predictor.model.heads[kind]).shape if kind else None
    short = [
        text for text in texts.sentences if len(sequences_of(predictor, [text], 10**6)[0]) < predictor.max_length - 2
    ]
    mask = tokenizer.vocabulary[tokenizer.mask_id] if shape == "masked" else ""
    inputs = [each for each in [*texts.plain, *texts.pairs] if len(sequences_of(predictor, [each])[0])]
    heads = {"choice": texts.pairs, "pair": texts.pairs, "start_end": texts.pairs, "masked": short, "next": short}
    # A pipeline gives the sigmoid of the only output of a cross-encoder.
    names = model.model.labels != SCORE or model.model.added.get("problem_type") == "regression"
    return {
        "folder": str(folder),
        "class": CLASSES[shape] if shape else None,
        "shape": shape,
        "texts": texts.plain,
        "pairs": texts.pairs,
        "inputs": inputs,
        "head inputs": heads.get(shape, inputs) if shape else [],
        "short": short,
        "words": [text.split() for text in short],
        "masked": [" ".join([*text.split()[:3], mask, *text.split()[4:]]) for text in short[:4]],
        "predicts": shape in ("text", "tokens", "masked") and names,
        "sentences": target == "sentence-transformers" and not model.scores_pairs,
        "scores": model.scores_pairs,
        "prompts": sorted(predictor.text_embedding.prompts),
    }


def head_of(predictor: Predictor) -> str | None:
    """Return the head that the classes of transformers load, of the task or of pre-training."""
    if predictor.task is not None:
        return predictor.task.kind
    heads = predictor.model.heads
    return next((kind for kind in sorted(heads) if facts_of(heads[kind]).shape in CLASSES), None)


def ours(predictor: Predictor, job: dict[str, Any]) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Yield what bertie gives for the same: its name, the inputs, and a result for each."""
    every, kind = job["texts"] + job["pairs"], head_of(predictor)
    sequences = [sequences_of(predictor, [each])[0] for each in every]
    reads_types = getattr(predictor.model.encoder.config, "type_vocab_size", 0) > 1
    types = [each.token_type_ids.tolist() if reads_types else [0] * len(each) for each in sequences]
    yield "tokens", every, [[each.input_ids.tolist(), own] for each, own in zip(sequences, types, strict=True)]
    sequences = [sequences_of(predictor, [each])[0] for each in job["inputs"]]
    yield "hidden states", job["inputs"], token_vectors(predictor.model, sequences)
    if kind:
        if job["shape"] in ("text", "tokens"):
            labels = list(getattr(predictor.task, "labels", ()) or SCORE)
            yield "class names", labels, labels
        sequences = [sequences_of(predictor, [each])[0] for each in job["head inputs"]]
        yield "outputs of the head", job["head inputs"], head_outputs(predictor.model, kind, sequences)
    if job["predicts"]:
        yield from _predictions(predictor, job)
    if job["sentences"]:
        texts = job["texts"]
        ways = {"encode": None, "encode_query": "query", "encode_document": "document"}
        for what, prompt in ways.items() | {(f"prompt {name}", name) for name in job["prompts"]}:
            yield f"vectors/{what}", texts, list(predictor.embed(texts, prompt_name=prompt))
        yield "vectors/similarity", texts[:4], list(predictor.similarity(texts[:4], texts[4:8]))
        settings = {"similarity": predictor.text_embedding.similarity, "length": predictor.max_length}
        yield "vectors/settings", [*settings], [settings]
    if job["scores"]:
        yield "scores", job["pairs"], [np.array(each.score) for each in predictor.predict(job["pairs"])]


def _predictions(predictor: Predictor, job: dict[str, Any]) -> Iterator[tuple[str, list[Any], list[Any]]]:
    if job["shape"] == "text":
        found = predictor.predict(job["short"])
        yield "predictions", job["short"], [getattr(p, "probabilities", None) or {SCORE[0]: p.score} for p in found]
    elif job["shape"] == "tokens":
        yield "predictions", job["words"], [each.tags for each in predictor.predict(job["words"])]
    else:
        found = [predictor.fill_mask(text, top_k=5)[-1] for text in job["masked"]]
        ids = predictor.tokenizer.vocabulary.index
        yield "predictions", job["masked"], [[[ids(p.token), p.probability] for p in each] for each in found]


def compare(predictor: Predictor, job: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Return what differs, and print how much was compared."""
    problems, worst, cases = [f"{what}: {message}" for what, message in found["errors"].items()], 0.0, 0
    for what, inputs, expected in ours(predictor, job):
        first, _, second = what.partition("/")
        if first in found["errors"]:
            continue
        if first not in found:
            problems.append(f"{what} is missing")
            continue
        values = found[first][second] if second else found[first]
        values = [values] if what == "vectors/settings" else values
        if what == "predictions" and job["shape"] != "tokens":
            values, expected = ([dict(each) for each in side] for side in (values, expected))
        exact = not isinstance(expected[0], np.ndarray | dict) or what == "vectors/settings"
        if isinstance(expected[0], np.ndarray):
            values = [np.array(each, np.float32) for each in values]
        result = compared(what, inputs, expected, values, 0.0 if exact else TOLERANCE)
        wrong = not result.difference <= (0 if exact else LIMIT)
        worst = worst if exact else max(worst, result.difference)
        cases += len(values)
        if wrong:
            problems.append(f"{what}: {result.difference:.2g}, {result.example}")
    print(f"  {cases} results compared, numbers differ by at most {worst:.1e} of the largest", flush=True)
    return problems


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--environment", type=Path)
    parser.add_argument("--version", default=">=4.50,<5")
    parser.add_argument("names", nargs="*", default=[""])
    asked = parser.parse_args()
    chosen = [model for model in KINDS + OF_THE_HUB if any(name in model.name for name in asked.names)]
    failed = done = 0
    with tempfile.TemporaryDirectory() as temporary:
        python = install(asked.environment or Path(temporary, "environment"), asked.version)
        with libraries(python) as ask:
            for number, model in enumerate(chosen):
                source, out = Path(temporary, f"source{number}"), Path(temporary, f"out{number}")
                model.build(source)
                target: Any = "sentence-transformers" if model.model.sentences or model.scores_pairs else "hf"
                bertie.convert(source, out, target, threads=1)
                predictor = bertie.load(source, threads=1, engine="plain")
                job = job_of(model, predictor, out, target)
                print(f"{model.name} ({job['class'] or 'AutoModel'}):", flush=True)
                found = ask(job)
                if "unknown" in found:
                    print(f"  not compared: this transformers has no model_type {found['unknown']}", flush=True)
                    continue
                problems = compare(predictor, job, found)
                for problem in problems:
                    print(f"  FAILED: {problem[:600]}", flush=True)
                failed += bool(problems)
                done += 1
    print(f"{done} of {len(chosen)} models compared, {failed} differ")
    return int(failed > 0 or not done)


@contextmanager
def libraries(python: Path) -> Iterator[Callable[[dict[str, Any]], dict[str, Any]]]:
    """Start the other side. Return what asks it."""
    command = [python, Path(__file__).with_name("older_libraries_side.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        print(other.stdout.readline(), end="", flush=True)
        given, printed = other.stdin, other.stdout

        def ask(job: dict[str, Any]) -> dict[str, Any]:
            print(json.dumps(job), file=given, flush=True)
            return json.loads(printed.readline())

        yield ask


if __name__ == "__main__":
    sys.exit(main())
