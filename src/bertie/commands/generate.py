"""bertie generate"""

from __future__ import annotations

from dataclasses import dataclass

from bertie.commands.flags import Flat, JsonResult, Positional
from bertie.predict.generation import Generation
from bertie.predict.load import load
from bertie.predict.token_model import tell_generator


@dataclass(frozen=True)
class Args:
    """Generate text from a model, and print it. Slow, and poor with a masked language model.

    Masked language models are not trained to generate. bertie replaces masks after the prompt by tokens that it draws,
    from left to right or by Gibbs sampling (Wang and Cho 2019). Every token takes a forward pass over the whole text.
    Causal models draw the next token again and again; bertie caches keys and values only for a Transformer-XL, so other
    models are slow as well.
    """

    run: Positional[str]
    """A pre-trained run, or a model's folder or hub id."""
    prompt: Positional[str] = ""
    """Start of the text; default: none. Special tokens in it are plain text."""
    how: Flat[Generation] = Generation()
    language: str = ""
    """Language of the text, for a model with language embeddings; empty: the first one that the model knows."""


def run(args: Args) -> JsonResult:
    predictor = load(args.run, language=args.language)
    texts = predictor.generate(args.prompt, args.how)
    tell_generator(predictor.model)
    for text in texts:
        print(text)
    return {"texts": texts}
