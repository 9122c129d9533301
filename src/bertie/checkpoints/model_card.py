"""The model card: README.md of a model folder, with the metadata that the Hugging Face Hub reads."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from bertie.base import console, storage
from bertie.base.errors import UsageError, first_line
from bertie.checkpoints.families import family_of
from bertie.checkpoints.huggingface import transformers_heads
from bertie.checkpoints.sentence_transformers_format import MODULES
from bertie.model.head_facts import facts_of
from bertie.model.model import Model

FILE = "README.md"
CONFIG = "config.json"
FEATURES, VECTORS, RANKING = "feature-extraction", "sentence-similarity", "text-ranking"
SCORES = {"matthews": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr"}
"""Names of the hub for scores whose name is another one here."""
KEPT = ("license", "license_name", "license_link", "language", "datasets", "base_model", "base_model_relation")
"""Keys of a source's card that also hold for its copy: a text, or a list of texts."""
LANGUAGE = r"[a-z]{2,3}(-[A-Za-z0-9]{1,8})*|multilingual|code"


@dataclass(frozen=True)
class CardFacts:
    """Facts for the model card that only you know. Omitted facts are left out of the card."""

    license: str = ""
    """License of the model, by its identifier on the hub: apache-2.0, mit, cc-by-4.0, … Only its form is checked."""
    language: tuple[str, ...] = ()
    """Languages of its texts, by their codes: en, de, …"""
    datasets: tuple[str, ...] = ()
    """Ids of its training data on the hub: nyu-mll/glue, …"""

    def __post_init__(self) -> None:
        wrong = [("license", self.license)] if self.license and not re.fullmatch(r"[a-z0-9.+-]+", self.license) else []
        wrong += [("language", code) for code in self.language if not re.fullmatch(LANGUAGE, code)]
        wrong += [("datasets", name) for name in self.datasets if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name)]
        for name, value in wrong:
            forms = {"license": "apache-2.0", "language": "en", "datasets": "nyu-mll/glue"}
            raise UsageError(
                f"card.{name} is {value[:60]!r}: the hub does not know this name; a valid one is {forms[name]}"
            )


@dataclass(frozen=True)
class CardResults:
    """Scores of a model."""

    scores: dict[str, float]
    """By their names here."""
    data: str
    """The data that they were measured on, for people."""


@dataclass(frozen=True)
class About:
    """Contents of a card that the model itself does not tell."""

    text: str = ""
    """Section on how the model was trained, in Markdown."""
    facts: CardFacts = CardFacts()
    base_model: str = ""
    """Hub id of the model that it comes from. Empty: it comes from none of the hub."""
    relation: Literal["", "finetune", "quantized"] = ""
    """Its relation to `base_model`."""
    results: CardResults | None = None
    source: dict[str, Any] = field(default_factory=dict)
    """Metadata of the card of its source, of which it is a copy (`metadata_of`)."""


def write_card(folder: Path, model: Model, labels: tuple[str, ...], about: About) -> None:
    """Write the card of a folder that holds the other files.

    Args:
        folder: The folder.
        model: The model. Its weights are not read.
        labels: Class names, if any.
        about: What else is known.
    """
    metadata = _metadata(folder, model, about)
    storage.write_atomic(folder / FILE, f"---\n{metadata}\n---\n\n{_text(model, labels, about.text)}")


