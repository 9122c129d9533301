"""Serve small models, and ask them with the clients of hosted services and of frameworks. Not run by pytest.

    python tests/long/service_clients.py [--environments FOLDER] [--only NAME ...]

Each environment of ENVIRONMENTS gets the clients that its file names with their versions, unless it has them: 1.5 GB in all,
without torch. The environment `node` needs npm, and `here` is that of bertie. The calls are in tests/long/service_clients_sides
and in docs/how-to/clients.md, whose Python snippets run as they are. The models are stand-ins of tests/parity/hub_table.py.
Fails if a call raises an error, or an answer differs by more than 1e-4 from that of `bertie.load`, or, with huggingface_hub, from
that of the pipeline of transformers 5, which has none for question answering. A call that has to fail must show bertie's message.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from environments import free_port, python_with
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from transformers import pipeline

sys.path.insert(0, str(Path(__file__).parents[1] / "parity"))
from hub_models import build
from hub_table import HUB_MODELS, Sentences

import bertie

MODELS = {
    "e5": "intfloat/e5-base-v2",
    "minilm": "sentence-transformers/all-MiniLM-L6-v2",
    "reranker": "cross-encoder/ms-marco-MiniLM-L6-v2",
    "mask": "google-bert/bert-base-uncased",
    "classes": "nlptown/bert-base-multilingual-uncased-sentiment",
    "entities": "dslim/bert-base-NER",
    "answers": "google-bert/bert-large-uncased-whole-word-masking-finetuned-squad",
}
HOSTED = "embed-english-v3.0"
"""The second name of e5: llama-index knows only names of Cohere's models."""
PREFIXES = Sentences("mean", normalize=False, prompts={"query": "query: ", "document": "passage: "})
"""Of e5: vectors with and without a prompt differ, and so do those that are scaled to length 1."""
TEXT, TEXTS = "the cat sat on the mat", ["the cat sat on the mat", "a dog in the garden", "rain"]
LIMIT = 1e-4
KEY = "key-of-all-clients-but-the-snippets"
SIDES = Path(__file__).parent / "service_clients_sides"
ENVIRONMENTS = {
    "clients": ("of_openai", "of_hugging_face", "of_litellm", "of_cohere"),
    "cohere_5": ("of_cohere_5",),
    "infinity": ("of_infinity",),
}
"""The modules that run in each environment with Python. The packages of one do not fit with those of another."""
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "clients.md"
SNIPPETS = {
    "openai": ("clients", {"vectors": "whole"}),
    "langchain_openai": ("clients", {"vectors": "whole"}),
    "langchain_huggingface": ("clients", {"vectors": "whole"}),
    "litellm": ("clients", {"vectors": "whole", "ranks": "sigmoid ranks"}),
    "infinity_client.models": ("infinity", {"vectors": "whole"}),
    "huggingface_hub": ("clients", {"vectors": "whole", "scores": "similarities"}),
    "cohere": ("clients", {"vectors": "queries", "ranks": "ranks"}),
    "ollama": ("clients", {"vectors": "unit"}),
}
"""By the last module that a snippet of the page imports: its environment, and what its variables are."""


def install_node(folder: Path) -> bool:
    """Return whether there is npm, which then installs the packages of package.json."""
    if not shutil.which("npm"):
        return False
    folder.mkdir(exist_ok=True)
    for each in (SIDES / "package.json", SIDES / "of_node.mjs"):
        shutil.copy(each, folder)
    command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock", "--prefix", folder]
    subprocess.run(command, check=True, capture_output=True)
    return True


