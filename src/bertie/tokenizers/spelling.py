"""The spelling of vocabulary entries, for models that compute the vector of a token from its characters (Peters et al. 2018).

As in ELMo, a character is a byte of UTF-8, or one of a few symbols that are not part of the text.
"""

from __future__ import annotations

import numpy as np

from bertie.tokenizers.tokenizer import Tokenizer

PADDING = 256
WORD_START = 257
WORD_CONTINUES = 258
END = 259
ROLES = 260  # the first of the symbols of the special tokens, one for each role
SYMBOLS = ROLES + 5


def spelling_table(tokenizer: Tokenizer, width: int) -> np.ndarray:
    """Spell every entry of the vocabulary.

    A spelling is: `WORD_START`, or `WORD_CONTINUES` for an entry inside a word; the bytes of the entry; `END`; `PADDING`.
    A special token has a symbol of its own in place of bytes. Longer entries lose their last bytes.

    Args:
        tokenizer: The tokenizer.
        width: Symbols per entry, at least 3.

    Returns:
        int16 [V, width], numbers below `SYMBOLS`.
    """
    table = np.full((tokenizer.size, width), PADDING, np.int16)
    special = tokenizer.special
    roles = (special.cls, special.sep, special.pad, special.unk, special.mask)
    for row, entry, starts in zip(table, tokenizer.vocabulary, tokenizer.word_starts_table, strict=True):
        # One entry may have several roles, as <|endoftext|> of GPT-2 has.
        text = [ROLES + roles.index(entry)] if entry in roles else list(tokenizer.spelling(entry)[: width - 2])
        row[: len(text) + 2] = [WORD_START if starts else WORD_CONTINUES, *text, END]
    return table
