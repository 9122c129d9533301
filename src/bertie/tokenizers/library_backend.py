"""Tokenizers of any other kind, of the library `tokenizers`: Unigram and BPE with "▁" or "</w>", WordLevel, and more.

Where words start is read from the marks of the entries:

- "▁" or "Ġ" before an entry starts a word, "##" continues one, and after "</w>" a word starts.
- In "▁" vocabularies, an entry in a script without blanks (Chinese, Japanese, Thai, Lao, Khmer, Burmese, Tibetan and a
  few more) starts a word: there, every piece counts as a word.
- Without such marks, a tokenizer has no words (`has_words`).
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NoReturn

import numpy as np
import tokenizers
from tokenizers import AddedToken, Encoding, Regex, decoders, models, normalizers, pre_tokenizers, processors

from bertie.base.errors import UserError
from bertie.tokenizers.bpe_backend import BYTE_CHARACTERS, BYTE_ORDER, WORD_BEGINNINGS
from bertie.tokenizers.special_tokens import (
    SpecialTokens,
    Templates,
    add_user_tokens,
    added_texts,
    added_tokens,
    copy_engine,
    read_templates,
)

BLANK = "▁"  # SentencePiece writes the space before a word so
CHARACTER = r"(?:[\u1100-\u115f]+[\u1160-\u11a7]+[\u11a8-\u11ff]*|[^\s▁])\p{M}*"
"""A character with its combining marks; or a Korean syllable in parts. It is never changed: runs have it in tokenizer.json."""
ROLES = SpecialTokens(cls="<s>", sep="</s>", pad="<pad>", unk="<unk>", mask="<mask>")
ROLES_ORDER = ("<s>", "<pad>", "</s>", "<unk>")  # of XLM-RoBERTa's ids; the mask is last
# Thai, Lao, Tibetan, Burmese, Khmer, Tai Le, New Tai Lue, Tai Tham, Javanese, Tai Viet, Yi; Kana, Bopomofo, Han.
WITHOUT_BLANKS = re.compile(
    "[\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aad\ua980-\ua9df\uaa60-\uaadf"
    "\ua000-\ua4cf\u3005-\u3007\u3021-\u30ff\u3105-\u312f\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff66-\uff9f\U0001b000-\U0001b16f\U00020000-\U000323af]"
)
_BYTE_OF = dict(zip(BYTE_CHARACTERS, BYTE_ORDER, strict=True))
_WORDLESS = {"model": {"type": "WordLevel", "vocab": {}, "unk_token": ""}, "added_tokens": []}


@dataclass(frozen=True)
class LibraryRules:
    """How a tokenizer of the library reads text: its normalizer and its word splitter, as in tokenizer.json."""

    normalizer_json: str
    splitter_json: str
    lowercase: ClassVar = False
    drop_punctuation: ClassVar = False
    splits_at_spaces: ClassVar = False

    def normalizer(self) -> Any:
        """Return the normalizer of the library `tokenizers`."""
        return self._part("normalizer", self.normalizer_json) or normalizers.Sequence([])

    def splitter(self) -> Any:
        """Return the splitter of normalized text into words, of the library `tokenizers`."""
        return self._part("pre_tokenizer", self.splitter_json) or pre_tokenizers.Sequence([])

    @staticmethod
    def _part(name: str, written: str) -> Any:
        return getattr(tokenizers.Tokenizer.from_str(json.dumps(_WORDLESS | {name: json.loads(written)})), name)


@dataclass(frozen=True, eq=False)
class LibraryBackend:
    """Any tokenizer of the library `tokenizers`."""

    engine: tokenizers.Tokenizer
    """The tokenizer of the library `tokenizers` that does the work."""
    templates: Templates
    """Where special tokens stand in a sequence."""
    special: SpecialTokens
    unknown_unit: ClassVar = "tokens"
    merges: ClassVar[list[str]] = []

    @property
    def algorithm(self) -> str:
        """The algorithm, "unigram" or "other"."""
        return "unigram" if isinstance(self.engine.model, models.Unigram) else "other"

    @cached_property
    def _parts(self) -> dict[str, Any]:
        return json.loads(self.engine.to_str())

    @cached_property
    def word_mark(self) -> str:
        """The mark of word boundaries: "▁", "Ġ", "##", "</w>", or "" if there is none."""
        model = self._parts["model"]
        if self.end_mark:
            return self.end_mark
        if isinstance(self.engine.model, models.WordPiece):
            return str(model["continuing_subword_prefix"])
        entries = self.engine.get_vocab(with_added_tokens=False)
        written = json.dumps([self._parts["normalizer"], self._parts["pre_tokenizer"]], ensure_ascii=False)
        if BLANK in written and any(entry.startswith(BLANK) for entry in entries):
            return BLANK
        return "Ġ" if '"ByteLevel"' in written else ""

    @property
    def has_words(self) -> bool:
        """Whether the entries say where words start."""
        return bool(self.word_mark) or isinstance(self.engine.model, models.WordLevel)

    @property
    def end_mark(self) -> str:
        """The mark at the end of words, "</w>", or "" if there is none."""
        return self._parts["model"].get("end_of_word_suffix") or ""

    @cached_property
    def splits_characters(self) -> bool:
        """Whether every character is a word: see `characters`."""
        written = json.dumps(self._parts["pre_tokenizer"])
        return json.dumps(CHARACTER) in written

    @property
    def splits_words(self) -> bool:
        """Whether text is split into words first. Some tokenizers of the library split little or nothing."""
        return bool(self.end_mark) or self.splits_characters

    @property
    def normalization(self) -> LibraryRules:
        """How text is read."""
        return LibraryRules(*(json.dumps(self._parts[name]) for name in ("normalizer", "pre_tokenizer")))

    @cached_property
    def rules(self) -> list[Any]:
        """Every setting besides the entries' texts and user tokens that determines ids, for comparisons."""
        # transformers writes "" where the file of an older version has null
        model = {key: None if value == "" else value for key, value in self._parts["model"].items() if key != "vocab"}
        if isinstance(self.engine.model, models.Unigram):
            # tokenizer.json may change the last bit of a score each time that it is read.
            model["scores"] = np.array([score for _, score in self._parts["model"]["vocab"]], np.float32).tolist()
        parts = [self._parts[name] for name in ("normalizer", "pre_tokenizer")]
        return ["library", model, *parts, self.templates.ids, *self.special.rules()]

    def starts_word(self, entry: str) -> bool:
        """Return whether an entry starts a word. For entries that end words, whether it follows from the entry alone."""
        if entry in self._added or not self.word_mark or self.end_mark:
            return True
        if self.word_mark == BLANK:
            text = entry.removeprefix(BLANK)
            begins = bool(WITHOUT_BLANKS.match(text)) and not unicodedata.category(text[0]).startswith("M")
            return entry.startswith(BLANK) or begins
        return entry.startswith(WORD_BEGINNINGS) if self.word_mark == "Ġ" else not entry.startswith(self.word_mark)

    def encode(self, method: str, texts: Any, **options: bool) -> list[Encoding]:
        """Tokenize texts by a method of the engine, and once more those in which a model has found a role, such as "<s>"."""
        encodings = getattr(self.engine, method)(texts, **options)
        for number, encoding in enumerate(encodings):
            if not self._role_ids.isdisjoint(encoding.ids):
                [encodings[number]] = getattr(self._shielded, method)([texts[number]], **options)
        return encodings

    @cached_property
    def _role_ids(self) -> frozenset[int]:
        """Ids of the roles that no text has: all but the unknown token. A unigram model may still find them in a text."""
        roles = {name: token for name, token in self.special.names().items() if name != "unk_token"}
        ids = (self.engine.token_to_id(token) for token in roles.values() if token != self.special.unk)
        return frozenset(number for number in ids if number is not None)

    @cached_property
    def _shielded(self) -> tokenizers.Tokenizer:
        """The tokenizer for texts in which a role is written, such as "<s>": it splits the role after its first character."""
        shielded = copy_engine(self.engine)
        roles = sorted({token for token in self.special.names().values() if len(token) > 1})
        inside = "|".join(f"(?<={re.escape(role[0])})(?={re.escape(role[1:])})" for role in roles)
        splitters = [pre_tokenizers.Split(Regex(inside), "isolated")]
        if self.engine.pre_tokenizer is not None:
            splitters.insert(0, self.engine.pre_tokenizer)
        shielded.pre_tokenizer = pre_tokenizers.Sequence(splitters)
        shielded.add_tokens(added_tokens(self.engine))
        return shielded

    def config(self) -> dict[str, Any]:
        """Return the entries of tokenizer_config.json, without the special tokens: tokenizer.json counts as it is."""
        inputs = ["input_ids", "token_type_ids", "attention_mask"]
        if self.templates.without_types() == self.templates:
            inputs.remove("token_type_ids")
        return {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": inputs}

    def vocabulary_files(self, vocabulary: list[str]) -> dict[str, str]:  # noqa: ARG002 - WordPiece needs it
        """Return no files: tokenizer.json lists the vocabulary."""
        return {}

    def extensible(self) -> NoReturn:
        """Raise UserError: entries have scores or merges, so words cannot be appended."""
        kind = type(self.engine.model).__name__
        raise UserError(f"this tokenizer is {kind}, and words can be added only to WordPiece: train a new vocabulary")

    @cached_property
    def _added(self) -> set[str]:
        return added_texts(self.engine)

    def spelling(self, entry: str) -> bytes:
        """Return the text of an entry as UTF-8. "▁" and "Ġ" are a space; "##" and "</w>" are no text."""
        if entry in self._added:
            return entry.encode()
        if self.word_mark == BLANK:
            return entry.replace(BLANK, " ").encode()
        if self.word_mark == "Ġ" and all(character in _BYTE_OF for character in entry):
            return bytes(_BYTE_OF[character] for character in entry)
        text = entry.removesuffix(self.word_mark) if self.end_mark else entry.removeprefix(self.word_mark)
        return (text or entry).encode()

    def split_entry(self, entry: str) -> list[int]:
        """Split an entry of another vocabulary into the ids of the pieces of its text."""
        text = self.spelling(entry).decode("utf-8", "replace")
        return self.engine.encode(text.removeprefix(" "), add_special_tokens=False).ids


def build_unigram(pieces: list[tuple[str, float]], user_tokens: Sequence[str | AddedToken] = ()) -> LibraryBackend:
    """Build a unigram tokenizer as XLM-RoBERTa's: text in NFKC, words at white space, "▁" before each word.

    Args:
        pieces: The entries with their scores in id order; the first four are `ROLES_ORDER`, the last is the mask.
        user_tokens: Entries that are matched anywhere in the raw text.
    """
    engine = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=ROLES_ORDER.index("<unk>"), byte_fallback=False))
    engine.normalizer, engine.pre_tokenizer = UNIGRAM_RULES.normalizer(), UNIGRAM_RULES.splitter()
    engine.decoder = decoders.Metaspace(replacement=BLANK, prepend_scheme="always")
    ids = {token: number for number, (token, _) in enumerate(pieces)}
    engine.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[(token, ids[token]) for token in ("<s>", "</s>")],
    )
    engine.add_special_tokens([AddedToken(token, normalized=False) for token in ROLES.names().values()])
    add_user_tokens(engine, user_tokens)
    return LibraryBackend(engine, read_templates(engine), ROLES)


def unigram_splitter(prefix: str = "always") -> Any:
    """Return XLM-RoBERTa's splitter into words. prefix: where a blank is put before a word: "always" or "never"."""
    metaspace = pre_tokenizers.Metaspace(replacement=BLANK, prepend_scheme=prefix)
    return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])


_METASPACE = {"type": "Metaspace", "replacement": BLANK, "prepend_scheme": "always", "split": True}
UNIGRAM_RULES = LibraryRules(
    json.dumps({"type": "NFKC"}),
    json.dumps({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, _METASPACE]}),
)