@contextmanager
def served(folders: dict[str, Path], *flags: str) -> Iterator[str]:
    """Serve models until the end of the block."""
    port = free_port()
    runs = [f"{name}={folder}" for name, folder in folders.items()]
    command = [sys.executable, "-m", "bertie", "serve", *runs, "--port", str(port), "--threads", "1", *flags]
    server = subprocess.Popen([*command, "--no-access-log"], stdout=subprocess.DEVNULL)
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
        return InferenceClient(f"{url}/hf/models/{name}", token=KEY)

    def pipe(task: Any, name: str, **settings: Any) -> Any:
        return pipeline(task, str(folders[name]), device="cpu", **settings)

    vectors = bertie.load(folders["e5"], threads=1)
    yield "feature_extraction", client("e5").feature_extraction(TEXTS).tolist(), vectors.embed(TEXTS).tolist()
    found = client("e5").sentence_similarity(TEXT, TEXTS)
    yield "sentence_similarity", found, vectors.similarity([TEXT], TEXTS)[0].tolist()
    for top_k in (1, 3, None):
        found = [vars(each) for each in client("classes").text_classification(TEXT, top_k=top_k)]
        yield f"text_classification, top_k {top_k}", found, pipe("text-classification", "classes")(TEXT, top_k=top_k)
    for function in ("none", "sigmoid", "softmax"):
        found = client("classes").text_classification(TEXT, top_k=5, function_to_apply=function)
        wanted = pipe("text-classification", "classes")(TEXT, top_k=5, function_to_apply=function)
        yield f"text_classification, {function}", [vars(each) for each in found], wanted
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
    try:
        client("other").feature_extraction(TEXT)
    except HfHubHTTPError as error:
        yield "an unknown model", "no model has this name" in str(error), True
    healthy = InferenceClient(f"{url}/hf", provider="hf-inference", token=KEY).health_check()
    yield "health_check", healthy, True


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, np.floating) else value


def answers(folders: dict[str, Path], text: str, texts: list[str]) -> dict[str, Any]:
    """Return what clients have to find, by the names that the sides give it."""
    model, reranker = bertie.load(folders["e5"], threads=1), bertie.load(folders["reranker"], threads=1)
    whole, queries = model.embed(texts), model.embed(texts, prompt_name="query")
    documents = model.embed(texts, prompt_name="document")
    scores = [float(each) for each in reranker.rerank(text, texts)]
    ranks = _ranked(scores)
    classes = bertie.load(folders["classes"], threads=1).predict([text])[0].probabilities
    [tagged] = bertie.load(folders["entities"], threads=1).predict([text], aggregation_strategy="simple")
    [filled] = bertie.load(folders["mask"], threads=1).fill_mask("the [MASK]", top_k=3)
    [answer] = bertie.load(folders["answers"], threads=1).predict([("who", text)])
    found = {
        "whole": whole,
        "first": whole[0],
        "queries": queries,
        "query": queries[0],
        "documents": documents,
        "unit": _unit(whole),
        "unit first": _unit(whole)[0],
        "cut": _unit(whole[:, :8]),
        "cut documents": _unit(documents[:, :8]),
        "signs": np.packbits(whole > 0, axis=1),
        "similarities": model.similarity([text], texts)[0],
        "minilm": bertie.load(folders["minilm"], threads=1).embed(texts),
    }
    return {name: array.tolist() for name, array in found.items()} | {
        "nearest": _ranked(model.similarity([text], texts)[0].tolist()),
        "ranks": ranks,
        "two ranks": ranks[:2],
        "sigmoid ranks": [[number, 1 / (1 + float(np.exp(-score)))] for number, score in ranks],
        "classes": [[label, score] for label, score in sorted(classes.items(), key=lambda each: -each[1])],
        "entities": [[each.label, each.score, each.start, each.end] for each in tagged.entities or ()],
        "fillings": [[each.token, each.probability] for each in filled],
        "answer": [answer.answer, answer.probability],
        "names": [*folders],
        "latest names": [f"{name}:latest" for name in folders],
        "capabilities": ["embedding"],
        "true": True,
        "message about dimensions": "dimensions: the vectors have width 32, and can be shortened: give 8, 16 or 32",
    }


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _ranked(scores: list[float]) -> list[list[Any]]:
    return [[number, score] for number, score in sorted(enumerate(scores), key=lambda each: -each[1])]


def snippets(environment: str, url: str) -> list[tuple[str, str]]:
    """Return the snippets of the page for an environment, with the URL of the server, by their last import."""
    found = []
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        name = re.findall(r"^(?:from|import) (\S+)", code, re.MULTILINE)[-1]
        if SNIPPETS[name][0] == environment:
            found.append((name, code.replace("http://127.0.0.1:8000", url)))
    return found


