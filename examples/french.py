"""Train a BERT in a language with accents, French, and classify reviews with it.

    python examples/french.py

The text of this example is far too small for a good model. docs/languages.md has the commands for text of your own.
"""

import argparse
from pathlib import Path

import bertie

DATA = Path(__file__).parent / "data"
TEXTS = ["Plats froids et serveur désagréable.", "Très bon accueil, je recommande."]


def main(text: str, train: str, out: str, steps: int) -> None:
    tokens, shards, bert = Path(out) / "tokenizer", Path(out) / "shards", Path(out) / "bert"
    texts = [text, train]  # without their labels, the reviews are text as well
    # More than one word in a hundred has an accent, so the vocabulary keeps accents.
    tokenizer = bertie.train_tokenizer(texts, tokens, vocab_size=1000)
    print(tokenizer.tokens(tokenizer.encode(["La pâte est molle quand l'été est humide."])[0]))
    bertie.prepare(texts, tokenizer, shards, eval_share=0.1, language="fr")
    # Small steps for a small text: with more text, leave out batch_size and row_tokens.
    training = {"steps": steps, "batch_size": 4, "row_tokens": 512}
    bertie.pretrain({"extends": "modern-tiny", "training": training}, shards, bert)
    # The file is small: hold out a quarter of it, not a tenth, to compute the scores, and train in small batches.
    recipe = {"extends": "classify", "dev_share": 0.25, "training": {"batch_size": 8}}
    tuned = bertie.finetune(recipe, train, bert, Path(out) / "classifier")
    print({metric: round(score, 2) for metric, score in tuned.scores.items()})
    for review, prediction in zip(TEXTS, tuned.predict(TEXTS), strict=True):
        print(f"{prediction.label} {prediction.probabilities[prediction.label]:.2f}  {review}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", default=str(DATA / "text.fr.jsonl"), help="a file or a folder of text")
    parser.add_argument("--train", default=str(DATA / "reviews.fr.csv"), help="labeled texts")
    parser.add_argument("--out", default="runs/examples/french", help="the folder for everything")
    parser.add_argument("--steps", type=int, default=200)
    main(**vars(parser.parse_args()))
