"""The model card: README.md of a model folder."""

from __future__ import annotations

from bertie.checkpoints.families import family_of, own
from bertie.checkpoints.huggingface import loads_in_transformers
from bertie.model.config import TransformerConfig
from bertie.model.model import Model
from bertie.model.xlnet import XlnetConfig

# Heads -> (pipeline tag of the hub, what the model predicts).
USES = {
    frozenset(): ("feature-extraction", "hidden states"),
    frozenset({"mlm"}): ("fill-mask", "masked words"),
    frozenset({"nsp"}): ("text-classification", "whether a second text follows the first"),
    frozenset({"mlm", "nsp"}): ("fill-mask", "masked words, and whether a second text follows the first"),
    frozenset({"rtd"}): ("feature-extraction", "which tokens were replaced"),
    frozenset({"clm"}): ("text-generation", "the next word"),
    frozenset({"plm"}): ("text-generation", "masked words, in any order"),
    frozenset({"classify"}): ("text-classification", "classes"),
    frozenset({"regress"}): ("text-classification", "a number"),
    frozenset({"choose"}): ("multiple-choice", "the best of several endings"),
    frozenset({"tag"}): ("token-classification", "a tag for every word"),
    frozenset({"span"}): ("question-answering", "answers from a context"),
    frozenset({"embed"}): ("sentence-similarity", "vectors of texts"),
}

TITLES = {
    "bert": "BERT",
    "roberta": "RoBERTa",
    "gpt2": "GPT-2",
    "distilbert": "DistilBERT",
    "electra": "ELECTRA",
    "modernbert": "ModernBERT",
    "xlm": "XLM",
    "xlnet": "XLNet",
}  # of model types


def model_card(model: Model, heads: frozenset[str], labels: tuple[str, ...], about: str) -> str:
    """Return the model card, in Markdown.

    Args:
        model: The model.
        heads: Kinds of its heads.
        labels: Class names, if any.
        about: Section on how the model was trained, in Markdown.
    """
    pipeline, predicts = USES.get(
        heads, ("feature-extraction", f"hidden states; its heads are {' and '.join(sorted(heads))}")
    )
    if not loads_in_transformers(model):
        pipeline = "feature-extraction"
    config = model.encoder.config
    name = TITLES.get(family_of(config).model_type, "Encoder")
    lines = ["---", f"pipeline_tag: {pipeline}", "library_name: bertie", f"tags: [{name.lower()}]", "---", ""]
    lines += [f"# {name} model", "", f"Trained with bertie. It predicts {predicts}.", ""]
    sizes = f"{config.num_hidden_layers} layers, hidden size {config.hidden_size}"
    sizes += f", {config.num_attention_heads} heads" if isinstance(config, TransformerConfig | XlnetConfig) else ""
    lines += [f"- {sizes}"]
    lines += [
        f"- {model.size:,} parameters, vocabulary of {config.vocab_size:,}, up to {config.max_position_embeddings:,} tokens"
    ]
    if model.generator is not None:
        lines += ["- with the generator of its pre-training, which predicts masked words; only bertie loads it"]
    lines += [f"- classes: {', '.join(labels)}"] if labels else []
    lines += ["", about.strip(), ""] if about.strip() else [""]
    loader = 'bertie.load("this folder")'
    lines += [
        "```python",
        "import bertie",
        f"model = {loader}",
        "```",
        "",
        _other_loaders(model),
        "",
    ]
    return "\n".join(lines)


def _other_loaders(model: Model) -> str:
    if family_of(model.encoder.config).model_type == own.FAMILY.model_type:
        return "Only bertie loads this model: no class of transformers has its structure."
    if not loads_in_transformers(model):
        return "transformers' `AutoModel` loads its encoder. Only bertie loads the layers above it."
    return "It also loads with transformers' `AutoModel` classes."
