"""Continue to pre-train a BERT on text of your own, and compare how well it expects such text before and after.

    bertie demo  # once: trains runs/demo/bert
    python examples/continue_pretraining.py

Fine-tune the new run as any other model: `--model runs/examples/continued/bert`.
"""

import argparse
from pathlib import Path

import bertie

DATA = Path(__file__).parent / "data" / "text.jsonl"
SENTENCES = ["In winter the ice on the lake is thick.", "The soup is better when it has been cooked slowly."]


def main(model: str, text: str, out: str, steps: int) -> None:
    tokenizer = bertie.Tokenizer.load(model)  # the new text gets the vocabulary of the model
    shards, run = Path(out) / "shards", Path(out) / "bert"
    bertie.prepare(text, tokenizer, shards, eval_share=0.1)
    # Size and weights come from the model. The rest comes from a recipe: here a short run with small batches.
    training = {"steps": steps, "batch_size": 16, "learning_rate": 5e-4}
    bertie.pretrain({"extends": "modern-tiny", "init_from": model, "training": training}, shards, run)
    for name in (model, run):
        # The sum of the log probabilities of a sentence's tokens, each predicted from the others.
        print(name, bertie.load(name).pseudo_log_likelihood(SENTENCES).round(1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="runs/demo/bert", help="a run or a model folder")
    parser.add_argument("--text", default=str(DATA), help="a file or a folder of text")
    parser.add_argument("--out", default="runs/examples/continued", help="the folder for shards and run")
    parser.add_argument("--steps", type=int, default=100)
    main(**vars(parser.parse_args()))
