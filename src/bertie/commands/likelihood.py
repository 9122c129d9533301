"""bertie likelihood"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from bertie import console, storage
from bertie.commands.flags import Flat, Positional
from bertie.errors import UsageError, UserError, raise_error
from bertie.predict.likelihood import TextScore, perplexity
from bertie.predict.load import load
from bertie.predict.token_model import tell_generator
from bertie.tasks.data.unlabeled import UnlabeledReader
from bertie.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Args:
    """Compute the pseudo-log-likelihood of texts with a masked language model, or the log-likelihood with a causal one.

    The pseudo-log-likelihood is the sum of the log probabilities of the tokens, each predicted from all others (Salazar et
    al. 2020). Prints one JSON object per text, in input order, in nats. The perplexity is per token.
    """

    run: Positional[str]
    """A pre-trained run, or a model's folder or hub id."""
    texts: Positional[list[str]]
    """Texts; each argument is one text."""
    input: Path | None = None
    """Input file of any size: .txt (one text per line), .tsv, .csv, .jsonl, .parquet, or one word per line (.conllu
    and other CoNLL formats). -: stdin, one text per line."""
    source: Flat[UnlabeledReader] = UnlabeledReader()
    out: Path | None = None
    """Output file .jsonl, in place of stdout."""
    within_word: bool = False
    """Also mask the later pieces of the word of each predicted piece. The pieces of a rare word then do not reveal each
    other (Kauf and Ivanova 2023)."""
    per_token: bool = False
    """Also print each token with its log probability."""
    language: str = ""
    """Language of the texts, for a model with language embeddings; empty: the first one that the model knows."""
    strict: bool = False
    """Fail at the first text that cannot be scored, instead of printing {"error": …} for it."""


def run(args: Args) -> dict[str, Any]:
    if bool(args.texts) == bool(args.input):
        raise UsageError("give either texts or --input FILE")
    texts = args.source.stream(args.input) if args.input else args.texts
    predictor = load(args.run, language=args.language)
    causal = predictor.token_model().causal
    tell_generator(predictor.model)
    scores = predictor.score_tokens(texts, args.within_word)
    scores = map(raise_error, scores) if args.strict else scores
    count = bad = tokens = 0
    total = 0.0
    with _destination(args.out) as file:
        for score in scores:
            count += 1
            if isinstance(score, UserError):
                bad += 1
                line: dict[str, Any] = {"error": str(score)}
            else:
                tokens, total = tokens + len(score.token_ids), total + score.log_likelihood
                line = to_json(score, predictor.tokenizer if args.per_token else None)
            print(json.dumps(line, ensure_ascii=False), file=file)
        if not count:
            raise UserError(f"{args.input}: no texts in it")
    if bad:
        console.warn(f'{bad:,} of {count:,} texts could not be scored: they have an "error" instead of a likelihood')
    name = "log-likelihood" if causal else "pseudo-log-likelihood"
    result: dict[str, Any] = {"score": name, "texts": count, "errors": bad, "tokens": tokens}
    if not tokens:
        raise UserError(f'none of {console.plural(bad, "text")} could be scored: see the "error" of each')
    result |= {"log_likelihood": total, "perplexity": perplexity(total, tokens)}
    prefix = "" if causal else "pseudo-"
    console.info(f"{tokens:,} tokens: {name} {total:,.2f}, {prefix}perplexity per token {result['perplexity']:,.2f}")
    return result


def to_json(score: TextScore, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Return a line of the output. With a tokenizer, it also has the tokens."""
    line = {"log_likelihood": score.log_likelihood, "tokens": len(score.token_ids), "perplexity": score.perplexity}
    if tokenizer is None:
        return line
    pieces = zip(tokenizer.tokens(score.token_ids), score.log_probabilities.tolist(), strict=True)
    return {**line, "pieces": [[token, log_p] for token, log_p in pieces]}


@contextmanager
def _destination(out: Path | None) -> Iterator[IO[str]]:
    """Yield the output file, which gets its name when it is complete, or stdout."""
    if out is None:
        if sys.stdout is None:
            raise UsageError("stdout is closed, and likelihoods are written there: redirect it to a file")
        yield sys.stdout
        return
    if out.suffix != ".jsonl":
        raise UsageError(f"--out {out}: likelihoods are written as .jsonl: use this ending")
    if out.exists():
        raise UsageError(f"{out} already exists: give another --out, or remove it first")
    with storage.atomic_file(out) as path, open(path, "w", encoding="utf-8") as file:
        yield file
