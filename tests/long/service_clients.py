"""Serve small models, and ask them with the clients of hosted services. Not run by pytest.

    python tests/long/service_clients.py [--environment FOLDER]

The environment gets the packages cohere and ollama, and with Node @huggingface/inference, cohere-ai and ollama, about 150 MB,
unless they are there. The models are stand-ins of tests/parity/hub_table.py. Fails if a client raises an error, if an answer
differs from bertie's by more than 1e-4, or one of huggingface_hub from the pipeline of transformers 5, which has none for
question answering.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import InferenceClient
from transformers import pipeline

sys.path.insert(0, str(Path(__file__).parents[1] / "parity"))
from hub_models import build
from hub_table import HUB_MODELS

import bertie

MODELS = {
    "mask": "google-bert/bert-base-uncased",
    "sentences": "sentence-transformers/all-MiniLM-L6-v2",
    "search": "BAAI/bge-small-en-v1.5",
    "classes": "nlptown/bert-base-multilingual-uncased-sentiment",
    "entities": "dslim/bert-base-NER",
    "answers": "google-bert/bert-large-uncased-whole-word-masking-finetuned-squad",
    "reranker": "cross-encoder/ms-marco-MiniLM-L6-v2",
}
TEXT, TEXTS = "the cat sat on the mat", ["the cat sat on the mat", "a dog in the garden", "rain"]
LIMIT = 1e-4

NODE = ("@huggingface/inference@4", "cohere-ai", "ollama")


def install(environment: Path) -> Path:
    """Return the environment's Python."""
    python = environment / "bin" / "python"
    if not python.exists():
        venv.create(environment, with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "cohere", "ollama"], check=True)
    if shutil.which("npm") and not (environment / "node_modules").is_dir():
        command = ["npm", "install", *NODE, "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", environment]
        subprocess.run(command, check=True, capture_output=True)
    return python


