"""Options of tasks on texts: types of fields with their documentation, which stands here once."""

from __future__ import annotations

from typing import Annotated

from bertie.base.config import Doc, NoFlag, Range
from bertie.model.heads.text_pooling import TaskPooling
from bertie.tokenizers.truncation import Truncation

TextColumn = Annotated[str, Doc("Column of the text; empty: detected from the header.")]
PairColumn = Annotated[str, Doc("Column of the second text, for tasks on pairs; empty: detected from the header.")]
UnknownLabels = Annotated[
    tuple[str, ...],
    Doc(
        "Labels that mean that the label is unknown, such as -1; empty: detected if unambiguous, such as SNLI's -1 "
        "and MNLI's dash."
    ),
]
JoinLabels = Annotated[
    bool, Doc("Merge labels that look the same, such as é as one character, and as e with a combining accent.")
]
TextTruncation = Annotated[
    Truncation,
    Doc(
        "Part to read of a text that is too long. head: the beginning. tail: the end. head_tail: both, a quarter of the "
        "tokens from the beginning. windows: all of it, in overlapping windows."
    ),
]
WindowStride = Annotated[
    int,
    Range(0),
    Doc("Stride of the windows: tokens from the start of one to the start of the next; 0: half a window."),
]
HeadReads = Annotated[
    TaskPooling,
    Doc(
        "Vector of a text, or a pair, for the head. model: the model's `classifier_pooling`, which is token for "
        "BERT. The documentation of fine-tuning explains the others."
    ),
]
ArePairs = NoFlag[Annotated[bool | None, Doc("Whether examples are pairs; set from the training examples.")]]
