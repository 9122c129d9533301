"""The command line: one command a verb. It parses, calls the function of the same name, and prints."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import tyro

from bertie import config as configuration
from bertie import console
from bertie.errors import UsageError, UserError

if TYPE_CHECKING:
    from bertie.training.finetune import FinetuneConfig
    from bertie.training.pretrain import PretrainConfig

A = TypeVar("A")
HELP = """usage: bertie VERB …        (bertie VERB --help says more)

  demo                                   the whole way, on text that every Python carries, in minutes
  tokenizer train TEXT… --out DIR        a WordPiece vocabulary from your text
  prepare TEXT… --tokenizer DIR --out SHARDS              token shards
  pretrain CONFIG --data SHARDS --out RUN                 a BERT; the same command again resumes
  finetune CONFIG --train FILE --dev FILE --model RUN --out RUN     or --task KIND for CONFIG
  evaluate RUN --data FILE               scores on labelled examples
  predict RUN [--input FILE] [TEXT…]     one JSON object a line
  fill-mask RUN "… [MASK] …"             the likeliest words

TEXT is .txt or .jsonl files, plain, .gz or .xz, or folders of them."""


@dataclass(frozen=True)
class _Common:
    json: bool = False
    """Print one JSON object, last, on stdout."""
    debug: bool = False
    """Show the traceback of an error."""


Common = Annotated[_Common, tyro.conf.arg(name="")]


@dataclass(frozen=True)
class Texts:
    """How to read text files."""

    documents: Literal["blank-line", "file"] = "blank-line"
    """In .txt files: a blank line ends a document, or every file is one."""
    text_field: str = "text"
    """In .jsonl files: the key of the text."""


@dataclass(frozen=True)
class TokenizerTrain:
    """Train a WordPiece vocabulary. The same text gives the same bytes on every run and machine."""

    text: tyro.conf.Positional[list[Path]]
    """.txt or .jsonl files, plain, .gz or .xz, or folders of them."""
    out: Path
    """Folder to make: vocab.txt, tokenizer.json, tokenizer_config.json."""
    vocab_size: int = 30_000
    """Entries, special tokens included."""
    cased: bool = False
    """Keep case and accents."""
    alphabet_limit: int = 1000
    """Characters to keep, the most frequent; words with others become [UNK]."""
    min_frequency: int = 2
    """Pieces seen less often together are not merged."""
    reading: Annotated[Texts, tyro.conf.arg(name="")] = Texts()
    common: Common = _Common()


@dataclass(frozen=True)
class Prepare:
    """Turn text into token shards, with some documents held out for evaluation."""

    text: tyro.conf.Positional[list[Path]]
    """.txt or .jsonl files, plain, .gz or .xz, or folders of them."""
    tokenizer: Path
    """Folder of `bertie tokenizer train`, or any with a BERT's vocab.txt or tokenizer.json."""
    out: Path
    """Folder to make."""
    eval_share: float = 0.01
    """Share of the documents to hold out, 0 to 1; equal documents stay on one side."""
    language: str = "en"
    """Language of the text, for sentence splitting (a two-letter code)."""
    reading: Annotated[Texts, tyro.conf.arg(name="")] = Texts()
    common: Common = _Common()


@dataclass(frozen=True)
class Pretrain:
    """Pre-train a BERT on token shards. The same command again resumes; a finished run is left alone."""

    config: tyro.conf.Positional[str]
    """A TOML file, or a shipped one: tiny, mini, small, medium, base, large, or the paper's recipe, mini-paper …"""
    data: Path
    """Token shards (bertie prepare)."""
    out: Path
    """Run folder."""
    recipe: Annotated[PretrainConfig, tyro.conf.arg(name="")]
    threads: int = 0
    """Processor threads; 0: those the run was started with, or all this process may use."""
    common: Common = _Common()


@dataclass(frozen=True)
class Finetune:
    """Fine-tune a checkpoint on labelled examples. The same command again resumes."""

    config: tyro.conf.Positional[str]
    """A TOML file, or the kind of a task: classify."""
    train: Path
    """Training examples: .tsv (GLUE's layouts), .csv or .jsonl."""
    dev: Path
    """Examples to score on."""
    model: str
    """A run, a checkpoint folder or a hub id to start from."""
    out: Path
    """Run folder."""
    recipe: Annotated[FinetuneConfig, tyro.conf.arg(name="")]
    threads: int = 0
    """Processor threads; 0: those the run was started with, or all this process may use."""
    common: Common = _Common()


