"""Compute predictions from `convert --to onnx` and `--to openvino` without bertie, and compare. Not run by pytest.

    python tests/long/graph_files.py [NAME…]

The models are those of `KINDS` in stand_ins.py that are named in MODELS here, and whose names contain a NAME, by default all. For
each, ONNX Runtime and OpenVINO compute a padded batch from the tokens of tokenizer.json. Class names, problem type, activation
of scores, prompts, pooling, lowercasing and lengths are those of the files beside the graph. Fails if a name differs from what
bertie predicts with the source, or a number by more than 1e-5 of the largest value.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import tokenizers
from environments import parser_of
from stand_ins import KINDS, StandIn

import bertie
from bertie.predict.convert.compared_texts import TEXTS
from bertie.predict.convert.comparison import Compared, compared
from bertie.predict.predictor import Predictor

sys.modules.setdefault("openvino_telemetry", None)  # pyright: ignore[reportArgumentType]  # it reports its use
import openvino  # noqa: E402

MODELS = (
    *("12 classes", "tagger", "regression", "several labels", "prompts", "cross-encoder with sigmoid"),
    *("classes of XLM-RoBERTa", "classes of MPNet", "XLM-RoBERTa with prompts", "added tokens of XLM-RoBERTa"),
    *("choice", "no words", "added tokens"),
)
TARGETS: tuple[Any, ...] = ("onnx", "openvino")
LIMIT = 1e-5
"""Largest difference of a number, relative to the largest value."""
GIVEN = [text for text in TEXTS if text.strip()]
SENTENCES = GIVEN[:9]
WORDS = [text.split() for text in SENTENCES]


class Files:
    """A folder, as somebody reads it who has a runtime and the library `tokenizers`."""

    def __init__(self, folder: Path, target: str):
        def read(name: str) -> Any:
            return json.loads((folder / name).read_text()) if (folder / name).is_file() else {}

        self.config, self.settings = read("config.json"), read("tokenizer_config.json")
        self.prompts, self.lengths = read("config_sentence_transformers.json"), read("sentence_bert_config.json")
        self.modules = [module["type"].rpartition(".")[2] for module in read("modules.json") or ()]
        self.pooling = read("1_Pooling/config.json")
        self.tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(self.lengths.get("max_seq_length") or self.settings["model_max_length"])
        pad = self.settings["pad_token"]
        self.tokenizer.enable_padding(pad_token=pad, pad_id=self.tokenizer.token_to_id(pad))
        self.run = onnx_graph(folder) if target == "onnx" else openvino_graph(folder)

    def outputs(self, given: list[Any], **options: Any) -> tuple[dict[str, np.ndarray], np.ndarray, list[Any]]:
        """Return the outputs of the graph, the attention mask and the encodings."""
        encoded = self.tokenizer.encode_batch(given, **options)
        mask = np.array([each.attention_mask for each in encoded], np.int64)
        ids, types = (np.array([getattr(each, key) for each in encoded], np.int64) for key in ("ids", "type_ids"))
        return self.run({"input_ids": ids, "attention_mask": mask, "token_type_ids": types}), mask, encoded

    def classes(self, given: list[Any]) -> list[dict[str, float]]:
        """Return what each class gets: a probability, or the value or score of the only one."""
        logits = self.outputs(given)[0]["logits"]
        names = [self.config["id2label"][str(number)] for number in range(logits.shape[1])]
        activation = self.config.get("sentence_transformers", {}).get("activation_fn", "")
        if self.config.get("problem_type") == "multi_label_classification" or activation.endswith("Sigmoid"):
            logits = 1 / (1 + np.exp(-logits))
        elif len(names) > 1:
            logits = softmax(logits)
        return [dict(zip(names, row.tolist(), strict=True)) for row in logits]

    def tags(self, words: list[list[str]]) -> tuple[list[list[str]], list[np.ndarray]]:
        """Return the tag of each word, which its first token has, and its probability."""
        outputs, _, encoded = self.outputs(words, is_pretokenized=True)
        tags, probabilities = [], []
        for logits, each, own in zip(outputs["logits"], encoded, words, strict=True):
            rows = softmax(logits[[each.word_ids.index(number) for number in range(len(own))]])
            tags.append([self.config["id2label"][str(number)] for number in rows.argmax(1)])
            probabilities.append(rows.max(1))
        return tags, probabilities

    def vectors(self, texts: list[str], prompt_name: str | None) -> np.ndarray:
        """Return the vectors that the files of sentence-transformers describe."""
        name = prompt_name or self.prompts["default_prompt_name"]
        prompt = self.prompts["prompts"].get(name, "") if name else ""
        given = [prompt + text for text in texts]
        if self.lengths["do_lower_case"]:
            given, prompt = [text.lower() for text in given], prompt.lower()
        outputs, mask, _ = self.outputs(given)
        states = outputs["last_hidden_state"]
        if prompt and not self.pooling["include_prompt"]:
            mask[:, : len(self.tokenizer.encode(prompt).ids) - 1] = 0
        weights = mask[..., None] / mask.sum(1)[:, None, None]
        vectors = states[:, 0] if self.pooling["pooling_mode_cls_token"] else (states * weights).sum(1)
        if "Normalize" in self.modules:
            vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors[:, : self.prompts.get("truncate_dim")]


Run = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]


def onnx_graph(folder: Path) -> Run:
    session = onnxruntime.InferenceSession(folder / "onnx" / "model.onnx", providers=["CPUExecutionProvider"])
    used, names = ([each.name for each in ports] for ports in (session.get_inputs(), session.get_outputs()))
    return lambda grids: dict(zip(names, session.run(None, {name: grids[name] for name in used}), strict=True))  # pyright: ignore


def openvino_graph(folder: Path) -> Run:
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = openvino.Core().compile_model(folder / "openvino" / "openvino_model.xml", "CPU", settings)
    used = [port.get_any_name() for port in compiled.inputs]

    def run(grids: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = compiled({name: grids[name] for name in used})
        return {port.get_any_name(): found[port] for port in compiled.outputs}

    return run


def softmax(logits: np.ndarray) -> np.ndarray:
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def compare(model: StandIn, source: Predictor, files: Files) -> list[Compared]:
    """Compare what the files give with what bertie predicts from the source."""
    if model.model.sentences:
        found = []
        for name in (None, *source.text_embedding.prompts):
            vectors = list(source.embed(SENTENCES, prompt_name=name)), list(files.vectors(SENTENCES, name))
            found.append(compared(f"vectors with the prompt {name}", SENTENCES, *vectors))
        return found
    if "ForTokenClassification" in model.model.architecture:
        tags, probabilities = files.tags(WORDS)
        ours = [[each.tags, list(map(float, each.probabilities))] for each in source.predict(WORDS)]
        theirs = [[own, shares.tolist()] for own, shares in zip(tags, probabilities, strict=True)]
        return [compared("tags and their probabilities", WORDS, ours, theirs)]
    if "ForSequenceClassification" not in model.model.architecture:
        return [states(source, files)]
    # In bertie, a special token that is written in a text is text.
    roles = source.tokenizer.special.names().values()
    texts = [text for text in GIVEN if not any(role in text for role in roles)]
    found = []
    for what, given in (("texts", texts), ("pairs", [*zip(texts, [*texts[1:], texts[0]], strict=True)])):
        theirs = files.classes(given)
        ours = [getattr(each, "probabilities", None) or {"LABEL_0": each.score} for each in source.predict(given)]
        found.append(compared(f"predictions for {what}", given, ours, theirs))
    return found


def states(source: Predictor, files: Files) -> Compared:
    """Compare hidden states, of models with other heads."""
    texts = SENTENCES
    outputs, mask, _ = files.outputs(texts)
    theirs = [each[own == 1] for each, own in zip(outputs["last_hidden_state"], mask, strict=True)]
    return compared("last hidden states", texts, [each[-1] for each in source.hidden_states(texts)], theirs)


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("names", nargs="*", default=[""])
    asked = parser.parse_args()
    failed = computed = 0
    for model in KINDS:
        if model.name not in MODELS or not any(name in model.name for name in asked.names):
            continue
        with tempfile.TemporaryDirectory() as temporary:
            model.build(Path(temporary, "source"))
            source = bertie.load(Path(temporary, "source"), threads=1, engine="plain")
            for target in TARGETS:
                bertie.convert(source.folder, out := Path(temporary, target), target, threads=1)
                results = compare(model, source, Files(out, target))
                wrong = [each for each in results if not each.difference <= (LIMIT if each.tolerance else 0)]
                worst = max((each.difference for each in results if each.tolerance), default=0.0)
                shown = ", ".join(each.what for each in results)
                print(f"{model.name}, {target}: {shown}: numbers differ by at most {worst:.1e}", flush=True)
                for each in wrong:
                    print(f"  FAILED: {each.what}: {each.difference:.2g}, {each.example}", flush=True)
                failed += bool(wrong)
                computed += 1
    print(f"{computed} graphs computed, {failed} differ")
    return int(failed > 0 or not computed)


if __name__ == "__main__":
    sys.exit(main())
