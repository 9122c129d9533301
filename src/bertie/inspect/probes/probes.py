"""All probes of a model, trained on one treebank and tested on another, beside a control that is not trained.

All probes of a model share the passes over the treebank. Adam treats every weight on its own, and the losses of probes are
added. A probe therefore learns the same as if it were trained alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence as Many
from functools import partial
from itertools import chain
from pathlib import Path

import torch

from bertie.base import console, runtime, seeding
from bertie.base.console import percent
from bertie.base.errors import UserError
from bertie.inspect.attention import require_transformer
from bertie.inspect.probes.dependency_probes import ATTENTION, RIGHT, VECTORS, DependencyProbes
from bertie.inspect.probes.layer_probes import PART_OF_SPEECH, RELATION, LayerProbes, ProbeTask
from bertie.inspect.probes.probe_data import EncodedTreebank, StateScale, WordReader, treebank_vectors
from bertie.inspect.probes.structural_probe import CHAIN, UNDIRECTED, StructuralProbes
from bertie.inspect.tables import InputFacts, InputFindings, Table, TableRow
from bertie.inspect.texts import Readable
from bertie.inspect.treebank import ParsedSentence, read_treebank
from bertie.model.encoder import build_encoder
from bertie.model.initialization import initialize_weights
from bertie.model.model import Model
from bertie.predict.predictor import Predictor

HELD_OUT_EVERY = 10  # every tenth training sentence serves to choose a layer


ProbeSets = tuple[DependencyProbes, StructuralProbes, LayerProbes]
"""All probes of a model, which are trained and tested together. They keep only counts of the test sentences."""


def split(sentences: int) -> tuple[list[int], list[int]]:
    """Split the numbers of training sentences into those to train on and those held out.

    With fewer than ten sentences, all are in both parts.
    """
    numbers = list(range(sentences))
    held_out = numbers[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY] or numbers
    return sorted(set(numbers) - set(held_out)) or numbers, held_out


def fit(reader: WordReader, numbers: Many[int], probes: ProbeSets, epochs: int, seed: int, title: str) -> None:
    """Train probes with Adam. The learning rates fall linearly to 0.

    Args:
        reader: Reads the training sentences.
        numbers: The sentences to train on.
        probes: The probes.
        epochs: Passes over the sentences.
        seed: Random seed of the order of the sentences.
        title: Name of the work in the progress bar.
    """
    groups = [{"params": weights, "lr": rate} for probe in probes for weights, rate in probe.learning_rates]
    optimizer = torch.optim.Adam(groups)
    steps = sum(len(reader.shuffled(numbers, seed, epoch)) for epoch in range(epochs))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    with console.progress(title, epochs * len(numbers), "sentences", passing=True) as bar:
        for epoch in range(epochs):
            for members in reader.shuffled(numbers, seed, epoch):
                batch = reader.read(members)
                optimizer.zero_grad()
                torch.stack([probe.loss(batch) for probe in probes]).sum().backward()
                optimizer.step()
                schedule.step()
                bar.advance(len(members))


@torch.no_grad()
def measure(train: WordReader, held_out: Many[int], test: WordReader, probes: ProbeSets, title: str) -> None:
    """Show the held-out training sentences and then the test sentences to the probes.

    Args:
        train: Reads the training sentences.
        held_out: Those that are held out.
        test: Reads the test sentences.
        probes: The trained probes.
        title: Name of the work in the progress bar.
    """
    count = len(test.treebank.sentences)
    with console.progress(title, len(held_out) + count, "sentences", passing=True) as bar:
        for batch in train.batches(held_out):
            probes[0].hold_out(batch)  # the tables of the others have every layer
            bar.advance(len(batch.numbers))
        for batch in test.batches(range(count)):
            for probe in probes:
                probe.test(batch)
            bar.advance(len(batch.numbers))


UNTRAINED = 15  # random stream of the purpose INSPECT
RANK = 128  # of the structural probes; at most the hidden size
TRAINED_NAME, UNTRAINED_NAME = "trained", "untrained"


def inspect_probes(
    predictor: Predictor,
    train: Path,
    test: Path,
    epochs: int = 5,
    seed: int = 0,
    vectors: Predictor | None = None,
) -> InputFindings:
    """Train probes on a treebank in CoNLL-U format and test them on another.

    Args:
        predictor: The model. It does not change.
        train: The treebank to train the probes on.
        test: The treebank to test them on.
        epochs: Passes over the training sentences.
        seed: Random seed.
        vectors: Model whose word embeddings the dependency probes use, such as GloVe. None: the embeddings of the model.

    Raises:
        UsageError: There is no such file.
        UserError: The model has no attention, or a file has no sentence that the model can read.
    """
    treebanks = [_read(path, predictor) for path in (train, test)]
    if train.samefile(test):
        console.warn(f"{test}: the probes are tested on the sentences that they are trained on")
    embedded = treebanks
    if vectors is not None:  # it only looks up vectors: there is no longest sentence
        embedded = [EncodedTreebank.of(treebank.sentences, vectors.tokenizer, sys.maxsize) for treebank in treebanks]
    embeddings = [treebank_vectors((vectors or predictor).model, treebank) for treebank in embedded]
    tables = []
    for name in (TRAINED_NAME, UNTRAINED_NAME):
        model = predictor.model if name == TRAINED_NAME else untrained(predictor.model, seed)
        train_reader, test_reader = map(partial(WordReader, model), treebanks, embeddings)
        tables.append(_probe(train_reader, test_reader, epochs, seed, name))
    joined = list(map(Table.join, zip(*tables, strict=True)))
    facts = {
        "train": {"file": train.name, **_facts(treebanks[0])},
        "test": {"file": test.name, **_facts(treebanks[1])},
        "epochs": epochs,
        "rank": RANK,
        "vectors": (vectors or predictor).folder.absolute().name,
    }
    return InputFindings("probes", facts, joined, _summary({table.name: table for table in joined}))


def untrained(model: Model, seed: int) -> Model:
    """Return a model of the same shape with random initial weights."""
    config = require_transformer(model.encoder).config
    before = torch.get_rng_state()
    runtime.reseed_torch(seed, seeding.INSPECT, UNTRAINED)
    encoder = build_encoder(config)
    initialize_weights(encoder, config.initializer_range)
    torch.set_rng_state(before)
    return Model(encoder, {}).to(model.device).eval()


def _probe(train: WordReader, test: WordReader, epochs: int, seed: int, name: str) -> list[Table]:
    """Train and test the probes of one model."""
    numbers, held_out = split(len(train.treebank.sentences))
    sentences = [train.treebank.sentences[number] for number in numbers]
    scale = StateScale.estimate(train, numbers, seed)
    example = train.read(numbers[:1])
    tasks = [ProbeTask.of(task, sentences, test.treebank.sentences, seed) for task in (PART_OF_SPEECH, RELATION)]
    probes = (
        DependencyProbes(example, scale, sentences, seed, name, control=name == UNTRAINED_NAME),
        StructuralProbes(scale, RANK, seed, name, control=name == UNTRAINED_NAME),
        LayerProbes(scale, [task for task in tasks if task is not None], name),
    )
    fit(train, numbers, probes, epochs, seed, f"train probes, {name} model")
    measure(train, held_out, test, probes, f"test probes, {name} model")
    return [table for probe in probes for table in probe.tables()]


def _read(path: Path, predictor: Predictor) -> EncodedTreebank:
    sentences = Readable[ParsedSentence](path, "sentence")
    parsed = list(chain.from_iterable(sentences.blocks(read_treebank(path))))
    treebank = EncodedTreebank.of(parsed, predictor.tokenizer, predictor.max_length)
    if not treebank.sentences:
        raise UserError(f"{path}: no sentence is a tree and has at most {predictor.max_length} tokens")
    sentences.warn(
        {
            ("sentence", f"with more than {predictor.max_length} tokens"): treebank.too_long,
            ("sentence", "whose arcs are not a tree with one root"): treebank.not_trees,
            ("word", "that the tokenizer drops"): treebank.without_tokens,
        }
    )
    return treebank


def _facts(treebank: EncodedTreebank) -> InputFacts:
    return {
        "sentences": len(treebank.sentences),
        "words": sum(len(sentence.words) for sentence in treebank.sentences),
        "too_long": treebank.too_long,
        "not_trees": treebank.not_trees,
        "words_without_tokens": treebank.without_tokens,
    }


def _summary(tables: dict[str, Table]) -> list[str]:
    """Describe the most important numbers, for the terminal."""
    heads = {(row["model"], row["probe"]): row for row in tables["dependency_probes"].rows()}
    lines = []
    for probe in (ATTENTION, VECTORS):
        trained, control = heads[TRAINED_NAME, probe], heads[UNTRAINED_NAME, probe]
        lines.append(
            f"heads from {probe}: UAS {_percent(trained['uas'])}, LAS {_percent(trained['las'])} "
            f"(untrained: UAS {_percent(control['uas'])}; {RIGHT}: UAS {_percent(heads['', RIGHT]['uas'])})"
        )
    trees = tables["structural_probe"].rows()
    chain = next(row[UNDIRECTED] for row in trees if row["model"] == CHAIN)
    lines.append(f"structural probe: {_best(trees, UNDIRECTED, 'UUAS')}; {CHAIN}: {_percent(chain)})")
    rows = tables["layer_probes"].rows()
    for task in dict.fromkeys(row["task"] for row in rows):
        lines.append(f"{task}: {_best([row for row in rows if row['task'] == task], 'accuracy', 'accuracy')})")
    return lines


def _best(rows: list[TableRow], measure: str, name: str) -> str:
    """Return the best layer of the trained model, beside its embeddings and the best layer of the untrained one."""
    trained, control = ([row for row in rows if row["model"] == model] for model in (TRAINED_NAME, UNTRAINED_NAME))
    best, best_control = (max(layers, key=lambda row: row[measure] or 0) for layers in (trained, control))
    return (
        f"{name} {_percent(best[measure])} in layer {best['layer']} (embeddings: {_percent(trained[0][measure])}; "
        f"untrained, best layer: {_percent(best_control[measure])}"
    )


def _percent(share: float | None) -> str:
    return "unknown: too few test sentences" if share is None else percent(share)
