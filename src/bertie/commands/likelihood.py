"""bertie likelihood"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertie.base import console, storage
from bertie.base.errors import UsageError, raise_error
from bertie.commands.common import print_lines, require_one_input, require_stdout
from bertie.commands.flags import Flat, JsonResult, Positional
from bertie.examples.unlabeled import UnlabeledReader
from bertie.predict.likelihood import TextScore, perplexity
from bertie.predict.load import load
from bertie.predict.token_model import tell_generator
from bertie.tokenizers.tokenizer import Tokenizer


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
    from_left: bool = False
    """The exact log-likelihood of a model that was trained to read both ways (objectives with shares), in place of the
    pseudo-log-likelihood."""
    per_token: bool = False
    """Also print each token with its log probability."""
    language: str = ""
    """Language of the texts, for a model with language embeddings; empty: the first one that the model knows."""
    strict: bool = False
    """Fail at the first text that cannot be scored, instead of printing {"error": …} for it."""


def run(args: Args) -> JsonResult:
    require_one_input(args.texts, args.input)
    stdout = None if args.out else require_stdout("likelihoods")
    if args.out and args.out.suffix != ".jsonl":
        raise UsageError(f"--out {args.out}: likelihoods are written as .jsonl: use this ending")
    if args.out:
        storage.require_fresh(args.out, "likelihoods")
    texts = args.source.stream(args.input) if args.input else args.texts
    predictor = load(args.run, language=args.language)
    causal = predictor.token_model(from_left=args.from_left).causal
    tell_generator(predictor.model)
    scores = predictor.score_tokens(texts, args.within_word, args.from_left)
    scores = map(raise_error, scores) if args.strict else scores
    tokens, total = 0, 0.0

    def line(score: TextScore) -> dict[str, Any]:
        nonlocal tokens, total
        tokens, total = tokens + len(score.token_ids), total + score.log_likelihood
        return to_json(score, predictor.tokenizer if args.per_token else None)

    with (
        storage.atomic_file(args.out) if args.out else nullcontext() as path,
        open(path, "w", encoding="utf-8") if path else nullcontext(stdout) as file,
    ):
        result = print_lines(scores, line, args.input, "texts", "likelihood", file)
    prefix = "" if causal else "pseudo-"
    result |= {"score": f"{prefix}log-likelihood", "tokens": tokens, "log_likelihood": total}
    result |= {"perplexity": perplexity(total, tokens)}
    about = f"{prefix}log-likelihood {total:,.2f}, {prefix}perplexity per token {result['perplexity']:,.2f}"
    console.info(f"{tokens:,} tokens: {about}")
    return result


def to_json(score: TextScore, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Return a line of the output. With a tokenizer, it also has the tokens."""
    line = {"log_likelihood": score.log_likelihood, "tokens": len(score.token_ids), "perplexity": score.perplexity}
    if tokenizer is None:
        return line
    pieces = zip(tokenizer.tokens(score.token_ids), score.log_probabilities.tolist(), strict=True)
    return {**line, "pieces": [[token, log_p] for token, log_p in pieces]}
