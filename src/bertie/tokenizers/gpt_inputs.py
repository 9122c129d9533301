"""GPT's inputs: [start] A [extract], and [start] A [delimiter] B [extract] (Radford et al. 2018, section 3.3)."""

from __future__ import annotations

from dataclasses import replace

from tokenizers import AddedToken, processors

from bertie.tokenizers.folder import backend_of
from bertie.tokenizers.special_tokens import added_tokens, copy_engine
from bertie.tokenizers.tokenizer import Tokenizer

START, DELIMITER, EXTRACT = INPUT_TOKENS = ("<start>", "<delimiter>", "<extract>")
PADDING = "<pad>"  # for vocabularies without padding, such as the first GPT


def with_gpt_inputs(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer that puts GPT's three tokens around texts, all with token type 0.

    Entries keep their ids, and those that the vocabulary lacks get the next ids, in order: the three tokens, and a padding
    token, if it has none. They are roles: where a text has these characters, it is text. So are the tokens that had the
    roles of the first and the last token before.
    """
    before, roles = tokenizer.backend.engine, tokenizer.special
    pad = roles.pad or PADDING
    tokens = {token.content: token for token in added_tokens(before)}
    for token in (*INPUT_TOKENS, pad):
        tokens.setdefault(token, AddedToken(token, normalized=False)).special = True
    engine = copy_engine(before, tokens.values())
    engine.post_processor = processors.TemplateProcessing(
        single=f"{START} $A {EXTRACT}",
        pair=f"{START} $A {DELIMITER} $B:0 {EXTRACT}",
        special_tokens=[(token, engine.token_to_id(token)) for token in INPUT_TOKENS],
    )
    special = replace(roles, cls=START, sep=DELIMITER, extract=EXTRACT, pad=pad)
    if roles.extract is None:
        special = replace(special, bos=roles.cls, eos=roles.sep)
    extra = tuple(token for token in tokenizer.extra if token not in special.names().values())
    return replace(tokenizer, backend=backend_of(engine, special), extra=extra)
