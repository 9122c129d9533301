"""Convert models to transformers.js's layout, and compute them in Node. Not run by pytest.

    python tests/long/transformers_js.py [--packages FOLDER] [NAME…]

The folder gets the npm package @huggingface/transformers, about 400 MB, unless it is there. The models are those of
tests/parity/hub_models.py whose names contain a NAME, by default all. Fails if the tokens of a text of one of many languages, or
of a pair, differ in Node; for strings that break programs it prints how many do. Fails if an output differs: fp32 from bertie's
by more than 1e-4 of its largest value, fp16 by more than 3e-2, and q8 so much that the cosine of all values together is below
0.99. Ends without a test, and says why, if there is no Node or no network.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from environments import npm_problem, parser_of

sys.path.insert(0, str(Path(__file__).parents[1] / "parity"))
from hub_models import TEXTS, build
from hub_table import HUB_MODELS

import bertie
from bertie.base.errors import UsageError
from bertie.predict.convert import transformers_js
from bertie.predict.engines.graph import STATES, Graph
from bertie.predict.predictor import Predictor
from bertie.tokenizers import truncation

PACKAGE = "@huggingface/transformers@3"
MULTILINGUAL = Path(__file__).resolve().parents[3] / "shared" / "data" / "multilingual"
CLASSES = {"text": "SequenceClassification", "tokens": "TokenClassification", "start_end": "QuestionAnswering"}
PAIRS = [(TEXTS[0][:30], TEXTS[1][:20]), (TEXTS[3][:5], TEXTS[4][-9:]), (TEXTS[5][:30], "")]
LIMITS = {"fp32": 1e-4, "fp16": 3e-2}


def texts() -> list[str]:
    """Return texts of many languages."""
    found = list(TEXTS)
    for path in sorted(MULTILINGUAL.glob("*-*.txt")):
        found += [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()][:40]
    return found


def naughty() -> list[str]:
    """Return strings that break programs, some of which transformers.js reads in its own way."""
    path = MULTILINGUAL / "blns.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [line for line in lines if line.strip() and not line.startswith("#")]


def tokens_of(predictor: Predictor, given: list[Any]) -> list[Any]:
    return truncation.encode(
        predictor.tokenizer,
        [each if isinstance(each, str) else each[0] for each in given],
        None if isinstance(given[0], str) else [each[1] for each in given],
        max_length=predictor.max_length,
    )


def compare(folder: Path, job: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Return what differs."""
    predictor = bertie.load(folder, threads=1, engine="plain")
    required, problems, known = len(texts()), [], 0
    sequences = tokens_of(predictor, job["texts"])
    for number, (sequence, theirs) in enumerate(zip(sequences, found["tokens"], strict=True)):
        ours = sequence.input_ids.tolist()
        kept = len(theirs) - (len(theirs) == predictor.max_length)  # it truncates without a [SEP] at the end
        if len(ours) != len(theirs) or ours[:kept] != theirs[:kept]:
            known += number >= required
            if number < required:
                problems.append(f"tokens of {job['texts'][number][:60]!r}: {ours[:12]}, in Node {theirs[:12]}")
    print(f"  {required} texts; {known} of {len(sequences) - required} naughty strings have other tokens", flush=True)
    reads_segments = getattr(predictor.model.encoder.config, "type_vocab_size", 0) > 1
    for pair, sequence, (ids, segments) in zip(PAIRS, tokens_of(predictor, PAIRS), found["pairs"], strict=True):
        ours = sequence.input_ids.tolist(), sequence.token_type_ids.tolist()
        if ids != ours[0] or (segments is not None and reads_segments and segments != ours[1]):
            problems.append(f"pair {pair[0][:30]!r}: {ours}, in Node {ids}, {segments}")
    if len(problems) > 3:
        problems[3:] = [f"and {len(problems) - 3} other texts"]
    return problems + compare_outputs(predictor, folder, found)


