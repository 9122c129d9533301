"""The side of the older libraries in older_libraries.py, in their environment.

It prints a line with their versions. Then it reads lines, each with what `job_of` there returns for a model. For each it prints
a line: {what: values} as a user of the libraries gets them with their defaults, and "errors": {what: message}.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sentence_transformers
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def load(job: dict[str, Any], name: str) -> Any:
    model, info = getattr(transformers, name).from_pretrained(job["folder"], output_loading_info=True)
    pooled = name.endswith(("SequenceClassification", "MultipleChoice", "NextSentencePrediction"))
    if missing := [key for key in info["missing_keys"] if pooled or "pooler" not in key]:
        raise ValueError(f"no weights for {missing}")
    return model.eval()


def encode(tokenizer: Any, given: Any, **options: Any) -> Any:
    return tokenizer(*([given] if isinstance(given, str) else given), truncation=True, **options)


def tokens(tokenizer: Any, job: dict[str, Any]) -> list[Any]:
    found = [encode(tokenizer, each) for each in job["texts"] + job["pairs"]]
    return [[each["input_ids"], each.get("token_type_ids") or [0] * len(each["input_ids"])] for each in found]


def states(tokenizer: Any, job: dict[str, Any]) -> list[Any]:
    model = load(job, "AutoModel")
    return [run(model, tokenizer, each).last_hidden_state[0].tolist() for each in job["inputs"]]


@torch.inference_mode()
def run(model: Any, tokenizer: Any, given: Any, choice: bool = False) -> Any:
    inputs = encode(tokenizer, given, return_tensors="pt")
    return model(**({name: tensor[None] for name, tensor in inputs.items()} if choice else inputs))


def outputs(tokenizer: Any, job: dict[str, Any]) -> list[Any]:
    model, shape = load(job, job["class"]), job["shape"]
    found = [run(model, tokenizer, each, shape == "choice") for each in job["head inputs"]]
    if shape == "start_end":
        return [torch.stack([each.start_logits[0], each.end_logits[0]], -1).tolist() for each in found]
    return [each.logits[0].tolist() for each in found]


def predictions(tokenizer: Any, job: dict[str, Any]) -> list[Any]:
    model = load(job, job["class"])
    if job["shape"] == "text":
        classify = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")
        return [{each["label"]: each["score"] for each in classify(text, top_k=None)} for text in job["short"]]
    if job["shape"] == "tokens":
        found = []
        for words in job["words"]:
            inputs = tokenizer(words, is_split_into_words=True, return_tensors="pt")
            with torch.inference_mode():
                labels = [model.config.id2label[i] for i in model(**inputs).logits[0].argmax(-1).tolist()]
            places = inputs.word_ids()
            found.append([labels[places.index(word)] for word in range(len(words))])
        return found
    fill = transformers.pipeline("fill-mask", model=model, tokenizer=tokenizer, device="cpu", top_k=5)
    return [[[each["token"], each["score"]] for each in fill(text)] for text in job["masked"]]


def vectors(model: Any, job: dict[str, Any]) -> dict[str, Any]:
    texts = job["texts"]
    ways = {"encode": model.encode(texts), "encode_query": model.encode_query(texts)}
    ways["encode_document"] = model.encode_document(texts)
    ways |= {f"prompt {name}": model.encode(texts, prompt_name=name) for name in job["prompts"]}
    found = {what: array.tolist() for what, array in ways.items()}
    half = model.encode(texts[:4]), model.encode(texts[4:8])
    found["similarity"] = model.similarity(*half).tolist()
    length = model.max_seq_length
    return found | {"settings": {"similarity": model.similarity_fn_name, "length": length}}


def answer(job: dict[str, Any]) -> dict[str, Any]:
    errors: dict[str, str] = {}
    found: dict[str, Any] = {"errors": errors}

    def attempt(what: str, compute: Callable[[], Any]) -> Any:
        try:
            found[what] = compute()
        except Exception as error:  # whatever a library raises is a result
            errors[what] = " ".join(f"{type(error).__name__}: {error}".split())[:500]

    values = json.loads(Path(job["folder"], "config.json").read_text())
    if values["model_type"] not in CONFIG_MAPPING_NAMES:
        return found | {"unknown": values["model_type"]}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(job["folder"])
    except Exception as error:
        errors["tokenizer"] = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        return found
    attempt("tokens", lambda: tokens(tokenizer, job))
    attempt("hidden states", lambda: states(tokenizer, job))
    if job["class"]:
        config = transformers.AutoConfig.from_pretrained(job["folder"])
        attempt("class names", lambda: [config.id2label[i] for i in range(len(config.id2label))])
        attempt("outputs of the head", lambda: outputs(tokenizer, job))
        if job["predicts"]:
            attempt("predictions", lambda: predictions(tokenizer, job))
    if job["sentences"]:
        model = sentence_transformers.SentenceTransformer(job["folder"], device="cpu")
        attempt("vectors", lambda: vectors(model, job))
    if job["scores"]:
        model = sentence_transformers.CrossEncoder(job["folder"], device="cpu")
        attempt("scores", lambda: model.predict(job["pairs"]).tolist())
    return found


def main() -> None:
    out, sys.stdout = sys.stdout, sys.stderr  # the libraries print, too
    versions = f"transformers {transformers.__version__}, sentence-transformers {sentence_transformers.__version__}"
    print(versions, file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=out, flush=True)


if __name__ == "__main__":
    main()