@contextmanager
def served(folders: dict[str, Path]) -> Iterator[str]:
    """Serve models until the end of the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    runs = [f"{name}={folder}" for name, folder in folders.items()]
    command = [sys.executable, "-m", "bertie", "serve", *runs, "--port", str(port), "--threads", "1"]
    server = subprocess.Popen([*command, "--dimensions", "8", "16", "--no-access-log"], stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"{url}/readyz"):
                    break
            except OSError:
                if server.poll() is not None:
                    raise SystemExit("the server has ended") from None
                time.sleep(0.2)
        yield url
    finally:
        server.terminate()
        server.wait(60)


def differences(found: Any, wanted: Any) -> str:
    """Return the first difference of two JSON values; empty if there is none."""
    if isinstance(wanted, dict):
        return next((f"{k}: {d}" for k in wanted if (d := differences(found.get(k), wanted[k]))), "")
    if isinstance(wanted, list):
        if not isinstance(found, list) or len(found) != len(wanted):
            return f"{str(found)[:80]} and {str(wanted)[:80]}"
        return next((d for pair in zip(found, wanted, strict=True) if (d := differences(*pair))), "")
    same = abs(found - wanted) <= LIMIT if isinstance(wanted, float) and found is not None else found == wanted
    return "" if same else f"{found!r} and {wanted!r}"


def hub_answers(url: str, folders: dict[str, Path]) -> Iterator[tuple[str, Any, Any]]:
    """Yield calls of huggingface_hub with their answers, and those of transformers or bertie."""

    def client(name: str) -> InferenceClient:
        return InferenceClient(f"{url}/hf/models/{name}", token="none")

    def pipe(task: Any, name: str, **settings: Any) -> Any:
        return pipeline(task, str(folders[name]), device="cpu", **settings)

    vectors = bertie.load(folders["search"], threads=1)
    yield "feature_extraction", client("search").feature_extraction(TEXTS).tolist(), vectors.embed(TEXTS).tolist()
    found = client("search").sentence_similarity(TEXT, TEXTS)
    yield "sentence_similarity", found, vectors.similarity([TEXT], TEXTS)[0].tolist()
    for top_k in (1, 3, None):
        found = [vars(each) for each in client("classes").text_classification(TEXT, top_k=top_k)]
        yield f"text_classification, top_k {top_k}", found, pipe("text-classification", "classes")(TEXT, top_k=top_k)
    for strategy in ("none", "simple", "first", "average", "max"):
        found = client("entities").token_classification(TEXT, aggregation_strategy=strategy)
        wanted = pipe("token-classification", "entities", aggregation_strategy=strategy)(TEXT)
        kept = ("entity" if strategy == "none" else "entity_group", "score", "start", "end")
        wanted = [{name: _number(each[name]) for name in kept} for each in wanted]
        yield f"token_classification, {strategy}", [vars(each) for each in found], wanted
    masked = f"the [MASK] {TEXT[8:]}"
    fill = pipe("fill-mask", "mask")
    found = [vars(each) for each in client("mask").fill_mask(masked, top_k=7)]
    yield "fill_mask", found, fill(masked, top_k=7)
    targets = ["the", "cat", "dog", "unbelievably"]
    found = [vars(each) for each in client("mask").fill_mask(masked, targets=targets)]
    yield "fill_mask, targets", found, fill(masked, targets=targets)
    answering = bertie.load(folders["answers"], threads=1)
    [wanted] = answering.predict([("who sat", TEXT)])
    guesses = [{"answer": e.text, "start": e.start, "end": e.end, "score": e.probability} for e in wanted.guesses]
    found = client("answers").question_answering("who sat", TEXT)
    yield "question_answering", vars(found), guesses[0]
    several = client("answers").question_answering("who sat", TEXT, top_k=3)
    yield "question_answering, top_k 3", [vars(each) for each in several], guesses[:3]
    healthy = InferenceClient(f"{url}/hf", provider="hf-inference", token="none").health_check()
    yield "health_check", healthy, True


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, np.floating) else value


def expected(folders: dict[str, Path]) -> dict[str, Any]:
    """Return what the clients in other environments must find, by the name of the call."""
    model, reranker = bertie.load(folders["search"], threads=1), bertie.load(folders["reranker"], threads=1)
    whole = model.embed(TEXTS)
    unit = whole / np.linalg.norm(whole, axis=1, keepdims=True)
    cut, cut_documents = (
        each[:, :8] / np.linalg.norm(each[:, :8], axis=1, keepdims=True)
        for each in (whole, model.embed(TEXTS, prompt_name="document"))
    )
    scores = reranker.rerank("a cat", TEXTS)
    order = np.argsort(-scores, kind="stable")[:2]
    ranked = [{"index": int(i), "relevance_score": float(scores[i])} for i in order]
    classes = bertie.load(folders["classes"], threads=1).predict([TEXT])[0].probabilities
    return {
        "cohere v1 embed": model.embed(TEXTS, prompt_name="query").tolist(),
        "cohere v1 embed by type": np.packbits(whole > 0, axis=1).tolist(),
        "cohere v2 embed": cut_documents.tolist(),
        "cohere v1 rerank": ranked,
        "cohere v2 rerank": ranked,
        "cohere v2 error": "no model has this name",
        "ollama embed": unit.tolist(),
        "ollama embed dimensions": cut.tolist(),
        "ollama embeddings": whole[0].tolist(),
        "ollama list": [f"{name}:latest" for name in MODELS],
        "ollama show": ["embedding"],
        "ollama error": "no model has this name",
        "hf featureExtraction": whole.tolist(),
        "hf sentenceSimilarity": model.similarity([TEXT], TEXTS)[0].tolist(),
        "hf textClassification": [{"label": k, "score": v} for k, v in sorted(classes.items(), key=lambda e: -e[1])],
        "hf error": "top_k",
    }


def other_answers(url: str, python: Path, folders: dict[str, Path]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the calls of the clients in other environments, their answers, and those of bertie."""
    here, wanted = Path(__file__).parent, expected(folders)
    job = json.dumps({"url": url, "text": TEXT, "texts": TEXTS})
    commands = {"python": [python, here / "service_clients_side.py", job]}
    if shutil.which("node") and (python.parents[1] / "node_modules").is_dir():
        side = python.parents[1] / "service_clients_side.mjs"
        shutil.copy(here / side.name, side)
        commands["node"] = ["node", side, job]
    for language, command in commands.items():
        ran = subprocess.run(command, capture_output=True, text=True)
        if ran.returncode:
            yield language, ran.stderr[-800:], ""
            continue
        for name, answer in json.loads(ran.stdout).items():
            text = isinstance(wanted[name], str)
            found = wanted[name] if text and wanted[name] in answer else answer
            yield f"{language}: {name}", found, wanted[name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", type=Path, default=Path(tempfile.gettempdir()) / "bertie-service-clients")
    python = install(parser.parse_args().environment.resolve())
    wrong = 0
    with tempfile.TemporaryDirectory() as place:
        folders = {name: Path(place) / name for name in MODELS}
        for name, folder in folders.items():
            folder.mkdir()
            build(next(model for model in HUB_MODELS if model.name == MODELS[name]), folder)
        with served(folders) as url:
            for answers in (hub_answers(url, folders), other_answers(url, python, folders)):
                for name, found, wanted in answers:
                    problem = differences(found, wanted) or "nothing to compare" * (wanted in ([], {}, ""))
                    wrong += bool(problem)
                    print(f"{'differs' if problem else 'passes'}  {name}{f': {problem}' if problem else ''}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