@dataclass(frozen=True)
class Evaluate:
    """Score a fine-tuned run on labelled examples."""

    run: tyro.conf.Positional[str]
    """A fine-tuned run."""
    data: Path
    """.tsv, .csv or .jsonl, with labels."""
    common: Common = _Common()


@dataclass(frozen=True)
class Predict:
    """Predict with a fine-tuned run: one JSON object a line on stdout, in input order."""

    run: tyro.conf.Positional[str]
    """A fine-tuned run."""
    text: tyro.conf.Positional[list[str]] = dataclasses.field(default_factory=list)
    """Texts to predict for."""
    input: Path | None = None
    """A file of any size: .tsv, .csv or .jsonl."""
    common: Common = _Common()


@dataclass(frozen=True)
class FillMask:
    """Guess the words at [MASK]."""

    run: tyro.conf.Positional[str]
    """A pre-trained run."""
    text: tyro.conf.Positional[str]
    """A text with one [MASK] or more."""
    top_k: int = 5
    """Guesses for each."""
    common: Common = _Common()


@dataclass(frozen=True)
class Demo:
    """Train a vocabulary and a small BERT, fine-tune it, compare, and write report.html."""

    out: Path = Path("runs/demo")
    """Folder for everything that is made."""
    corpus: list[Path] = dataclasses.field(default_factory=list)
    """Your own text instead of Python's documentation: files or folders."""
    scale: float = 1.0
    """Size of the demo: steps and repetitions, 0.05 is a quick look."""
    common: Common = _Common()


def tokenizer_train(args: TokenizerTrain) -> dict[str, Any]:
    from bertie.text.vocabulary import train_tokenizer

    reading = dataclasses.asdict(args.reading)
    sizes = {"vocab_size": args.vocab_size, "alphabet_limit": args.alphabet_limit, "min_frequency": args.min_frequency}
    tokenizer = train_tokenizer(args.text, args.out, lowercase=not args.cased, **sizes, **reading)
    console.say(f"{tokenizer.size:,} entries in {args.out}")
    return {"tokenizer": str(args.out), "size": tokenizer.size, "fingerprint": tokenizer.fingerprint}


def prepare(args: Prepare) -> dict[str, Any]:
    from bertie.text.prepare import prepare
    from bertie.text.tokenizer import Tokenizer

    reading = dataclasses.asdict(args.reading)
    tokenizer = Tokenizer.load(args.tokenizer)
    manifest = prepare(args.text, tokenizer, args.out, eval_share=args.eval_share, language=args.language, **reading)
    for name, counts in manifest["splits"].items():
        console.say(f"{name}: {counts['documents']:,} documents, {counts['tokens']:,} tokens")
    return {"shards": str(args.out), "splits": manifest["splits"]}


def pretrain(args: Pretrain) -> dict[str, Any]:
    from bertie.training.pretrain import pretrain

    result = pretrain(args.recipe, args.data, args.out, threads=args.threads)
    last = result["eval"]
    measures = [f"{name} {last[name]:.4f}" for name in last if name.endswith(("_loss", "_accuracy"))]
    console.say(f"{args.out}: held-out " + ", ".join(measures))
    return result


def finetune(args: Finetune) -> dict[str, Any]:
    import time

    from bertie.training.finetune import finetune

    started = time.monotonic()
    done = finetune(args.recipe, args.train, args.dev, args.model, args.out, threads=args.threads)
    console.say(f"{args.out}: " + ", ".join(f"{name} {value:.4f}" for name, value in done.scores.items()))
    seconds = round(time.monotonic() - started, 3)
    return {"run": str(args.out), "scores": done.scores, "seeds": [args.recipe.seed], "seconds": seconds}


def evaluate(args: Evaluate) -> dict[str, Any]:
    from bertie.predict.predictor import load

    result = load(args.run).evaluate(args.data)
    console.say(", ".join(f"{name} {value:.4f}" for name, value in result["scores"].items()))
    return result


def predict(args: Predict) -> dict[str, Any]:
    from bertie.predict.predictor import load
    from bertie.tasks.examples import stream_examples

    if bool(args.text) == bool(args.input):
        raise UsageError("give either texts or --input FILE")
    model = load(args.run)
    columns = model.task.columns if model.task else None
    inputs = stream_examples(args.input, *([columns] if columns else [])) if args.input else args.text
    count = 0
    for prediction in model.predict_stream(inputs):
        print(json.dumps(dataclasses.asdict(prediction), ensure_ascii=False))
        count += 1
    return {"examples": count}