def surroundings(url: str) -> dict[str, str]:
    """Return environment variables that clients read when they are imported."""
    # chromadb has no setting for Cohere's base URL, and Ollama's clients none for a key. litellm would download prices.
    given = {"CO_API_URL": f"{url}/cohere", "OLLAMA_API_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    return os.environ | given


def side(
    command: list[Any], url: str, wanted: dict[str, Any], of_snippets: dict[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield the calls of a command, and what is wrong with each."""
    ran = subprocess.run(command, capture_output=True, text=True, env=surroundings(url))
    if ran.returncode:
        yield str(command[1]), f"it failed: {ran.stderr[-800:]}"
        return
    for name, kind, what, found in json.loads(ran.stdout.splitlines()[-1]):
        if kind == "refuses":
            yield f"{name} is refused", "" if what in found else f"{found} does not say: {what}"
        elif kind != "gives":
            yield name, f"{kind}: {str(found)[:800]}"
        elif what == "snippet":
            values = {key: of_snippets[each] for key, each in SNIPPETS[name][1].items()}
            yield f"the snippet of {name}", differences(found, values)
        else:
            values = [wanted[each] for each in what.split("+")]
            yield name, differences(found, values[0] if len(values) == 1 else values)


def sides(folder: Path, only: list[str], urls: dict[str, str], folders: dict[str, Path]) -> Iterator[tuple[str, str]]:
    """Yield the calls of the clients in other environments, and what is wrong with each. urls: by what asks there."""
    wanted = answers(folders, TEXT, TEXTS)
    of_snippets = answers(folders, "a question", ["one text", "another"])
    given = {**urls, "key": KEY, "text": TEXT, "texts": TEXTS}
    for name, modules in ENVIRONMENTS.items():
        if name in only:
            job = {**given, "snippets": snippets(name, urls["snippets"])}
            command = [folder / name / "bin" / "python", SIDES / "run.py", json.dumps(job), *modules]
            yield from side(command, urls["url"], wanted, of_snippets)
    if "node" in only:
        command = ["node", folder / "node" / "of_node.mjs", json.dumps(given)]
        yield from side(command, urls["url"], wanted, of_snippets)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=Path, default=Path(tempfile.gettempdir()) / "bertie-service-clients")
    names = ["here", *ENVIRONMENTS, "node"]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    arguments = parser.parse_args()
    folder, only = arguments.environments.resolve(), arguments.only
    folder.mkdir(exist_ok=True)
    for name in ENVIRONMENTS:
        if name in only:
            python_with(folder / name, "-r", SIDES / f"{name}.txt")
    if "node" in only and not install_node(folder / "node"):
        print("skipped node: there is no npm")
        only.remove("node")
    wrong = 0
    with tempfile.TemporaryDirectory() as place:
        folders = {name: Path(place) / name for name in MODELS}
        for name, path in folders.items():
            path.mkdir()
            model = next(model for model in HUB_MODELS if model.name == MODELS[name])
            build(replace(model, sentences=PREFIXES) if name == "e5" else model, path)
        folders[HOSTED] = folders["e5"]
        keys = Path(place) / "keys"
        keys.write_text(f"{KEY}\n")
        two = {name: folders[name] for name in ("e5", "reranker")}
        one = {"reranker": folders["reranker"]}
        with (
            served(folders, "--dimensions", "8", "16", "--api-keys", str(keys)) as url,
            served(one, "--dialect", "tei") as tei,
            served(two) as open_url,
        ):
            urls = {"url": url, "tei": tei, "snippets": open_url}
            checked = [*_here(url, folders)] if "here" in only else []
            for name, problem in [*checked, *sides(folder, only, urls, folders)]:
                wrong += bool(problem)
                print(f"{'differs' if problem else 'passes'}  {name}{f': {problem}' if problem else ''}")
    sys.exit(bool(wrong))


def _here(url: str, folders: dict[str, Path]) -> Iterator[tuple[str, str]]:
    for name, found, wanted in hub_answers(url, folders):
        yield name, differences(found, wanted) or "nothing to compare" * (wanted in ([], {}, ""))


if __name__ == "__main__":
    main()
