"""The inputs on which models are compared: ordinary and hostile texts, and real ones."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from pathlib import Path
from pydoc_data import topics
from typing import Any

from bertie.base.contracts import Sequence
from bertie.base.errors import UserError
from bertie.examples.unlabeled import UnlabeledReader
from bertie.predict.predictor import Predictor
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.tokenizers.truncation import encode, special_tokens

SHOWN_TOKENS = 20
"""Added tokens of a vocabulary that are written into a text."""
TEXTS = (
    "The court, as Smith (2004) has shown, didn't rule on it for the first time.",
    "Ein Märchen über Zürich: Straße, Größe und naïve Café-Besucher im Jahr 1899.",
    "İstanbul'da IŞIK, ﬁrst ﬂight; Ωmega ſtraße ǅungla",
    "Η δίκη άρχισε στις εννέα το πρωί και ο μάρτυρας απάντησε.",
    "Она не знает ответа, Ёлка й й Й.",
    "最高法院昨天作出了判决。東京の夏は暑いです。カタカナ ｱｲｳ ＡＢＣ１２３",
    "한국어는 띄어쓰기를 합니다. 각",
    "उसने कहा कि यह किताब अच्छी है। क्षत्रिय",
    "ผู้พิพากษาอ่านหนังสือเล่มใหม่ทุกวัน ກາສາລາວ",
    "هذا كتابٌ جديد، ولا أعرفُ كاتبَه. שָׁלוֹם עולם",
    "cafe\u0301 na\u0308ive A\u030a \u1e9b\u0323 \u00c5 \u212b",
    "I :( 5 stars, would NOT buy again!!! http://example.org/a?b=c#d #fail @you 😂👩\u200d👩\u200d👧🏽 🇬🇷",
    "CC(=O)OC1=CC=CC=C1C(=O)O and N-acetyl-p-aminophenol, 3.14e-10 1,000,000",
    "``quotes'' \u201cof\u201d \u2018many\u2019 «kinds» … — – - \u00ad soft\u00adhyphen",
    "  two  blanks \t a tab\n\na line\r\nbreak\u00a0no-break\u2003em\u3000wide \u2028line ",
    "zero\u200bwidth \ufeffmark \u202eright-to-left\u202c \x00 \x07 \x7f \ufffd \ue000",
    "<s>struck</s> <b>bold</b> <pad> <unk> &amp; [brackets] ##pieces ▁under Ġspace </w>",
    "a" * 150 + " " + "文" * 60,
    "_snake_case__ camelCaseWord x=y+z; if(a[0]!='b'){c->d++;}",
    "",
    " ",
    ".",
)
"""Ordinary and hostile texts in many scripts."""
ORDINARY = slice(0, 9)
"""Those of them that are sentences."""
LONG = " ".join(TEXTS[ORDINARY]) * 4


@dataclass(frozen=True)
class ComparedTexts:
    """The texts on which models with one vocabulary are compared."""

    plain: list[str]
    """Texts that every program should read in the same way."""
    sentences: list[str]
    """The ordinary ones of them."""
    with_roles: list[str]
    """Texts in which a special token such as [SEP] is written, which is text in bertie."""
    pairs: list[tuple[str, str]]
    """Pairs of plain texts, of which at most one is too long."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, max_length: int) -> ComparedTexts:
        """Return the texts for a tokenizer: the fixed ones, and those with its own tokens.

        Args:
            tokenizer: The tokenizer.
            max_length: Tokens in the longest sequence.
        """
        roles = tokenizer.special.names().values()
        added = [token for token in tokenizer.user_tokens if token.strip()][:SHOWN_TOKENS]
        with_added = [f"the {token} acme{token}b, {token.lower()} and {token.upper()}." for token in added]
        texts = [*TEXTS, LONG, *with_added, *[" ".join(added)] * bool(added)]
        plain = [text for text in texts if not any(role in text for role in roles)]
        with_roles = [text for text in texts if text not in plain] + [
            f"a {role} b{role}c" for role in dict.fromkeys(roles)
        ]
        sentences = [text for text in plain if text in TEXTS[ORDINARY]]
        pairs = list(zip(sentences, [*sentences[1:], *sentences[:1]], strict=True))
        pairs += [("short", LONG), (LONG, "short")]
        half = (max_length - special_tokens(tokenizer, 2)) / 2
        pairs = [pair for pair in pairs if min(map(len, tokenizer.encode([*pair]))) <= half]
        return cls(plain, sentences, with_roles, pairs)


def sequences_of(predictor: Predictor, inputs: Many[Any], limit: int | None = None) -> list[Sequence]:
    """Return the sequences of texts or pairs, of at most `limit` tokens. None: as many as the model reads."""
    first = [text if isinstance(text, str) else text[0] for text in inputs]
    second = [pair[1] for pair in inputs if not isinstance(pair, str)]
    limit = limit or predictor.max_length
    return encode(predictor.tokenizer, first, second or None, max_length=limit) if first else []


def sequences(predictor: Predictor, data: str | Path | None) -> list[Sequence]:
    """Return real inputs of a model.

    Args:
        predictor: The model.
        data: Examples of its task; for a model without a task, texts. None: texts that come with Python.

    Raises:
        UsageError: The file is missing or does not fit the task.
        UserError: It holds nothing readable.
    """
    if data is not None and predictor.task is not None:
        rows = predictor.task.reader.stream(Path(data))
        examples = [row for row in rows if not isinstance(row, UserError)]
        inputs = predictor.task.encode(examples, predictor.tokenizer, predictor.max_length) if examples else []
    else:
        plain = own_texts() if data is None else texts(data)
        half = len(plain) // 2
        pairs = list(zip(plain[:half], plain[half:], strict=False))
        inputs = sequences_of(predictor, plain) + sequences_of(predictor, pairs)
    if not inputs:
        raise UserError(f"{data}: no readable examples in it")
    return inputs


def texts(path: str | Path) -> list[str]:
    """Return the readable texts of a file."""
    rows = UnlabeledReader().stream(Path(path))
    return [row if isinstance(row, str) else " ".join(row) for row in rows if not isinstance(row, UserError)]


def own_texts() -> list[str]:
    """Return paragraphs of Python's documentation, which every machine has, of very different lengths."""
    paragraphs = (part for text in topics.topics.values() for part in text.split("\n\n"))
    return [" ".join(part.split()) for part in paragraphs if len(part) > 20][:2000:20]
