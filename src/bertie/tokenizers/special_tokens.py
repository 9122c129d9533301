"""The roles of special tokens and where they stand, and the added tokens of the tokenizers ("engines") of the library."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import tokenizers
from tokenizers import AddedToken, models

from bertie.base.errors import UserError

# The entry of a line break, in vocabularies that have one. It is a user token, so no other text becomes this entry.
LINE_BREAK = "\n"


def printable(entry: str) -> str:
    """Return an entry for people and for vocab.txt, which has one entry per line: a line break as a backslash and an n."""
    return entry.replace(LINE_BREAK, r"\n")


@dataclass(frozen=True)
class SpecialTokens:
    """The vocabulary entry of each role. None: the tokenizer has no token for it.

    Attributes:
        cls: Starts a sequence.
        sep: Ends a text.
        pad: Fills rows.
        unk: Stands for text without an entry.
        mask: Hides a token.
        extract: Ends a sequence, for a head to read (GPT's inputs).
        bos: Started a sequence in pre-training, if `cls` is another token now.
        eos: Ended a text in pre-training, if `sep` is another token now.
    """

    cls: str | None
    sep: str | None
    pad: str | None
    unk: str | None
    mask: str | None
    extract: str | None = None
    bos: str | None = None
    eos: str | None = None

    def names(self) -> dict[str, str]:
        """Return the roles under Hugging Face's names, without missing ones."""
        roles = {"pad": self.pad, "unk": self.unk, "cls": self.cls, "sep": self.sep, "mask": self.mask}
        roles |= {"extract": self.extract, "bos": self.bos, "eos": self.eos}
        return {f"{role}_token": token for role, token in roles.items() if token is not None}

    def rules(self) -> list[str]:
        """Return the roles, for comparisons of tokenizers."""
        return [f"{role}={token}" for role, token in self.names().items()]


class Place(NamedTuple):
    """A place in a sequence: a special token, or a text."""

    id: int | None
    """Id of the special token; None: a text."""
    type_id: int
    """Token type of the place."""


@dataclass(frozen=True)
class Templates:
    """The places in the sequence of one text and of a pair of texts, in order."""

    single: tuple[Place, ...]
    pair: tuple[Place, ...]

    def of(self, texts: int) -> tuple[Place, ...]:
        """Return the places in a sequence of one text or two."""
        return self.single if texts == 1 else self.pair

    @property
    def around(self) -> tuple[list[int], list[int]]:
        """The special tokens before and after a single text."""
        text = next(number for number, place in enumerate(self.single) if place.id is None)
        before, after = self.single[:text], self.single[text + 1 :]
        return [place.id for place in before if place.id is not None], [p.id for p in after if p.id is not None]

    @property
    def lengths_around(self) -> tuple[int, int]:
        """The numbers of special tokens before and after a single text."""
        before, after = self.around
        return len(before), len(after)

    @property
    def separators(self) -> int:
        """Number of special tokens between the two texts of a pair."""
        texts = [number for number, place in enumerate(self.pair) if place.id is None]
        return texts[1] - texts[0] - 1

    @property
    def ids(self) -> list[int | None]:
        """The special tokens of a pair, in order, and None for each text. They determine ids, token types do not."""
        return [place.id for place in self.pair]

    def without_types(self) -> Templates:
        """Return the templates for a model that is given no token types."""
        return Templates(*(tuple(Place(place.id, 0) for place in places) for places in (self.single, self.pair)))


def bert_templates(cls_id: int, sep_id: int) -> Templates:
    """Return BERT's: [CLS] A [SEP], and [CLS] A [SEP] B [SEP] with the token type 1 from B on."""
    cls, sep, text = Place(cls_id, 0), Place(sep_id, 0), Place(None, 0)
    single = (cls, text, sep)
    return Templates(single, (*single, Place(None, 1), Place(sep_id, 1)))


def read_templates(engine: tokenizers.Tokenizer) -> Templates:
    """Return where the post-processor of an engine puts special tokens.

    Raises:
        UserError: It repeats, swaps or drops a text, or adds what the vocabulary lacks.
    """
    post = engine.post_processor
    if post is None:
        return Templates((Place(None, 0),), (Place(None, 0), Place(None, 1)))
    probe = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    templates = []
    for texts in (1, 2):
        result = post.process(*(probe.encode("a") for _ in range(texts)))
        columns = zip(result.ids, result.type_ids, result.sequence_ids, strict=True)
        templates.append(tuple(Place(i if text is None else None, kind) for i, kind, text in columns))
        if [text for text in result.sequence_ids if text is not None] != list(range(texts)):
            raise UserError("its post-processor repeats, swaps or drops a text")
        if (last := max(place.id or 0 for place in templates[-1])) >= (size := engine.get_vocab_size()):
            raise UserError(f"its post-processor adds the token {last}, and the vocabulary has {size:,} entries")
    return Templates(*templates)


def ids_of(engine: tokenizers.Tokenizer, special: SpecialTokens) -> tuple[int, int] | None:
    """Return the ids of the tokens that start and end a sequence. None: the tokenizer has none."""
    ids = [None if token is None else engine.token_to_id(token) for token in (special.cls, special.sep)]
    return None if ids[0] is None or ids[1] is None else (ids[0], ids[1])


@contextmanager
def library_errors(problem: str) -> Iterator[None]:
    """Turn what the library raises into a UserError that begins with `problem`, also its panics, which are no Exceptions."""
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{problem}: {' '.join(str(error).split())[:300]}") from error


def copy_engine(engine: tokenizers.Tokenizer, tokens: Iterable[AddedToken] = ()) -> Any:
    """Return a tokenizer with the parts of another one and these added tokens, without truncation and padding."""
    copied = tokenizers.Tokenizer(engine.model)
    for part in ("normalizer", "pre_tokenizer", "decoder", "post_processor"):
        if getattr(engine, part) is not None:
            setattr(copied, part, getattr(engine, part))
    copied.encode_special_tokens = True
    copied.add_tokens(list(tokens))
    return copied


def added_tokens(engine: tokenizers.Tokenizer) -> list[AddedToken]:
    """Return copies of the added tokens, special ones included, in the order of their ids."""
    return [token for _, token in sorted(engine.get_added_tokens_decoder().items(), key=lambda item: item[0])]


def added_texts(engine: tokenizers.Tokenizer) -> set[str]:
    """Return the texts of the added tokens."""
    return {token.content for token in added_tokens(engine)}


def add_user_tokens(engine: tokenizers.Tokenizer, user_tokens: Sequence[str | AddedToken]) -> None:
    """Add entries that the engine matches in the raw text, and let special tokens in a text be text."""
    engine.add_tokens([t if isinstance(t, AddedToken) else AddedToken(t, normalized=False) for t in user_tokens])
    engine.encode_special_tokens = True


def to_json(engine: tokenizers.Tokenizer, extra: Collection[str]) -> str:
    """Return the contents of tokenizer.json. extra: the added tokens to mark as special."""
    written = engine.to_str(pretty=True)
    if not extra:
        return written
    content = json.loads(written)
    for token in content["added_tokens"]:
        token["special"] = token["special"] or token["content"] in extra
    return json.dumps(content, ensure_ascii=False, indent=2)