def compare_outputs(predictor: Predictor, folder: Path, found: dict[str, Any]) -> list[str]:
    ids = np.array(found["ids"][1]).reshape(found["ids"][0])
    mask = (np.arange(ids.shape[1]) < np.array([len(each) for each in found["tokens"][: len(ids)]])[:, None]).astype(
        int
    )
    grids = ids.astype(np.int64), mask.astype(np.int64), np.zeros_like(ids)
    graph = Graph(
        transformers_js.with_one_head(predictor.model, json.loads((folder / "config.json").read_text())["model_type"])
    )
    with torch.inference_mode():
        ours = dict(zip(graph.outputs, graph(*map(torch.from_numpy, grids)), strict=True))
    problems, shown = [], []
    for dtype, outputs in found["outputs"].items():
        for key, tensor in ours.items():
            if key == STATES and len(ours) > 1:
                continue  # its classes with a head return that of the head alone
            if key not in outputs:
                problems.append(f"{dtype}: {key} is missing in Node, which returns {list(outputs)}")
                continue
            real = mask.astype(bool) if tensor.shape[:2] == mask.shape else slice(None)
            theirs = np.array(outputs[key][1], np.float32).reshape(outputs[key][0])[real]
            right = tensor.numpy()[real]
            difference = float(np.abs(theirs - right).max() / np.abs(right).max())
            cosine = float((theirs * right).sum() / np.linalg.norm(theirs) / np.linalg.norm(right))
            shown.append(f"{dtype} {key} {difference:.1e}" + f" (cosine {cosine:.4f})" * (dtype == "q8"))
            if dtype == "q8" and not cosine > 0.99:
                problems.append(f"{dtype}: {key} has the cosine {cosine:.4f}")
            if not difference <= LIMITS.get(dtype, np.inf):
                problems.append(f"{dtype}: {key} differs by {difference:.1e}")
    print(f"  {', '.join(shown)}", flush=True)
    return problems


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--packages", type=Path)
    parser.add_argument("names", nargs="*", default=[""])
    asked = parser.parse_args()
    failed = converted = 0
    with tempfile.TemporaryDirectory() as temporary:
        packages = asked.packages or Path(temporary, "packages")
        if reason := npm_problem(packages, PACKAGE):
            print(f"nothing is tested: {reason}")
            return 0
        script = shutil.copy(Path(__file__).with_name("transformers_js_side.mjs"), packages)
        for number, model in enumerate(HUB_MODELS):
            if not any(name in model.name for name in asked.names):
                continue
            source, out = Path(temporary, f"source{number}"), Path(temporary, f"out{number}")
            if model.refused:
                continue
            build(model, source)
            if json.loads((source / "config.json").read_text())["model_type"] not in transformers_js.CLASSES:
                continue
            try:
                bertie.convert(source, out, "transformers.js", threads=1)
            except UsageError as error:
                print(f"{model.name}: refused: {error}", flush=True)
                continue
            shape = next((kind for kind, name in CLASSES.items() if model.architecture.endswith(name)), None)
            masked = model.architecture.endswith(("MaskedLM", "PreTraining")) and not model.architecture.startswith(
                "Electra"
            )
            cls = f"AutoModelFor{CLASSES[shape]}" if shape else "AutoModelForMaskedLM" if masked else "AutoModel"
            job = {
                "folder": str(out),
                "class": cls,
                "texts": texts() + naughty(),
                "computed": len(TEXTS),
                "pairs": PAIRS,
            }
            jobs, results = Path(temporary, "jobs.json"), Path(temporary, "results.json")
            jobs.write_text(json.dumps([job]))
            subprocess.run(["node", script, jobs, results], check=True)
            print(f"{model.name} ({cls}):", flush=True)
            problems = compare(out, job, json.loads(results.read_text())[0])
            for problem in problems:
                print(f"  FAILED: {problem}", flush=True)
            failed += bool(problems)
            converted += 1
    print(f"{converted} models computed in Node, {failed} differ")
    return int(failed > 0 or not converted)


if __name__ == "__main__":
    sys.exit(main())