def fill_mask(args: FillMask) -> dict[str, Any]:
    from bertie.predict.predictor import load

    guesses = load(args.run).fill_mask(args.text, args.top_k)
    for place in guesses:
        console.say("  ".join(f"{guess.token} {guess.probability:.3f}" for guess in place))
    return {"masks": [[dataclasses.asdict(guess) for guess in place] for place in guesses]}


def demo(args: Demo) -> dict[str, Any]:
    from bertie.demo.main import demo

    return demo(args.out, args.corpus, args.scale)


def _pretrain_defaults(config: str) -> Pretrain:
    from bertie.training.pretrain import PretrainConfig

    globals()["PretrainConfig"] = PretrainConfig  # tyro reads the annotation when it builds the flags
    recipe = configuration.load(PretrainConfig, config, "pretrain")
    return Pretrain(tyro.MISSING, tyro.MISSING, tyro.MISSING, recipe)


def _finetune_defaults(config: str) -> Finetune:
    from bertie.training.finetune import FinetuneConfig

    globals()["FinetuneConfig"] = FinetuneConfig
    recipe = configuration.load(FinetuneConfig, config, "finetune")
    return Finetune(*[tyro.MISSING] * 5, recipe)


@dataclass(frozen=True)
class Verb:
    """args: its flags; run: from them to what --json prints; defaults, usual: of verbs that take a CONFIG first."""

    args: type
    run: Callable[[Any], dict[str, Any]]
    defaults: Callable[[str], Any] | None = None
    usual: str = ""


VERBS = {
    "demo": Verb(Demo, demo),
    "tokenizer train": Verb(TokenizerTrain, tokenizer_train),
    "prepare": Verb(Prepare, prepare),
    "pretrain": Verb(Pretrain, pretrain, _pretrain_defaults, "mini"),
    "finetune": Verb(Finetune, finetune, _finetune_defaults, "classify"),
    "evaluate": Verb(Evaluate, evaluate),
    "predict": Verb(Predict, predict),
    "fill-mask": Verb(FillMask, fill_mask),
}


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 failed, 2 wrong use."""
    argv = sys.argv[1:] if argv is None else argv
    if argv in ([], ["-h"], ["--help"]):
        print(HELP)
        return 0 if argv else 2
    if argv == ["--version"]:
        from bertie import __version__

        print(__version__)
        return 0
    debug = "--debug" in argv
    try:
        name, verb, rest = _verb(argv)
        args = _parse(name, verb, rest)
        result = verb.run(args)
        if args.common.json:
            print(json.dumps(result))
    except UserError as error:
        if debug:
            raise
        console.say(f"bertie: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        console.say("bertie: stopped; the same command goes on from the last checkpoint")
        return 130
    except BrokenPipeError:  # the reader of our output, such as head, has seen enough
        sys.stdout = None
        return 0
    return 0


def _verb(argv: list[str]) -> tuple[str, Verb, list[str]]:
    for words in (2, 1):
        name = " ".join(argv[:words])
        if name in VERBS:
            return name, VERBS[name], argv[words:]
    raise UsageError(f"unknown command {' '.join(argv[:1])!r}; bertie --help lists them")


def _parse(name: str, verb: Verb, argv: list[str]) -> Any:
    if name == "finetune" and "--task" in argv[:-1]:  # --task KIND stands for KIND's shipped CONFIG
        at = argv.index("--task")
        argv = [argv[at + 1], *argv[:at], *argv[at + 2 :]]
    default = None
    if verb.defaults is not None:
        named = bool(argv) and not argv[0].startswith("-")
        if not named and not {"-h", "--help"} & set(argv):
            raise UsageError(f"bertie {name}: the first word is the CONFIG, such as {verb.usual}")
        default = verb.defaults(argv[0] if named else verb.usual)
    markers = (tyro.conf.AvoidSubcommands, tyro.conf.FlagCreatePairsOff)
    complaints = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaints):
            return tyro.cli(verb.args, args=argv, default=default, config=markers, prog=f"bertie {name}")
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise UsageError(f"bertie {name}: {_one_line(complaints.getvalue())} (bertie {name} --help)") from stop


def _one_line(complaint: str) -> str:
    """The parser's framed complaint as a sentence: what comes before its rules and hints."""
    lines = [re.sub(r"[│╭╮╰╯─]+", "", line).strip() for line in complaint.splitlines()]
    told = " ".join(line for line in lines[1:] if line)
    return re.split(r"\s*(?:For full helptext|Argument helptext)", told)[0].strip()
