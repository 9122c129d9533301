"""The tasks of finetune_quality.py: files, metric, number of examples and hyperparameters."""

from __future__ import annotations

from dataclasses import dataclass, replace

WARMUP = 0.1
MOST_DEV = 2000  # examples


@dataclass(frozen=True)
class Setting:
    """Files and hyperparameters of one task.

    examples, dev_examples: sizes of random subsets of the training and dev examples, the same for all seeds; 0: all.
    """

    kind: str
    train: str
    dev: str
    metric: str
    epochs: int = 3
    examples: int = 2000
    dev_examples: int = MOST_DEV
    max_length: int = 128
    batch_size: int = 32
    learning_rate: float = 5e-5


QUESTIONS = Setting(
    "span", "", "", "f1", examples=1000, dev_examples=1000, max_length=384, batch_size=16, learning_rate=1e-4
)
SETTINGS = {
    "cola": Setting("classify", "glue/CoLA/train.tsv", "glue/CoLA/dev.tsv", "matthews", examples=0),
    "sst2": Setting("classify", "glue/SST-2/train.tsv", "glue/SST-2/dev.tsv", "accuracy"),
    "mrpc": Setting("classify", "glue/MRPC/train.tsv", "glue/MRPC/dev.tsv", "f1"),
    "stsb": Setting("regress", "glue/STS-B/train.tsv", "glue/STS-B/dev.tsv", "spearman"),
    "rte": Setting("classify", "glue/RTE/train.tsv", "glue/RTE/dev.tsv", "accuracy"),
    "qnli": Setting("classify", "glue/QNLI/train-subset.tsv", "glue/QNLI/dev.tsv", "accuracy"),
    "mnli": Setting("classify", "glue/MNLI/train-subset.tsv", "glue/MNLI/dev_matched.tsv", "accuracy"),
    "qqp": Setting("classify", "glue/QQP/train-subset.tsv", "glue/QQP/dev-subset.tsv", "accuracy"),
    "wnut": Setting("tag", "ner/wnut17train.conll", "ner/emerging.dev.conll", "f1", learning_rate=1e-4),
    "codah": Setting(
        "choose",
        "choice/codah/cv_split/fold_0/train.tsv",
        "choice/codah/cv_split/fold_0/dev.tsv",
        "accuracy",
        batch_size=16,
    ),
    "squad1": replace(QUESTIONS, train="squad/train-v1.1-subset.json", dev="squad/dev-v1.1.json"),
    "squad2": replace(QUESTIONS, train="squad/train-v2.0-subset.json", dev="squad/dev-v2.0-subset.json"),
}
