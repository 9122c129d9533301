"""The model card: README.md of a model folder."""

from __future__ import annotations

from bertie.checkpoints.families import family_of, own
from bertie.checkpoints.huggingface import transformers_heads
from bertie.model.config import TransformerConfig
from bertie.model.head_facts import facts_of
from bertie.model.model import Model
from bertie.model.xlnet import XlnetConfig

FEATURES = "feature-extraction"


def model_card(model: Model, labels: tuple[str, ...], about: str) -> str:
    """Return the model card, in Markdown.

    Args:
        model: The model.
        labels: Class names, if any.
        about: Section on how the model was trained, in Markdown.
    """
    heads = [facts_of(model.heads[kind]) for kind in model.heads if kind in model.encoder_heads]
    tags = [head.hub_tag for head in heads if transformers_heads(model) is not None]
    pipeline = next((tag for tag in tags if tag != FEATURES), FEATURES)
    predicts = ", and ".join(head.predicts for head in heads) or "hidden states"
    config = model.encoder.config
    name = family_of(config).title
    lines = ["---", f"pipeline_tag: {pipeline}", "library_name: bertie", f"tags: [{name.lower()}]", "---", ""]
    lines += [f"# {name} model", "", f"Trained with bertie. It predicts {predicts}.", ""]
    sizes = f"{config.num_hidden_layers} layers, hidden size {config.hidden_size}"
    sizes += f", {config.num_attention_heads} heads" if isinstance(config, TransformerConfig | XlnetConfig) else ""
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
    if family_of(model.encoder.config) is own.FAMILY:
        return "Only bertie loads this model: no class of transformers has its structure."
    if transformers_heads(model) is None:
        return "transformers' `AutoModel` loads its encoder. Only bertie loads the layers above it."
    return "It also loads with transformers' `AutoModel` classes."
