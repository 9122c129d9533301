"""Train a BERT in a language without spaces between words, Japanese, and classify reviews with it.

    python examples/japanese.py

The text of this example is far too small for a good model. Bring your own: `--text my-texts/ --steps 5000`. Thai works the
same way: `--language th --text my-texts/ --train examples/data/reviews.th.csv`.
"""

import argparse
from pathlib import Path

import bertie

DATA = Path(__file__).parent / "data"
TEXTS = ["値段が高くて、料理もまずかったです。", "店員さんが親切で、とてもおいしかったです。"]


def main(text: str, train: str, language: str, out: str, steps: int) -> None:
    tokens, shards, bert = Path(out) / "tokenizer", Path(out) / "shards", Path(out) / "bert"
    texts = [text, train]  # without their labels, the reviews are text as well
    # A unigram vocabulary finds the pieces of words by itself. WordPiece would need spaces.
    tokenizer = bertie.train_tokenizer(texts, tokens, algorithm="unigram", vocab_size=1000)
    print(tokenizer.tokens(tokenizer.encode(["新しい図書館は静かです。"])[0]))
    bertie.prepare(texts, tokenizer, shards, eval_share=0.1, language=language)
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
    parser.add_argument("--text", default=str(DATA / "text.ja.jsonl"), help="a file or a folder of text")
    parser.add_argument("--train", default=str(DATA / "reviews.ja.csv"), help="labeled texts")
    parser.add_argument("--language", default="ja", help="its ISO 639 code, which decides where sentences end")
    parser.add_argument("--out", default="runs/examples/japanese", help="the folder for everything")
    parser.add_argument("--steps", type=int, default=200)
    main(**vars(parser.parse_args()))
