"""Train vectors for search: queries near the passages that answer them.

    bertie demo  # once: trains runs/demo/bert
    python examples/embed.py

The other passages of a batch are the negatives. With a column `score`, as in data/pairs.csv, the vectors learn the scores.
"""

import argparse
from pathlib import Path

import bertie

DATA = Path(__file__).parent / "data" / "search.jsonl"
PASSAGES = [
    "Starch binds the water of the crumb, so bread goes stale, most quickly in the refrigerator.",
    "Bikes need a ticket of their own in trains.",
    "A concave lens spreads the light before it reaches the eye.",
]


def main(model: str, out: str) -> None:
    # The recipe names the columns. The file is small: a quarter of it is held out, not a tenth, to compute the scores.
    recipe = {"extends": "embed", "task": {"text": "query", "text_pair": "passage"}, "dev_share": 0.25}
    tuned = bertie.finetune(recipe, DATA, model, out)
    print({metric: round(score, 2) for metric, score in tuned.scores.items()})
    found_by = bertie.load(out)
    for query in ("bicycle in a train", "why is my bread dry"):
        print(query)
        scores = found_by.rerank(query, PASSAGES)  # the cosines of the vectors
        for score, passage in sorted(zip(scores, PASSAGES, strict=True), reverse=True):
            print(f"  {score:.2f}  {passage}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="runs/demo/bert", help="a run, a model folder or a Hugging Face id")
    parser.add_argument("--out", default="runs/examples/embed", help="the run folder")
    main(**vars(parser.parse_args()))