def _metadata(folder: Path, model: Model, about: About) -> str:
    """Return the metadata of a card, in YAML."""
    from huggingface_hub import ModelCardData  # its import takes a tenth of a second
    from huggingface_hub.repocard_data import EvalResult

    fits = transformers_heads(model) is not None and family_of(model.encoder.config).in_transformers
    tags = [family_of(model.encoder.config).title.lower(), "bertie"]
    library = "transformers" if fits else "bertie"
    heads = [facts_of(model.heads[kind]).hub_tag for kind in sorted(model.encoder_heads)] if fits else []
    task = next((tag for tag in heads if tag != FEATURES), FEATURES)
    if (folder / MODULES).is_file():
        library, task = "sentence-transformers", VECTORS
    elif (folder / CONFIG).is_file() and "sbert_ce_default_activation_function" in storage.read_json(folder / CONFIG):
        outputs = [len(cast(Any, head).out.weight) for head in model.heads.values() if facts_of(head).shape == "text"]
        library, task = "sentence-transformers", RANKING if outputs == [1] else task
    if (folder / "onnx" / "model_quantized.onnx").is_file():
        tags.append("transformers.js")
    facts, said = about.facts, dict(about.source)
    results = said.pop("eval_results", [])
    if about.results is not None:
        for name, value in about.results.scores.items():
            if math.isfinite(value):
                kind = SCORES.get(name) or re.sub(r".*_(?=(loss|accuracy)$)", "", name)
                results = [
                    *results,
                    EvalResult(task, "unknown", about.results.data, kind, round(value, 6), metric_name=name),
                ]
    if about.base_model:
        said |= {"base_model": about.base_model, "base_model_relation": about.relation}
    told = {"license": facts.license, "language": list(facts.language), "datasets": list(facts.datasets)}
    if facts.license:
        said = {name: value for name, value in said.items() if name not in ("license_name", "license_link")}
    said |= {name: value for name, value in told.items() if value}
    data = ModelCardData(
        **{name: value for name, value in said.items() if value},
        library_name=library,
        pipeline_tag=task,
        tags=tags,
        metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
        model_name=f"{family_of(model.encoder.config).title} model" if results else None,
        eval_results=results or None,
    )
    return data.to_yaml()


def metadata_of(folder: Path, scores: bool) -> dict[str, Any]:
    """Return what the card of a folder says that also holds for a copy of its model.

    Args:
        folder: The folder. Damaged metadata give a warning.
        scores: Whether the copy has the scores of its source, too: "eval_results".
    """
    import yaml
    from huggingface_hub.repocard_data import model_index_to_eval_results

    path = folder / FILE
    try:
        header = re.match(r"---\s*\n(.*?)\n---\s*\n", path.read_text("utf-8-sig", "replace"), re.DOTALL)
        values = yaml.load(header[1], getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if header else {}
        if not isinstance(values, dict):
            raise ValueError("no table")
        kept = {name: values[name] for name in KEPT if _is_text(values.get(name))}
        if scores and values.get("model-index"):
            kept["eval_results"] = model_index_to_eval_results(values["model-index"])[1]
    except FileNotFoundError:
        return {}
    except Exception as error:  # whatever a damaged text makes a parser raise: the model does not depend on it
        console.warn(f"{path}: its metadata cannot be read and is not kept: {first_line(error)[:200]}")
        return {}
    return kept


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(entry, str) for entry in value))


def _text(model: Model, labels: tuple[str, ...], about: str) -> str:
    """Return the card without its metadata, in Markdown."""
    heads = [facts_of(model.heads[kind]) for kind in model.heads if kind in model.encoder_heads]
    predicts = ", and ".join(head.predicts for head in heads) or "hidden states"
    config = model.encoder.config
    lines = [f"# {family_of(config).title} model", "", f"Written with bertie. It predicts {predicts}.", ""]
    sizes = f"{config.num_hidden_layers} layers, hidden size {config.hidden_size}"
    heads = getattr(config, "num_attention_heads", 0)
    sizes += f", {heads} heads" if heads else ""
    longest = config.max_position_embeddings
    lines += [
        f"- {sizes}",
        f"- {model.size:,} parameters, vocabulary of {config.vocab_size:,}, up to {longest:,} tokens",
    ]
    if model.generator is not None:
        lines += ["- with the generator of its pre-training, which predicts masked words; only bertie loads it"]
    lines += [f"- classes: {', '.join(labels)}"] if labels else []
    lines += ["", about.strip(), ""] if about.strip() else [""]
    lines += ["```python", "import bertie", 'model = bertie.load("this folder")', "```", "", _other_loaders(model), ""]
    return "\n".join(lines)


def _other_loaders(model: Model) -> str:
    if not family_of(model.encoder.config).in_transformers:
        return "Only bertie loads this model: no class of transformers has its structure."
    if transformers_heads(model) is None:
        return "transformers' `AutoModel` loads its encoder. Only bertie loads the layers above it."
    return "It also loads with transformers' `AutoModel` classes."
